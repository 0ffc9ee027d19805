"""What a model holds in memory: at rest, after its largest request, and after a long time of mixed traffic.

    python benchmarks/serving/resident_memory.py CHECKPOINT --rows sst2/dev.tsv

The entry's graph computes a batch in runs of so many tokens. Beside it stand the same graph with runs of
other sizes, or with one run for whatever it is asked, and ONNX Runtime's own ways to hold less. Each is a
process of its own:

- in one process with ONNX Runtime alone;
- served by the bundled Triton, over gRPC.

All answer the same requests in turns: first one short text, then three times 32 texts of 512 tokens, then
round after round of mixed traffic, for so many seconds each. Memory is what is resident, and the most that
has been, of all processes of a server together. Beside the texts of a second stand the seconds of processors
that a text takes: other work on the machine changes them less.

Writes `resident_memory.csv`, a line for each part and way with the environment. Prints of each part the last
memory, and the medians of rates and seconds, with their ratios to the first way's in the same place and turn.
"""

import multiprocessing
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import psutil
import typer
from clients import Asker
from onnx import numpy_helper

from sparse_serve.data import read_data
from sparse_serve.op_library import library_path
from sparse_serve.profiling.memory import peak_bytes, resident_bytes
from sparse_serve.repository.config import GRAPH_NAME
from sparse_serve.repository.signature import TEXT_INPUT, nested
from sparse_serve.runs import RUN_TOKENS
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.server import ServerOptions

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from commands import exit_on_sigterm
from entries import export
from environment import columns, environment
from lines import Line, read_lines, write_lines
from options import REPOSITORY, Add, Checkpoint, Repository, Results, Rows
from servers import OUTPUT, server_version

NAME = "reviews"
MIB = 1 << 20
ONE_RUN = 1 << 30
LARGE_TEXTS, LARGE_ROUNDS = 32, 3
ROUND_SHORT, ROUND_BATCHES, ROUND_LONG, LARGEST_BATCH = 35, 10, 5, 32
SHRINKAGE = "memory.enable_memory_arena_shrinkage"

Texts = npt.NDArray[np.object_]
Ask = Callable[[Texts], object]


@dataclass(frozen=True)
class Way:
    """How a model is run: where, how many tokens at a time, and with what of ONNX Runtime."""

    place: str
    run_tokens: int = RUN_TOKENS
    arena: bool = True
    shrinks: bool = False

    def __str__(self) -> str:
        run = "one run" if self.run_tokens == ONE_RUN else f"runs of {self.run_tokens}"
        return run + ("" if self.arena else ", no arena") + (", arena shrinks" if self.shrinks else "")


IN_PROCESS, SERVED = "in one process", "served"
WAYS = (
    Way(IN_PROCESS, ONE_RUN),
    Way(IN_PROCESS),
    Way(IN_PROCESS, 512),
    Way(IN_PROCESS, 2048),
    Way(IN_PROCESS, arena=False),
    Way(IN_PROCESS, shrinks=True),
    Way(IN_PROCESS, ONE_RUN, arena=False),
    Way(IN_PROCESS, ONE_RUN, shrinks=True),
    Way(SERVED, ONE_RUN),
    Way(SERVED),
)


@dataclass(frozen=True)
class Asked:
    """A way at work: what asks it, its processes, and the version of the server that it has."""

    ask: Ask
    process_ids: Callable[[], Sequence[int]]
    triton: str = ""

    def answer(self, requests: Sequence[Texts]) -> Line:
        """Answer requests; return how fast, at what cost, and what is resident then."""
        started, before = time.perf_counter(), self._processor_seconds()
        for texts in requests:
            self.ask(texts)
        took, processors = time.perf_counter() - started, self._processor_seconds() - before
        count = sum(map(len, requests))
        return {
            "resident_mib": f"{resident_bytes(self.process_ids()) / MIB:.0f}",
            "most_mib": f"{peak_bytes(self.process_ids()) / MIB:.0f}",
            "texts_per_s": f"{count / took:.2f}",
            "processor_ms_a_text": f"{processors / count * 1000:.3f}",
            **columns("load_average"),
        }

    def _processor_seconds(self) -> float:
        times = (psutil.Process(each).cpu_times() for each in self.process_ids())
        return sum(each.user + each.system for each in times)


def main(
    checkpoint: Checkpoint,
    *,
    rows: Rows,
    repository: Repository = REPOSITORY,
    results: Results = Path(__file__).parent,
    seconds: Annotated[float, typer.Option(help="Of mixed traffic, each way.")] = 300,
    place: Annotated[str | None, typer.Option(help="One of the two places.", show_default="both")] = None,
    only: Annotated[
        str | None, typer.Option(help="Ways, separated by semicolons.", show_default="all")
    ] = None,
    add: Add = False,
) -> None:
    """Export what is missing, measure, and write what came out."""
    exit_on_sigterm()
    ways = [way for way in WAYS if place in (None, way.place) and (not only or str(way) in only.split(";"))]
    if not ways:
        raise typer.BadParameter(f"--only names no way of these: {'; '.join(dict.fromkeys(map(str, WAYS)))}")
    export(checkpoint, repository, NAME)
    texts = [row.text for row in read_data(rows).rows]
    path = results / "resident_memory.csv"
    kept = read_lines(path) if add else []
    lines: list[Line] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        asked = {way: stack.enter_context(at_work(way, repository / NAME, folder)) for way in ways}
        about = environment(max(each.triton for each in asked.values()))
        for line in measure(asked, texts, seconds):
            lines.append(about | {"seconds": f"{seconds:g}"} | line)
            write_lines(path, [*kept, *lines])  # what there is, should it be ended
    report(ways, lines)


