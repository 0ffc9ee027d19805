"""`score` beside the class that it runs: texts per second of a corpus on all cores.

    python benchmarks/serving/corpora.py model_repository/reviews --texts ../shared/data/sst2/train.tsv

The corpus has `--rows` rows: the texts of the file, shuffled, again and again with a number behind each, so
that no two are equal. It is answered by

- score: `sparse-serve score`, as a user runs it: from the start of the process to its end, with Ray's start
- class_threads: the class in one process, with a thread on each core
- class_processes: the class in a process with one thread for each core, which share the texts evenly

in turn, `--rounds` times. The class is timed from the first text to the last, when it has been loaded.
`score` is held against the better of its two ways. Writes `corpora.csv`: a line per measurement, with the
environment.
"""

import itertools
import json
import multiprocessing
import platform
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
from results import Line, write_lines

from sparse_serve import Classifier
from sparse_serve.data import read_data
from sparse_serve.environment import available_cores, read_cpu

_classifier: list[Classifier] = []  # of a process


def main(
    entry: Annotated[Path, typer.Argument(help="Public folder of an entry.")],
    *,
    texts: Annotated[Path, typer.Option(help="File of texts, of which the corpus is made.")],
    results: Annotated[Path, typer.Option(help="Folder for the file.")] = Path(__file__).parent,
    rows: Annotated[int, typer.Option(help="Of the corpus.")] = 100_000,
    rounds: Annotated[int, typer.Option(help="How often each way is measured.")] = 1,
) -> None:
    """Score a corpus both ways in turn, and write what came out."""
    corpus = make_corpus(texts, rows)
    cores = available_cores()
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "corpus.parquet"
        pq.write_table(pa.table({"text_a": corpus}), source)
        ways: dict[str, Callable[[], float]] = {
            "class_threads": partial(in_one_process, entry, corpus, cores),
            "class_processes": partial(in_processes, entry, corpus, cores),
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
        "cores": str(cores),
        "cpu": read_cpu().model,
        "system": f"{platform.system()} {platform.machine()}",
        **{name: version(name) for name in ("ray", "onnxruntime", "pyarrow")},
    }
    write_lines(results / "corpora.csv", [line | environment for line in lines])
    report(lines)


def make_corpus(path: Path, rows: int) -> list[str]:
    """Return so many texts, no two of them equal."""
    texts = [row.text for row in read_data(path, task=None).rows]
    random.Random(0).shuffle(texts)
    again = itertools.cycle(texts)
    return [
        next(again) + (f" {number // len(texts)}" if number >= len(texts) else "") for number in range(rows)
    ]


def scored(entry: Path, source: Path, rows: int) -> float:
    """Return the seconds of the command."""
    output = source.parent / "output"
    shutil.rmtree(output, ignore_errors=True)
    command = ["score", entry.name, "--model-repository", str(entry.parent)]
    started = time.perf_counter()
    done = subprocess.run(
        [
            Path(sys.executable).parent / "sparse-serve",
            *command,
            "--input",
            source,
            "--output",
            output,
            "--json",
        ],
        check=True,
        stdout=subprocess.PIPE,
    )
    seconds = time.perf_counter() - started
    summary = json.loads(done.stdout)
    if summary["rows"] != rows or summary["refused"]:
        raise RuntimeError(f"{summary['rows']} rows of {rows}, {summary['refused']} not answered")
    return seconds


def in_one_process(entry: Path, corpus: list[str], threads: int) -> float:
    """Return the seconds of the class with a thread on each core."""
    classifier = Classifier(entry, threads=threads)
    classifier(corpus[:1000])
    started = time.perf_counter()
    classifier(corpus)
    return time.perf_counter() - started


def in_processes(entry: Path, corpus: list[str], processes: int) -> float:
    """Return the seconds of the class in a process on each core."""
    shares = [corpus[number::processes] for number in range(processes)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, spawn, _open, (entry, corpus[:1000])) as pool:
        list(pool.map(_count, [[""]] * processes * 8))  # all have begun
        started = time.perf_counter()
        list(pool.map(_count, shares))
        return time.perf_counter() - started


def _open(entry: Path, first: list[str]) -> None:
    _classifier.append(Classifier(entry, threads=1))
    _classifier[0](first)


def _count(texts: list[str]) -> int:
    return len(_classifier[0](texts))


def report(lines: list[Line]) -> None:
    """Print the medians, and `score` beside the better of the class's two ways."""
    medians = {
        way: statistics.median(float(line["texts_per_s"]) for line in lines if line["way"] == way)
        for way in dict.fromkeys(line["way"] for line in lines)
    }
    best = max(rate for way, rate in medians.items() if way != "score")
    print(", ".join(f"{way} {rate:.0f} texts/s" for way, rate in medians.items()))
    print(f"score / class: {medians['score'] / best:.3f}")


if __name__ == "__main__":
    typer.run(main)
