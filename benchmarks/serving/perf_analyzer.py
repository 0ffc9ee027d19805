"""`profile` beside the stock perf_analyzer: the same server, the same texts, the same load, at the same time.

    python benchmarks/serving/perf_analyzer.py checkpoints/reviews

Exports CHECKPOINT where it is missing and serves it once. In every round both clients ask for the same texts
of `--length` tokens over gRPC, each with as many requests in flight, side by side: a machine that changes its
speed from one half minute to the next does so for both, which no turns of theirs can have. perf_analyzer
starts with our client's first request, and both take three windows of one length: what our client begins
earlier, it also ends earlier. Both CSV files are read by the same reader. perf_analyzer is the binary in the
wheel of tritonclient 2.51.0, which is put into `--build`, with libraries from the wheel of nvidia-pytriton.

Writes `perf_analyzer.csv`, a line for each client, load and round with the environment. Prints the median of
the rounds' ratios, ours to perf_analyzer's, with the least and the greatest, beside the medians of both, and
by how much longer our client takes to send and receive. Ends with 1 where a ratio's median is not within 5 %.
"""

import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tritonclient.grpc
import typer
from entries import COMMAND, export
from options import REPOSITORY, RESULTS, Checkpoint, Repository, Results
from results import Line, environment, write_lines
from servers import served

from sparse_serve.data import read_texts
from sparse_serve.profiling.report_csv import PERF_ANALYZER_COLUMNS
from sparse_serve.profiling.workload import Tokens, make_workload
from sparse_serve.repository.entries import TOKENIZER_NAME, read_entry
from sparse_serve.repository.signature import TEXT_INPUT
from sparse_serve.triton.installation import find_triton

NAME = "reviews"
WHEEL = "tritonclient==2.51.0"
# Under names with a digest in the wheel of the server.
LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}
OURS = "profile"
CLIENTS = (OURS, "perf_analyzer")
COLUMNS = ("Inferences/Second", "p50 latency", "p99 latency")
CLIENT_TIMES = ("Client Send", "Network+Server Send/Recv", "Client Recv")
PRINTED = ("Concurrency", *COLUMNS, "failed")
WITHIN = 0.05
# Of both clients: no window is taken again, as the other's load would be gone.
THREE_WINDOWS = ("-r", "3", "-s", "100")
# Of its interval, perf_analyzer's window: it sends for so long, and ours is told to.
WINDOW_SHARE = 1.2
STARTED_PAUSE_S = 0.01


@dataclass(frozen=True)
class Asked:
    """What both clients are told: a server's gRPC, texts, requests in flight, and windows in ms."""

    url: str
    texts: Sequence[str]
    concurrency: int
    interval_ms: int


def benchmark(
    checkpoint: Checkpoint,
    *,
    repository: Repository = REPOSITORY,
    results: Results = RESULTS,
    build: Annotated[Path, typer.Option(help="Folder for perf_analyzer.")] = Path("build/perf_analyzer"),
    length: Annotated[int, typer.Option(help="Of the texts, in tokens.")] = 128,
    concurrencies: Annotated[str, typer.Option(help="Requests in flight.")] = "1,4",
    rounds: Annotated[int, typer.Option(min=1, help="Of both.")] = 3,
    seconds: Annotated[float, typer.Option(help="Of a window.")] = 10,
) -> None:
    """Install and export what is missing, measure, and write what came out."""
    stock = Stock(build.absolute())
    export(checkpoint, repository, NAME)
    entry = read_entry(repository / NAME)
    task, most = entry.manifest.task, entry.manifest.max_length
    tokens = Tokens(entry.path / TOKENIZER_NAME, task, most, in_graph=entry.takes_text)
    texts = [batch.texts[0] for batch in make_workload(tokens, read_texts(None), length, 1).batches]
    lines: list[Line] = []
    with served(repository, [NAME]) as server:
        for number in range(rounds):
            for concurrency in map(int, concurrencies.split(",")):
                asked = Asked(server.grpc_url, texts, concurrency, round(seconds * 1000))
                about = environment(find_triton().version or "")
                with ThreadPoolExecutor(len(CLIENTS)) as pool:
                    earlier = requests_of(server.grpc_url)
                    found = {OURS: pool.submit(profiled, asked, repository)}
                    while requests_of(server.grpc_url) == earlier and not found[OURS].done():
                        time.sleep(STARTED_PAUSE_S)
                    found["perf_analyzer"] = pool.submit(stock.ask, asked)
                for name, line in ((name, found[name].result()) for name in CLIENTS):
                    told = {"client": name, "round": str(number), "length": str(length)}
                    lines.append(about | told | line)
                    print(name, *(f"{key} {line.get(key, '-')}" for key in PRINTED), sep=", ", flush=True)
                write_lines(results / "perf_analyzer.csv", lines)  # what there is, should it be ended
    medians = list(ratios(lines))
    for each in medians:
        print(each)
    for in_flight, longer in client_times(lines).items():
        if longer:
            print(f"{in_flight} in flight: our client takes {min(longer):.2f} to {max(longer):.2f} ms longer")
    if len(medians) < len(COLUMNS) * len(concurrencies.split(",")):
        raise SystemExit("a figure is missing: 100 requests need more --seconds")
    if max(abs(each.median - 1) for each in medians) > WITHIN:
        raise SystemExit(1)