def measure(asked: Mapping[Way, Asked], texts: Sequence[str], seconds: float) -> Iterator[Line]:
    """Yield a line for each part and way, the ways in turns."""
    long = [" ".join(texts[start : start + 60]) for start in range(LARGE_TEXTS)]
    draw = random.Random(0)
    large = [column(long)]
    parts = [("one short text", [column(texts[:1])])] + [("32 x 512 tokens", large)] * LARGE_ROUNDS
    spent = dict.fromkeys(asked, 0.0)
    order = list(asked)
    while parts or min(spent.values()) < seconds:
        mixed = [] if parts else mixed_traffic(draw, texts, long)
        part, requests = parts.pop(0) if parts else ("mixed traffic", mixed)
        for way in order:
            started = time.monotonic()
            told = asked[way].answer(requests)
            if mixed:
                spent[way] += time.monotonic() - started
            yield {"place": way.place, "way": str(way), "part": part} | told
        order = order[1:] + order[:1]


def mixed_traffic(draw: random.Random, texts: Sequence[str], long: Sequence[str]) -> list[Texts]:
    """Return the requests of one round: seven in ten of one short text, two of several, one of 512 tokens."""
    requests = [column([draw.choice(texts)]) for _ in range(ROUND_SHORT)]
    requests += [column(draw.choices(texts, k=draw.randint(2, LARGEST_BATCH))) for _ in range(ROUND_BATCHES)]
    requests += [column([draw.choice(long)]) for _ in range(ROUND_LONG)]
    draw.shuffle(requests)
    return requests


def column(texts: Sequence[str]) -> Texts:
    return np.array(texts, object)[:, None]


@contextmanager
def at_work(way: Way, entry: Path, folder: Path) -> Iterator[Asked]:
    """Run a way in a process of its own, or in a server, of a copy of the entry."""
    repository = folder / f"{way.place}.{way}".replace(" ", "_")
    shutil.copytree(entry, repository / NAME)
    write_runs(repository / NAME / "1" / GRAPH_NAME, way.run_tokens)
    if way.place == SERVED:
        # The graph that was written to is not the manifest's.
        options = ServerOptions(repository, http_port=0, grpc_port=0, metrics_port=0, verify=False)
        with TritonServer(options) as server:
            asker = Asker(server.grpc_url, "grpc", NAME)
            version = server_version(server.grpc_url)
            yield Asked(lambda texts: asker.ask({TEXT_INPUT: texts}), server.process_ids, version)
        return
    context = multiprocessing.get_context("spawn")  # a process that has nothing of this one's
    ours, theirs = context.Pipe()
    process = context.Process(
        target=run_alone, args=(theirs, repository / NAME / "1" / GRAPH_NAME, way), daemon=True
    )
    process.start()
    try:
        ours.recv()

        def ask(texts: Texts) -> object:
            ours.send(texts)
            return ours.recv()

        yield Asked(ask, lambda: [process.pid or 0])
    finally:
        ours.send(None)
        process.join()


def write_runs(graph: Path, run_tokens: int) -> None:
    """Have a graph compute so many tokens at a time."""
    model = onnx.load(graph)
    (loop,) = (node for node in model.graph.node if node.op_type == "Loop")
    (within,) = (node for node in nested([loop]) if node.op_type == "LessOrEqual")
    (most,) = (node for node in nested([loop]) if within.input[1] in node.output)
    (limit,) = (each for each in model.graph.initializer if each.name == most.input[1])
    limit.CopyFrom(numpy_helper.from_array(np.array(run_tokens, np.int32), limit.name))
    onnx.save(model, graph)


def run_alone(asked: Connection, graph: Path, way: Way) -> None:
    """Answer requests by ONNX Runtime alone, until there are no more."""
    options, run_options = onnxruntime.SessionOptions(), onnxruntime.RunOptions()
    options.register_custom_ops_library(str(library_path()))
    options.enable_cpu_mem_arena = way.arena
    if way.shrinks:
        run_options.add_run_config_entry(SHRINKAGE, "cpu:0")
    session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    asked.send(None)
    while (texts := asked.recv()) is not None:
        asked.send(session.run([OUTPUT], {TEXT_INPUT: texts}, run_options)[0])


def report(ways: Sequence[Way], lines: Sequence[Line]) -> None:
    """Print what each part comes to, way by way."""
    for part in dict.fromkeys(line["part"] for line in lines):
        for way in ways:
            first = next(each for each in ways if each.place == way.place)
            own, base = (
                [
                    line
                    for line in lines
                    if (line["part"], line["place"], line["way"]) == (part, way.place, name)
                ]
                for name in (str(way), str(first))
            )
            told = f"{part:15} {way.place:14} {way!s:27} {own[-1]['resident_mib']:>4} MiB, "
            told += f"at most {own[-1]['most_mib']:>4}"
            for name, unit in (("texts_per_s", "texts/s"), ("processor_ms_a_text", "ms")):
                values, others = ([float(line[name]) for line in each] for each in (own, base))
                # One text takes less than processors' clocks count.
                ratios = [a / b for a, b in zip(values, others, strict=True) if b]
                beside = f", {statistics.median(ratios):.2f} x" if ratios else ""
                told += f"  {statistics.median(values):6.1f} {unit}{beside}"
            typer.echo(told)


if __name__ == "__main__":
    typer.run(main)
