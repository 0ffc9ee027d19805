"""Text in the graph: what it costs beside token ids and beside the library in this process, and its answers.

    python benchmarks/serving/text_in_the_graph.py CHECKPOINT --rows sst2/dev.tsv

Exports CHECKPOINT, a classifier of single texts, with the tokenizer in the graph and with it in the server,
and a model that costs next to nothing with the same tokenizer. Then, on the cores that this process may use:

- added by the server: the latency of one text with one sender, over HTTP and gRPC, less that of `Classifier`
  for the same text. Each way in turn is asked for a few texts one after another, then for the next few, in an
  order drawn anew each time; the first two of a turn, when caches and threads are another's, are not counted.
- text over ids: 8 senders ask the small model for texts, and its graph of token ids for the same texts,
  tokenized beforehand. Texts per second, over the same protocol.
- served over library: texts per second of `Classifier` in this process, and of the server with so many
  senders, or so many texts a request, that it is never idle.
- the rows of a file, over HTTP and gRPC: labels, token counts, flags and logits against those of the
  server-side tokenizer, and a plain `onnxruntime` session with the op library against them too.
- from the start of the server's process, and of the command `serve`, to the first answer.

Throughput is taken in windows, a window of each in turn, several rounds. A ratio is the median of the rounds'
own ratios; beside it stands that of the best windows. What is added is the median over all texts, beside it
that of the best round. Writes `text_in_the_graph.csv`, a line per window, round and figure, with the
environment.
"""

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, cycle, islice, pairwise
from operator import sub, truediv
from pathlib import Path
from types import ModuleType
from typing import Annotated

import numpy as np
import onnxruntime
import tritonclient.grpc
import tritonclient.http
import typer

from sparse_serve.classifier import Classifier
from sparse_serve.client import Client
from sparse_serve.connection import Protocol
from sparse_serve.data import read_data
from sparse_serve.op_library import library_path
from sparse_serve.profiling.load import TritonLoad
from sparse_serve.profiling.windows import Load, ServerTimes, Timing, Window, measure_window
from sparse_serve.profiling.workload import Batch, Tokens
from sparse_serve.replies import Prediction
from sparse_serve.repository.config import GRAPH_NAME, graph_name
from sparse_serve.repository.entries import Entry, read_entry
from sparse_serve.repository.signature import TEXT_INPUT
from sparse_serve.tasks.encoding import text_column
from sparse_serve.triton.launcher import TritonServer

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from commands import COMMAND, ending, exit_on_sigterm
from entries import export, export_small
from environment import columns, environment
from lines import Line, write_lines
from options import REPOSITORY, Checkpoint, Repository, Results, Rows
from parts import parts
from servers import OUTPUT, make_senders, served

DEMO, FRONT, SMALL = "reviews", "reviews_front", "small"
PROTOCOLS: Sequence[Protocol] = ("http", "grpc")
SMALL_SENDERS, SINGLE_SENDERS = 8, 64
FULL_SENDERS, FULL_TEXTS = 4, 32
LIBRARY_TEXTS = 256
SETTLING = 2
IN_PROCESS = "library"
TURNS, TURN_TEXTS = 20, 20  # of each way in a round, and what it is asked for in each


# Has one text answered.
Way = Callable[[str], object]


@dataclass(frozen=True)
class Asked:
    """What is measured: senders at work side by side, whose requests have so many texts each."""

    senders: Sequence[Load]
    texts: int = 1

    def per_second(self, window: Window) -> float:
        return window.requests_per_second * self.texts


@dataclass(frozen=True)
class Figure:
    """What is asked for: the ratio of two loads' throughput, named by what was measured."""

    name: str
    wanted: str
    loads: tuple[str, str]


FIGURES = (
    Figure("small model, 8 senders: text over ids", ">= 0.95", ("small, text", "small, ids")),
    Figure("served over library, 64 senders of one text", ">= 0.9", ("single texts", "library, many texts")),
    Figure("served over library, 4 senders of 32", ">= 0.9", ("full requests", "library, many texts")),
)


def main(
    checkpoint: Checkpoint,
    *,
    rows: Rows,
    repository: Repository = REPOSITORY,
    results: Results = Path(__file__).parent,
    seconds: Annotated[float, typer.Option(help="Of each window.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Windows of each load.")] = 5,
    starts: Annotated[int, typer.Option(min=1, help="How often a server is started.")] = 3,
) -> None:
    """Export what is missing, measure, and write what came out."""
    exit_on_sigterm()
    export(checkpoint, repository, DEMO)
    export(checkpoint, repository, FRONT, "--tokenizer=server")
    export_small(checkpoint, repository, SMALL, "--token-model")
    texts = [row.text for row in read_data(rows).rows]
    with ExitStack() as stack:
        server = stack.enter_context(served(repository, [DEMO, SMALL, graph_name(SMALL)]))
        about = environment(TritonLoad(server.grpc_url, SMALL, OUTPUT).server_version)
        classifier = Classifier(repository / DEMO)
        lines = [*added(make_ways(stack, server, classifier), texts, rounds)]
        lines += measure(make_loads(stack, server, classifier, texts), seconds, rounds)
    for part in ((), equal_rows(repository, texts), first_answers(repository, texts[0], starts)):
        lines += part
        lines = [line | {"met": met(line)} if "wanted" in line else line for line in lines]
        write_lines(results / "text_in_the_graph.csv", [about | line for line in lines])  # should it be ended
    for line in lines:
        if line.get("wanted"):
            typer.echo("{figure}: {value} (wanted {wanted}, met: {met}), best {best}".format_map(line))


