"""`profile` beside the stock perf_analyzer: the same server, the same texts, the same load, in turns.

    python benchmarks/serving/perf_analyzer.py checkpoints/reviews

Exports CHECKPOINT where it is missing and serves it: as it is, with the server's batching off, and with
batches that wait a moment for more. Both clients ask for the same texts of `--length` tokens over gRPC, with
as many requests in flight. A round has
`--turns` of both, one after the other, and who begins alternates; a turn is three windows of one length, none
of which is taken again. Both CSV files are read by the same reader. perf_analyzer is the binary in the wheel
of tritonclient 2.51.0, which is put into `--build`, with libraries from the wheel of nvidia-pytriton. Clients
have a core that the server does not use, unless `--client-cores 0`.

Writes `perf_analyzer.csv`, a line for each client, load and turn with the environment. The two of a turn are
held against each other, as the machine may have changed until the next; a round's ratio, ours to
perf_analyzer's, is the median of its turns'. Prints those of all rounds beside the medians of both, and by
how much longer our client takes to send and receive. Ends with 1 where a round's ratio is not within 5 %. Of
p99 with several in flight and batches that wait for none it is told only: whether the next requests meet in
one is a race of less than a millisecond, which perf_analyzer runs otherwise with `--async`, too. How many of
which size the server ran meanwhile is in the CSV (`batches`).
Half an hour: turns are short and many, as a machine may change its speed from one client to the other.
"""

import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, groupby, product
from pathlib import Path
from typing import Annotated

import typer
from cores import ClientCores, Cores, share_out
from tritonclient.grpc import InferenceServerClient
from tritonclient.grpc.model_config_pb2 import ModelConfig

from sparse_serve.data import read_texts
from sparse_serve.profiling.subjects import on_cores
from sparse_serve.profiling.workload import Tokens, make_workload
from sparse_serve.report.table import PERF_ANALYZER_COLUMNS
from sparse_serve.repository.entries import TOKENIZER_NAME, read_entry
from sparse_serve.repository.signature import TEXT_INPUT
from sparse_serve.triton.installation import find_triton

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from commands import COMMAND, exit_on_sigterm
from entries import export
from environment import environment
from lines import Line, write_lines
from options import REPOSITORY, Checkpoint, Repository, Results
from servers import served

NAME = "reviews"
WHEEL = "tritonclient==2.51.0"
# Under names with a digest in the wheel of the server.
LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}
OURS = "profile"
CLIENTS = (OURS, "perf_analyzer")
COLUMNS = ("Inferences/Second", "p50 latency", "p99 latency")
CLIENT_TIMES = ("Client Send", "Network+Server Send/Recv", "Client Recv")
PRINTED = ("Concurrency", "batching", "queue_delay_us", *COLUMNS, "batches", "failed")
WITHIN = 0.05
THREE_WINDOWS = ("-r", "3", "-s", "100")
# perf_analyzer's window has so much of the interval that it is given.
WINDOW_SHARE = 1.2


@dataclass(frozen=True)
class Load:
    """Requests in flight, whether the server answers several at once, and how long a batch waits for more."""

    concurrency: int
    batching: bool = True
    queue_delay_us: int = 0

    @staticmethod
    def of(line: Line) -> "Load":
        """Return that of a line of the CSV."""
        return Load(int(line["Concurrency"]), line["batching"] == "on", int(line["queue_delay_us"]))

    def line(self) -> Line:
        return {"batching": "on" if self.batching else "off", "queue_delay_us": str(self.queue_delay_us)}

    def holds(self, column: str) -> bool:
        """Whether a column is the server's, whoever asks."""
        races = self.concurrency > 1 and self.batching and not self.queue_delay_us
        return column != "p99 latency" or not races

    def __str__(self) -> str:
        told = f"{self.concurrency} in flight" + ("" if self.batching else ", batching off")
        return told + (f", batches wait {self.queue_delay_us} µs" if self.queue_delay_us else "")


LOADS = (Load(1), Load(4, batching=False), Load(4, queue_delay_us=5000), Load(4))


@dataclass(frozen=True)
class Asked:
    """What both clients are told: a server's gRPC, texts, requests in flight, and the ms of a window."""

    url: str
    texts: Sequence[str]
    concurrency: int
    window_ms: int


