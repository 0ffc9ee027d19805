"""Text in the graph: what it costs beside token ids and beside the library in this process, and its answers.

    python benchmarks/serving/text_in_the_graph.py CHECKPOINT --rows sst2/dev.tsv

Exports CHECKPOINT, a classifier of single texts, with the tokenizer in the graph and with it in the server,
and a model that costs next to nothing with the same tokenizer. Then, on the cores that this process may use:

- text over ids: 8 senders ask the small model for texts, and its graph of token ids for the same texts,
  tokenized beforehand. Texts per second, over the same protocol.
- served over library: texts per second of `Classifier` in this process, and of the server with so many
  senders, or so many texts a request, that it is never idle.
- added by the server: the latency of one text with one sender, over HTTP and gRPC, less that of `Classifier`.
- the rows of a file, over HTTP and gRPC: labels, token counts, flags and logits against those of the
  server-side tokenizer, and a plain `onnxruntime` session with the op library against them too.
- from the start of the server's process, and of the command `serve`, to the first answer.

Times are taken in windows, a window of each in turn, several rounds. A ratio is the median of the rounds' own
ratios; beside it stands that of the best windows. Writes `text_in_the_graph.csv`, a line per window and
figure, with the environment.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Annotated

import numpy as np
import onnxruntime
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
OVER_HTTP, OVER_GRPC, IN_PROCESS = "one sender, HTTP", "one sender, gRPC", "library, one text"


@dataclass(frozen=True)
class Asked:
    """What is measured: senders at work side by side, whose requests have so many texts each."""

    senders: Sequence[Load]
    texts: int = 1

    def per_second(self, window: Window) -> float:
        return window.requests_per_second * self.texts


@dataclass(frozen=True)
class Figure:
    """What is asked for: a number made of those of two loads, named by what was measured."""

    name: str
    wanted: str
    loads: tuple[str, str]
    is_latency: bool = False

    def of(self, first: float, second: float) -> float:
        return first - second if self.is_latency else first / second


FIGURES = (
    Figure("small model, 8 senders: text over ids", ">= 0.95", ("small, text", "small, ids")),
    Figure("served over library, 64 senders of one text", ">= 0.9", ("single texts", "library, many texts")),
    Figure("served over library, 4 senders of 32", ">= 0.9", ("full requests", "library, many texts")),
    Figure("added to one text over HTTP, ms", "<= 1", (OVER_HTTP, IN_PROCESS), is_latency=True),
    Figure("added to one text over gRPC, ms", "<= 1", (OVER_GRPC, IN_PROCESS), is_latency=True),
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
        loads = make_loads(stack, server, repository, texts)
        lines = [
            line | {"met": met(line)} if "wanted" in line else line
            for line in measure(loads, seconds, rounds)
        ]
    for part in ((), equal_rows(repository, texts), first_answers(repository, texts[0], starts)):
        lines += [line | {"met": met(line)} for line in part]
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


class OverHttp:
    """A sender of single texts over HTTP, by stock tritonclient; the others are of gRPC."""

    def __init__(self, http_url: str, model: str, texts: Sequence[str]) -> None:
        self._url, self._model = http_url, model
        self._own = threading.local()  # a window has a thread of its own, and a client is for one
        self._texts = cycle(texts)

    def request(self) -> Timing:
        if not hasattr(self._own, "client"):
            self._own.client = tritonclient.http.InferenceServerClient(self._url)
        start = time.perf_counter_ns()
        column = text_column([next(self._texts)])
        text = tritonclient.http.InferInput(TEXT_INPUT, column.shape, "BYTES")
        text.set_data_from_numpy(column)
        wanted = [tritonclient.http.InferRequestedOutput(OUTPUT)]
        sent = time.perf_counter_ns()
        result = self._own.client.infer(self._model, [text], outputs=wanted)
        answered = time.perf_counter_ns()
        result.as_numpy(OUTPUT)
        return Timing(sent - start, answered - sent, time.perf_counter_ns() - answered)

    def server_times(self, at_least: int = 0) -> ServerTimes:
        return ServerTimes()


def make_loads(
    stack: ExitStack, server: TritonServer, repository: Path, texts: Sequence[str]
) -> dict[str, Asked]:
    entry = read_entry(repository / DEMO)
    classifier = Classifier(entry.path)
    tokens = tokens_of(entry)
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
        OVER_HTTP: Asked([OverHttp(server.http_url, DEMO, texts)]),
        OVER_GRPC: asked(DEMO, 1),
        IN_PROCESS: Asked([InProcess(classifier, parts(texts, 1))]),
    }


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
                "median_ms": f"{median_ms(window):.2f}",
                "client_cores": f"{window.client_cores:.2f}",
                **columns("load_average"),
            }
        order = order[1:] + order[:1]
    for figure in FIGURES:
        values = {
            name: [
                median_ms(each) if figure.is_latency else loads[name].per_second(each)
                for each in windows[name]
            ]
            for name in figure.loads
        }
        first, second = values.values()
        best = min if figure.is_latency else max
        rounds_own = [figure.of(a, b) for a, b in zip(first, second, strict=True)]
        yield {
            "figure": figure.name,
            "value": f"{statistics.median(rounds_own):.3f}",
            "best": f"{figure.of(best(first), best(second)):.3f}",
            "wanted": figure.wanted,
        }


def met(line: Line) -> str:
    """Return whether a figure, to the digits that are written, is what was wanted."""
    bound = line["wanted"].split()
    value, limit = float(line["value"]), float(bound[-1])
    if bound[0] == ">=":
        return "yes" if value >= limit else "no"
    return "yes" if value <= limit else "no"


def median_ms(window: Window) -> float:
    return statistics.median(window.latencies_ms())


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