class InProcess:
    """The library in this process: the same calls over and over."""

    def __init__(self, classifier: Classifier, calls: Sequence[Sequence[str]]) -> None:
        self._classifier = classifier
        self._calls = calls
        self._next = 0

    def request(self) -> Timing:
        start = time.perf_counter_ns()
        self._classifier(self._calls[self._next])
        self._next = (self._next + 1) % len(self._calls)
        return Timing(0, time.perf_counter_ns() - start, 0)

    def server_times(self, at_least: int = 0) -> ServerTimes:
        return ServerTimes()


def make_loads(
    stack: ExitStack, server: TritonServer, classifier: Classifier, texts: Sequence[str]
) -> dict[str, Asked]:
    tokens = tokens_of(read_entry(server.repository / DEMO))
    singles = [tokens.batch([text]) for text in texts]
    fulls = [tokens.batch(part) for part in parts(texts, FULL_TEXTS)]

    def asked(model: str, senders: int, batches: Sequence[Batch] = singles) -> Asked:
        return Asked(make_senders(stack, server.grpc_url, model, batches, senders), len(batches[0].texts))

    return {
        "small, text": asked(SMALL, SMALL_SENDERS),
        "small, ids": asked(graph_name(SMALL), SMALL_SENDERS),
        "single texts": asked(DEMO, SINGLE_SENDERS),
        "full requests": asked(DEMO, FULL_SENDERS, fulls),
        "library, many texts": Asked([InProcess(classifier, parts(texts, LIBRARY_TEXTS))], LIBRARY_TEXTS),
    }


def make_ways(stack: ExitStack, server: TritonServer, classifier: Classifier) -> dict[str, Way]:
    return {
        IN_PROCESS: lambda text: classifier([text]),
        "HTTP": sender(stack, tritonclient.http, server.http_url),
        "gRPC": sender(stack, tritonclient.grpc, server.grpc_url),
    }


def sender(stack: ExitStack, protocol: ModuleType, url: str) -> Way:
    """Return a way to ask the server by stock tritonclient, by the one of its modules that is given."""
    client = stack.enter_context(protocol.InferenceServerClient(url))

    def send(text: str) -> None:
        column = text_column([text])
        tensor = protocol.InferInput(TEXT_INPUT, column.shape, "BYTES")
        tensor.set_data_from_numpy(column)
        client.infer(DEMO, [tensor], outputs=[protocol.InferRequestedOutput(OUTPUT)]).as_numpy(OUTPUT)

    return send


def tokens_of(entry: Entry) -> Tokens:
    manifest = entry.manifest
    return Tokens(entry.path / "tokenizer.json", manifest.task, manifest.max_length, in_graph=True)


def measure(loads: dict[str, Asked], seconds: float, rounds: int) -> Iterator[Line]:
    """Yield a line for every window, and one for every figure."""
    windows: dict[str, list[Window]] = {name: [] for name in loads}
    order = list(loads)
    for number in range(rounds):
        for name in order:
            window = measure_window(loads[name].senders, seconds * 1000, SETTLING)
            windows[name].append(window)
            yield {
                "figure": name,
                "round": str(number),
                "texts_per_s": f"{loads[name].per_second(window):.1f}",
                "median_ms": f"{statistics.median(window.latencies_ms()):.2f}",
                "client_cores": f"{window.client_cores:.2f}",
                **columns("load_average"),
            }
        order = order[1:] + order[:1]
    for figure in FIGURES:
        first, second = ([loads[name].per_second(each) for each in windows[name]] for name in figure.loads)
        yield {
            "figure": figure.name,
            "value": f"{statistics.median(map(truediv, first, second)):.3f}",
            "best": f"{max(first) / max(second):.3f}",
            "wanted": figure.wanted,
        }


