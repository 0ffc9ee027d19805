"""`score` beside the class that it runs: texts per second of a corpus on all cores.

    python benchmarks/serving/corpora.py model_repository/reviews --texts ../shared/data/sst2/train.tsv

The corpus has `--rows` rows: the texts of the file, shuffled, again and again with a number behind each, so
that no two are equal. It is answered by

- score: `sparse-serve score`, as a user runs it, which writes Parquet
- class_threads: the class in one process, with a thread on each core
- class_processes: the class in a process with one thread for each core, which share the texts evenly

in turn, `--rounds` times. Each is timed from the start of its processes to their end: Ray starts in it, the
class is imported and loaded in it, and each reads the texts from the same file of Parquet. `score` is held
against both ways of the class; the first is the class as it is. Writes `corpora.csv`: a line per measurement,
with the environment.
"""

import itertools
import json
import multiprocessing
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from sparse_serve import Classifier
from sparse_serve.data import read_data
from sparse_serve.environment import available_cores

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from commands import COMMAND, ending, exit_on_sigterm
from environment import columns
from lines import Line, write_lines


def main(
    entry: Annotated[Path, typer.Argument(help="Public folder of an entry.")],
    *,
    texts: Annotated[Path, typer.Option(help="File of texts, of which the corpus is made.")],
    results: Annotated[Path, typer.Option(help="Folder for the file.")] = Path(__file__).parent,
    rows: Annotated[int, typer.Option(help="Of the corpus.")] = 100_000,
    rounds: Annotated[int, typer.Option(help="How often each way is measured.")] = 1,
) -> None:
    """Score a corpus both ways in turn, and write what came out."""
    exit_on_sigterm()
    corpus = make_corpus(texts, rows)
    cores = available_cores()
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "corpus.parquet"
        pq.write_table(pa.table({"text_a": corpus}), source)
        ways: dict[str, Callable[[], float]] = {
            "class_threads": partial(by_class, entry, source, rows, processes=1, threads=cores),
            "class_processes": partial(by_class, entry, source, rows, processes=cores, threads=1),
            "score": partial(scored, entry, source, rows),
        }
        for number in range(rounds):
            for way, measure in ways.items():
                seconds = measure()
                told = {"seconds": f"{seconds:.2f}", "texts_per_s": f"{rows / seconds:.1f}"}
                lines.append({"way": way, "round": str(number)} | told)
                print(way, told["texts_per_s"], "texts/s", file=sys.stderr)
    environment = {
        "entry": entry.name,
        "texts": texts.parent.name,
        "rows": str(rows),
        **columns("cores", "cpu", "system"),
        **{name: version(name) for name in ("ray", "onnxruntime", "pyarrow")},
    }
    write_lines(results / "corpora.csv", [line | environment for line in lines])
    report(lines)


def make_corpus(path: Path, rows: int) -> list[str]:
    """Return so many texts, no two of them equal."""
    texts = [row.text for row in read_data(path, labelled=False).rows]
    random.Random(0).shuffle(texts)
    again = itertools.cycle(texts)
    return [
        next(again) + (f" {number // len(texts)}" if number >= len(texts) else "") for number in range(rows)
    ]


def scored(entry: Path, source: Path, rows: int) -> float:
    """Return the seconds of the command."""
    output = source.parent / "output"
    shutil.rmtree(output, ignore_errors=True)
    command: list[str | Path] = [COMMAND, "score", entry.name, "--model-repository", entry.parent]
    command += ["--input", source, "--output", output, "--json"]
    started = time.perf_counter()
    with ending(subprocess.Popen(command, stdout=subprocess.PIPE)) as process:
        told, _ = process.communicate()
    seconds = time.perf_counter() - started
    if process.returncode:
        raise SystemExit(process.returncode)
    summary = json.loads(told)
    if summary["rows"] != rows or summary["refused"]:
        raise RuntimeError(f"{summary['rows']} rows of {rows}, {summary['refused']} not answered")
    return seconds


def by_class(entry: Path, source: Path, rows: int, *, processes: int, threads: int) -> float:
    """Return the seconds of the class in so many processes."""
    started = time.perf_counter()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        shares = [
            pool.submit(answered, entry, source, slice(n, None, processes), threads) for n in range(processes)
        ]
        count = sum(share.result() for share in shares)
    seconds = time.perf_counter() - started
    if count != rows:
        raise RuntimeError(f"{count} rows of {rows}")
    return seconds


def answered(entry: Path, source: Path, share: slice, threads: int) -> int:
    """Answer a share of the texts; return how many."""
    texts = pq.read_table(source)["text_a"].to_pylist()[share]
    return len(Classifier(entry, threads=threads)(texts))


def report(lines: list[Line]) -> None:
    """Print the medians, and `score` beside both ways of the class."""
    medians = {
        way: statistics.median(float(line["texts_per_s"]) for line in lines if line["way"] == way)
        for way in dict.fromkeys(line["way"] for line in lines)
    }
    score = medians["score"]
    print(", ".join(f"{way} {rate:.0f} texts/s" for way, rate in medians.items()))
    print(", ".join(f"score / {way}: {score / rate:.3f}" for way, rate in medians.items() if way != "score"))


if __name__ == "__main__":
    typer.run(main)