class Stock:
    """perf_analyzer as it comes, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        """Put it there, unless it is.

        Raises:
            RuntimeError: the wheel cannot be had, or the server's wheel has no such library.
        """
        self._program = folder / "bin" / "perf_analyzer"
        self._libraries = folder / "lib"
        if not self._program.exists():
            command = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--target",
                str(folder),
            ]
            command += ["--only-binary=:all:", "--platform=manylinux1_x86_64", WHEEL]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{WHEEL}: {done.stderr.strip().splitlines()[-1]}")
        self._program.chmod(0o755)
        self._libraries.mkdir(exist_ok=True)
        for name, pattern in LIBRARIES.items():
            found = [path for folder in find_triton().library_folders for path in folder.glob(pattern)]
            if not found:
                raise RuntimeError(f"the wheel of nvidia-pytriton has no {pattern}")
            (self._libraries / name).unlink(missing_ok=True)
            (self._libraries / name).symlink_to(found[0])

    def ask(self, asked: Asked) -> Line:
        """Return what perf_analyzer measures."""
        with tempfile.TemporaryDirectory() as folder:
            data, found = Path(folder, "data.json"), Path(folder, "found.csv")
            data.write_text(json.dumps({"data": [{TEXT_INPUT: [text]} for text in asked.texts]}), "utf-8")
            done = run(
                [
                    *(str(self._program), "-m", NAME, "-i", "grpc", "-u", asked.url, "-f", str(found)),
                    *("--input-data", str(data), "--concurrency-range", str(asked.concurrency)),
                    *("--measurement-interval", str(asked.interval_ms), *THREE_WINDOWS),
                ],
                LD_LIBRARY_PATH=str(self._libraries),
            )
            if done.returncode:  # it tells nothing of what was not stable
                return {"Concurrency": str(asked.concurrency), "failed": one_line(done)}
            return only_row(found)


def profiled(asked: Asked, repository: Path) -> Line:
    """Return what `profile` measures of the same."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "texts.txt")
        data.write_text("".join(f"{text}\n" for text in asked.texts), "utf-8")
        done = run(
            [
                *(str(COMMAND), "profile", NAME, f"--url={asked.url}", f"--model-repository={repository}"),
                *(f"--input-data={data}", f"--concurrency-range={asked.concurrency}", "--rounds=1"),
                *(f"--measurement-interval={round(WINDOW_SHARE * asked.interval_ms)}", *THREE_WINDOWS),
                f"--output-dir={folder}",
            ]
        )
        if done.returncode:
            raise SystemExit(one_line(done))
        return only_row(Path(folder, "report.csv"))


def requests_of(grpc_url: str) -> int:
    """Return how many requests the server has answered."""
    client = tritonclient.grpc.InferenceServerClient(grpc_url)
    (model,) = client.get_inference_statistics(NAME).model_stats
    return int(model.inference_stats.success.count)


def run(command: Sequence[str], **variables: str) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, **variables}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def one_line(done: "subprocess.CompletedProcess[str]") -> str:
    """Return the last that a program said."""
    return (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]


def only_row(path: Path) -> Line:
    """Return the one row of a CSV file, by perf_analyzer's columns."""
    with path.open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    return {name: row[name] for name in PERF_ANALYZER_COLUMNS}


@dataclass(frozen=True)
class Ratio:
    """A column at a load, round by round: ours, and perf_analyzer's."""

    concurrency: str
    column: str
    pairs: Sequence[tuple[float, float]]

    @property
    def own(self) -> list[float]:
        """The ratio of each round."""
        return [ours / theirs for ours, theirs in self.pairs]

    @property
    def median(self) -> float:
        return statistics.median(self.own)

    def __str__(self) -> str:
        ours, theirs = (statistics.median(each) for each in zip(*self.pairs, strict=True))
        return (
            f"{self.concurrency} in flight, {self.column}: {self.median:.3f} ({min(self.own):.3f} to "
            f"{max(self.own):.3f} in {len(self.own)} rounds); medians {ours:.1f} of {theirs:.1f}"
        )


def ratios(lines: Sequence[Line]) -> Iterator[Ratio]:
    """Yield the ratios of each load and column, of the rounds in which both have it.

    Ours has no percentile of too few requests: for p99 of 100 windows must be long enough.
    """
    for concurrency in dict.fromkeys(line["Concurrency"] for line in lines):
        for column in COLUMNS:
            pairs = [
                (float(ours[column]), float(theirs[column]))
                for ours, theirs in turns(lines, concurrency)
                if ours.get(column) and theirs.get(column)
            ]
            if pairs:
                yield Ratio(concurrency, column, pairs)


def client_times(lines: Sequence[Line]) -> dict[str, list[float]]:
    """Return by how many ms our client takes longer to send and receive, round by round, by load."""
    return {
        concurrency: [
            sum(float(ours[part]) - float(theirs[part]) for part in CLIENT_TIMES) / 1000
            for ours, theirs in turns(lines, concurrency)
            if theirs.get(CLIENT_TIMES[0])
        ]
        for concurrency in dict.fromkeys(line["Concurrency"] for line in lines)
    }


def turns(lines: Sequence[Line], concurrency: str) -> Iterator[tuple[Line, Line]]:
    """Yield ours and perf_analyzer's of each round at a load."""
    found = {(line["client"], line["round"]): line for line in lines if line["Concurrency"] == concurrency}
    for number in dict.fromkeys(number for _, number in found):
        if all((name, number) in found for name in CLIENTS):
            yield found[OURS, number], found[CLIENTS[1], number]


if __name__ == "__main__":
    typer.run(benchmark)