def benchmark(  # noqa: PLR0913  one parameter per option
    checkpoint: Checkpoint,
    *,
    repository: Repository = REPOSITORY,
    results: Results = Path(__file__).parent,
    build: Annotated[Path, typer.Option(help="Folder for perf_analyzer.")] = Path("build/perf_analyzer"),
    length: Annotated[int, typer.Option(help="Of the texts, in tokens.")] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="How many.")] = 3,
    turns: Annotated[int, typer.Option(min=1, help="Of both in a round.")] = 8,
    seconds: Annotated[float, typer.Option(help="Of a window.")] = 2.4,
    client_cores: ClientCores = 1,
) -> None:
    """Install and export what is missing, measure, and write what came out."""
    exit_on_sigterm()
    stock = Stock(build.absolute())
    export(checkpoint, repository, NAME)
    entry = read_entry(repository / NAME)
    task, most = entry.manifest.task, entry.manifest.max_length
    tokens = Tokens(entry.path / TOKENIZER_NAME, task, most, in_graph=entry.takes_text)
    texts = [batch.texts[0] for batch in make_workload(tokens, read_texts(None), length, 1).batches]
    lines: list[Line] = []
    cores = share_out(client_cores)
    for load in LOADS:
        with ExitStack() as stack:
            with on_cores(cores.server):
                server = stack.enter_context(served(repository, [NAME], edited(cores, load)))
            stack.enter_context(on_cores(cores.clients))
            asked = Asked(server.grpc_url, texts, load.concurrency, round(seconds * 1000))
            for number, turn in product(range(rounds), range(turns)):
                for name in CLIENTS[:: -1 if turn % 2 else 1]:
                    line = environment(find_triton().version or "") | cores.line() | load.line()
                    line |= {"client": name, "round": str(number), "turn": str(turn), "length": str(length)}
                    before = executions(server.grpc_url)
                    line |= profiled(asked, repository) if name == OURS else stock.ask(asked)
                    ran = sorted((executions(server.grpc_url) - before).items())
                    line["batches"] = " ".join(f"{size}:{count}" for size, count in ran)
                    lines.append(line)
                    print(name, *(f"{key} {line.get(key, '-')}" for key in PRINTED), sep=", ", flush=True)
                    write_lines(results / "perf_analyzer.csv", lines)  # what there is, should it be ended
    told = list(ratios(lines))
    for each in told:
        print(each)
    for load, longer in client_times(lines).items():
        if longer:
            print(f"{load}: our client takes {min(longer):.2f} to {max(longer):.2f} ms longer")
    if len(told) < len(COLUMNS) * len(LOADS):
        raise SystemExit("a figure is missing: 100 requests need more --seconds")
    if not all(each.within for each in told):
        raise SystemExit(1)


def edited(cores: Cores, load: Load) -> Callable[[ModelConfig], None]:
    """Return what fits a configuration to the server's cores, and to a load."""
    threads = cores.edit()

    def edit(config: ModelConfig) -> None:
        if threads:
            threads(config)
        if not load.batching:
            config.ClearField("dynamic_batching")
        elif load.queue_delay_us:
            config.dynamic_batching.max_queue_delay_microseconds = load.queue_delay_us

    return edit


def executions(grpc_url: str) -> Counter[int]:
    """Return how many batches of each size a server has run so far."""
    with InferenceServerClient(grpc_url) as client:
        (version,) = client.get_inference_statistics(NAME).model_stats
    return Counter({each.batch_size: each.compute_infer.count for each in version.batch_stats})


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
                    *("--measurement-interval", str(round(asked.window_ms / WINDOW_SHARE)), *THREE_WINDOWS),
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
                *(f"--measurement-interval={asked.window_ms}", *THREE_WINDOWS),
                f"--output-dir={folder}",
            ]
        )
        if done.returncode:
            raise SystemExit(one_line(done))
        return only_row(Path(folder, "report.csv"))


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
    """A column at a load: ours and perf_analyzer's, turn by turn of each round."""

    load: Load
    column: str
    rounds: Sequence[Sequence[tuple[float, float]]]

    @property
    def of_rounds(self) -> list[float]:
        """The median of each round's ratios."""
        return [statistics.median(ours / theirs for ours, theirs in turns) for turns in self.rounds]

    @property
    def within(self) -> bool:
        """Whether the clients agree, where they are to."""
        return not self.load.holds(self.column) or all(abs(each - 1) <= WITHIN for each in self.of_rounds)

    def __str__(self) -> str:
        ours, theirs = (statistics.median(each) for each in zip(*chain(*self.rounds), strict=True))
        rounds = ", ".join(f"{ratio:.3f}" for ratio in self.of_rounds)
        return f"{self.load}, {self.column}: {rounds}; medians {ours:.1f} of {theirs:.1f}"


def ratios(lines: Sequence[Line]) -> Iterator[Ratio]:
    """Yield the ratios of each load and column, of the turns in which both have it.

    Ours has no percentile of too few requests: for p99 of 100 windows must be long enough.
    """
    for load in dict.fromkeys(map(Load.of, lines)):
        pairs = list(pairs_of(lines, load))
        for column in COLUMNS:
            rounds = [
                [
                    (float(ours[column]), float(theirs[column]))
                    for ours, theirs in turns
                    if ours.get(column) and theirs.get(column)
                ]
                for _, turns in groupby(pairs, lambda pair: pair[0]["round"])
            ]
            if pairs and all(rounds):
                yield Ratio(load, column, rounds)


def client_times(lines: Sequence[Line]) -> dict[Load, list[float]]:
    """Return by how many ms our client takes longer to send and receive, turn by turn, by load."""
    return {
        load: [
            sum(float(ours[part]) - float(theirs[part]) for part in CLIENT_TIMES) / 1000
            for ours, theirs in pairs_of(lines, load)
            if theirs.get(CLIENT_TIMES[0])
        ]
        for load in dict.fromkeys(map(Load.of, lines))
    }


def pairs_of(lines: Sequence[Line], load: Load) -> Iterator[tuple[Line, Line]]:
    """Yield ours and perf_analyzer's of each turn at a load."""
    found = {(line["client"], line["round"], line["turn"]): line for line in lines if Load.of(line) == load}
    for turn in dict.fromkeys(key[1:] for key in found):
        if all((name, *turn) in found for name in CLIENTS):
            yield found[OURS, *turn], found[CLIENTS[1], *turn]


if __name__ == "__main__":
    typer.run(benchmark)