def added(ways: Mapping[str, Way], texts: Sequence[str], rounds: int) -> Iterator[Line]:
    """Yield a line for every way and round, and what asking a server adds to a text."""
    upcoming = cycle(parts(texts, TURN_TEXTS))
    drawn = random.Random(0)
    differences: dict[str, list[list[float]]] = {name: [] for name in ways if name != IN_PROCESS}
    for number in range(rounds):
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for turn in islice(upcoming, TURNS):
            for name in drawn.sample(list(ways), len(ways)):
                ask(ways[name], turn[:SETTLING])
                taken[name] += ask(ways[name], turn)
        for name, times in taken.items():
            median = f"{statistics.median(times):.2f}"
            yield {
                "figure": f"one text, {name}",
                "round": str(number),
                "median_ms": median,
                **columns("load_average"),
            }
        for name, found in differences.items():
            found.append(list(map(sub, taken[name], taken[IN_PROCESS])))
    for name, found in differences.items():
        yield {
            "figure": f"added to one text over {name}, ms",
            "value": f"{statistics.median(chain(*found)):.3f}",
            "best": f"{min(map(statistics.median, found)):.3f}",
            "wanted": "<= 1",
        }


def ask(way: Way, texts: Sequence[str]) -> list[float]:
    """Return what each text took by itself, in ms."""
    moments = [time.perf_counter()]
    for text in texts:
        way(text)
        moments.append(time.perf_counter())
    return [1000 * (end - start) for start, end in pairwise(moments)]


def met(line: Line) -> str:
    """Return whether a figure, to the digits that are written, is what was wanted."""
    bound = line["wanted"].split()
    value, limit = float(line["value"]), float(bound[-1])
    if bound[0] == ">=":
        return "yes" if value >= limit else "no"
    return "yes" if value <= limit else "no"


def equal_rows(repository: Path, texts: Sequence[str]) -> Iterator[Line]:
    """Yield how far answers are from those of the server-side tokenizer, over each protocol and by hand."""
    with served(repository, [DEMO, FRONT, graph_name(FRONT)]) as server:
        urls: dict[Protocol, str] = {"http": server.http_url, "grpc": server.grpc_url}
        found: dict[str, list[Prediction]] = {}
        for protocol in PROTOCOLS:
            with Client(urls[protocol], protocol) as client:
                expected = client.classify(FRONT, texts)
                found[protocol] = client.classify(DEMO, texts)
    found["onnxruntime"] = by_hand(repository / DEMO, texts)
    for way, predictions in found.items():
        pairs = list(zip(predictions, expected, strict=True))
        apart = max(np.abs(np.subtract(one.logits, other.logits)).max() for one, other in pairs)
        others = sum(
            (one.label, one.token_count, one.truncated) != (other.label, other.token_count, other.truncated)
            for one, other in pairs
        )
        of = f"{len(texts)} rows, {way}"
        yield {"figure": f"{of}: logits apart", "value": f"{apart:.1e}", "best": "", "wanted": "<= 1e-05"}
        yield {
            "figure": f"{of}: other labels, counts or flags",
            "value": str(others),
            "best": "",
            "wanted": "0",
        }


def by_hand(entry: Path, texts: Sequence[str]) -> list[Prediction]:
    """Ask a plain session, as anyone could."""
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(library_path()))
    session = onnxruntime.InferenceSession(entry / "1" / GRAPH_NAME, options)
    names = [*Prediction.outputs, "token_count", "truncated"]
    outputs = dict(
        zip(names, session.run(names, {TEXT_INPUT: np.array(texts, object)[:, None]}), strict=True)
    )
    outputs["label"] = text_column(outputs["label"][:, 0])
    return Prediction.read(outputs)


def first_answers(repository: Path, text: str, starts: int) -> Iterator[Line]:
    """Yield how long a fresh server takes to its first answer to a client."""
    ways: dict[str, Callable[[Path, str], float]] = {
        "server's process": of_process,
        "command serve": of_command,
    }
    seconds = {name: [way(repository, text) for _ in range(starts)] for name, way in ways.items()}
    for name, measured in seconds.items():
        yield {
            "figure": f"from the start of the {name} to an answer, s",
            "value": f"{statistics.median(measured):.2f}",
            "best": f"{min(measured):.2f}",
            "wanted": "<= 2",
        }


def of_process(repository: Path, text: str) -> float:
    with served(repository, [DEMO]) as server, Client(server.http_url) as client:
        client.classify(DEMO, [text])
        return seconds_since_start(server.process_ids()[0])


def seconds_since_start(process_id: int) -> float:
    """Return how long a process has run, by the kernel's own clock: the time of boot has whole seconds."""
    _, _, fields = Path(f"/proc/{process_id}/stat").read_text("utf-8").rpartition(") ")
    started = int(fields.split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def of_command(repository: Path, text: str) -> float:
    """It serves a repository that holds nothing else."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        shutil.copytree(repository / DEMO, Path(folder, DEMO))
        ports = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")
        log = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))
        started = time.monotonic()
        command: list[str | Path] = [COMMAND, "serve", folder, *ports]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        stack.enter_context(ending(process))
        assert process.stdout is not None
        ready = process.stdout.readline().split()
        if not ready:
            log.seek(0)
            raise SystemExit(f"serve ended: {log.read().strip()}")
        url = ready[1].removeprefix("http://")
        with Client(url) as client:
            client.classify(DEMO, [text])
        return time.monotonic() - started


if __name__ == "__main__":
    typer.run(main)
