"""Good clients beside bad ones: whether anything fails for the good, and how much longer they wait.

    python benchmarks/serving/poison.py CHECKPOINT --rows sst2/dev.tsv

Exports CHECKPOINT as an entry that reads pairs, with its graph of token ids. Four good clients ask it one
text after another for a minute alone, and for a minute beside four that send in turn

- ids that no vocabulary has, 600 tokens, and numbers of another type, to the graph of token ids
- numbers for texts, 600 tokens, 60 MB, pairs of 2 x 64 kB and broken UTF-8, to the entry

half of each over HTTP, half over gRPC, all in binary. The two minutes come in turns of some seconds, so that
what else the machine does disturbs both alike. Every answer to a good client is held against what it
was alone: another is a failure. The bad ones would in earnest be on another machine: they are a session of
their own that runs where no other wants to, and send bytes that were made before; what the server takes to
receive them counts. With `--client-cores` they and the good ones have cores of their own, and the server the
others. They send without a pause, unless `--pause` gives them one. With `--gateway` all ask by way of the
HAProxy that `deploy` configures and puts beside the server, which refuses what is too large.

Writes `poison.csv`: lines of the good clients, of what each kind of bad request got, and of the processor
time that the processes took, with the environment.
"""

import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event
from typing import Annotated

import grpc
import numpy as np
import psutil
import tritonclient.grpc
import tritonclient.http
import typer
from clients import TIMEOUT_S, Answer, Asker, Request, one_line, tensors_of
from cores import ClientCores, share_out
from gateways import Urls, behind_gateway, urls_of
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse
from tritonclient.utils import InferenceServerException

from sparse_serve.connection import Protocol
from sparse_serve.data import read_data
from sparse_serve.profiling.subjects import on_cores
from sparse_serve.profiling.workload import Tokens
from sparse_serve.repository.config import graph_name
from sparse_serve.repository.entries import Entry, read_entry
from sparse_serve.repository.signature import TEXT_INPUT, TEXT_PAIR_INPUT
from sparse_serve.tasks.encoding import text_column
from sparse_serve.triton.launcher import TritonServer

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from commands import exit_on_sigterm
from entries import export
from environment import environment
from lines import Line, read_lines, write_lines
from options import REPOSITORY, Add, Checkpoint, Repository, Results, Rows
from percentiles import percentile_ms
from servers import OUTPUT, served, server_version

NAME = "pairs"
CLIENTS: Sequence[Protocol] = ("http", "grpc", "http", "grpc")
TEXTS = 64
TOLERANCE = 1e-4
LOWEST_PRIORITY = 19
WARM_UP_S = 2.0


class Sender:
    """A client that sends what was made before: to make 60 MB is more work than to receive them."""

    def __init__(self, url: str, protocol: Protocol, model: str, requests: Mapping[str, Request]) -> None:
        self._url, self._protocol, self._model = url, protocol, model
        self._made = {kind: self._make(request) for kind, request in requests.items()}
        if protocol == "grpc":
            channel = grpc.insecure_channel(url, options=[("grpc.max_send_message_length", -1)])
            self._call = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                response_deserializer=ModelInferResponse.FromString,
            )

    def _make(self, request: Request) -> tuple[bytes, int | None]:
        """Return a request's bytes and, over HTTP, how many of them are JSON."""
        if self._protocol == "http":
            inputs = tensors_of(tritonclient.http, request)
            wanted = [tritonclient.http.InferRequestedOutput(OUTPUT, binary_data=False)]
            body, length = tritonclient.http.InferenceServerClient.generate_request_body(
                inputs, outputs=wanted
            )
            return body, length
        inputs = tensors_of(tritonclient.grpc, request)
        message = ModelInferRequest(
            model_name=self._model,
            inputs=[each._get_tensor() for each in inputs],
            raw_input_contents=[each._get_content() for each in inputs],
        )
        return message.SerializeToString(), None

    def send(self, kind: str) -> str:
        """Send a request of a kind; return what came back."""
        body, json_length = self._made[kind]
        if self._protocol == "grpc":
            values = self._call(body, timeout=TIMEOUT_S)
            index = [each.name for each in values.outputs].index(OUTPUT)
            logits = np.frombuffer(values.raw_output_contents[index], np.float32)
            return answer_of(logits)
        connection = HTTPConnection(self._url, timeout=TIMEOUT_S)
        try:
            headers = {"Inference-Header-Content-Length": str(json_length)} if json_length else {}
            connection.request("POST", f"/v2/models/{self._model}/infer", body, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            connection.close()
        if response.status != HTTPStatus.OK:
            raise InferenceServerException(answer["error"])
        (logits,) = (each["data"] for each in answer["outputs"] if each["name"] == OUTPUT)
        return answer_of(np.array(logits, np.float32))


def answer_of(logits: Answer) -> str:
    return "an answer" if np.isfinite(logits).all() else "NaN"


@dataclass
class Seen:
    """What clients saw: the seconds that each answer took, and what failed."""

    seconds: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    def line(self) -> Line:
        return {
            "requests": str(len(self.seconds)),
            "failed": str(sum(self.failures.values())),
            "p50_ms": f"{percentile_ms(self.seconds, 50):.1f}",
            "p99_ms": f"{percentile_ms(self.seconds, 99):.1f}",
            "failures": "; ".join(self.failures),
        }


@dataclass(frozen=True)
class Load:
    """How long the good send, in how many turns, and how long the bad wait between requests, in seconds."""

    seconds: float
    turns: int
    pause: float


def main(  # noqa: PLR0913  one parameter per option
    checkpoint: Checkpoint,
    *,
    rows: Rows,
    repository: Repository = REPOSITORY,
    results: Results = Path(__file__).parent,
    seconds: Annotated[float, typer.Option(help="Of the good alone, and of the good beside the bad.")] = 60,
    turns: Annotated[int, typer.Option(min=1, help="In how many turns, the good alone first.")] = 6,
    pause: Annotated[float, typer.Option(help="Seconds between an answer and a bad one's next request.")] = 0,
    kinds: Annotated[
        str | None, typer.Option(help="Kinds of bad requests, separated by commas.", show_default="all")
    ] = None,
    models: Annotated[str, typer.Option(help="What is asked, separated by commas.")] = "text,ids",
    client_cores: ClientCores = 0,
    gateway: Annotated[
        bool, typer.Option("--gateway", help="Ask by way of the gateway that `deploy` writes; needs HAProxy.")
    ] = False,
    add: Add = False,
) -> None:
    """Export what is missing, measure, and write what came out."""
    exit_on_sigterm()
    export(checkpoint, repository, NAME, "--text-pair", "--token-model")
    entry = read_entry(repository / NAME)
    texts = [row.text for row in read_data(rows).rows][:TEXTS]
    lines: list[Line] = []
    cores = share_out(client_cores)
    with ExitStack() as stack:
        with on_cores(cores.server):
            server = stack.enter_context(served(repository, [NAME, graph_name(NAME)], cores.edit()))
            way = behind_gateway(server, entry) if gateway else nullcontext(urls_of(server))
            urls = stack.enter_context(way)
        for asked in models.split(","):
            model = NAME if asked == "text" else graph_name(NAME)
            good = texts_of(texts) if asked == "text" else ids_of(entry, texts)
            chosen = kinds and kinds.split(",")
            bad = [kind for kind in poison_of(model) if not chosen or kind in chosen]
            if not bad:
                raise typer.BadParameter(
                    f"none of {kinds} is for {model}: it has {', '.join(poison_of(model))}"
                )
            with on_cores(cores.clients):
                found = compare(server, urls, model, good, bad, Load(seconds, turns, pause))
                lines += [{"gateway": "yes" if gateway else "no"} | line for line in found]
        about = environment(server_version(server.grpc_url)) | cores.line()
    path = results / "poison.csv"
    write_lines(path, [*(read_lines(path) if add else ()), *(about | line for line in lines)])
    for line in lines:
        typer.echo("  ".join(line.values()))


def texts_of(texts: Sequence[str]) -> list[Request]:
    return [{TEXT_INPUT: text_column([text]), TEXT_PAIR_INPUT: text_column([""])} for text in texts]


def ids_of(entry: Entry, texts: Sequence[str]) -> list[Request]:
    manifest = entry.manifest
    tokens = Tokens(entry.path / "tokenizer.json", manifest.task, manifest.max_length)
    return [tokens.batch([text]).arrays for text in texts]


def poison_of(model: str) -> dict[str, Request]:
    """Return a request of each bad kind that there is for a model."""
    if model == NAME:
        column = np.array([[b""]], object)

        def texts(text: bytes, pair: bytes = b"") -> Request:
            return {
                name: np.array([[each]], object)
                for name, each in ((TEXT_INPUT, text), (TEXT_PAIR_INPUT, pair))
            }

        return {
            "wrong type": {TEXT_INPUT: np.ones((1, 1), np.int64), TEXT_PAIR_INPUT: column},
            "600 tokens": texts(b"film " * 600),
            "60 MB": texts(b"a fine film " * 5_000_000),
            "pair of 2 x 64 kB": texts(b"one fine film " * 4682, b"another bad film " * 3855),
            "broken UTF-8": texts(b"a fine \xe4\xb8"),
        }

    def ids(length: int, number: int = 5, dtype: type = np.int64) -> Request:
        values = {"input_ids": number, "attention_mask": 1, "token_type_ids": 0}
        return {name: np.full((1, length), value, dtype) for name, value in values.items()}

    return {
        "bad ids": ids(16, 10**6),
        "negative ids": ids(16, -7),
        "wrong type": ids(16, dtype=np.float32),
        "600 tokens": ids(600),
    }


def compare(
    server: TritonServer, urls: Urls, model: str, good: Sequence[Request], bad: Sequence[str], load: Load
) -> Iterator[Line]:
    """Yield what good clients of a model saw alone and beside bad ones, and what those got."""
    asker = Asker(urls["grpc"], "grpc", model)
    crew = Crew(urls, model, good, [asker.ask(request) for request in good])
    crew.send(WARM_UP_S, Seen())
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=poison, args=(theirs, urls, model, bad, load.pause), daemon=True)
    process.start()
    first, *rest = server.process_ids()
    meters = [
        Meter({"triton": [first], "models": rest, "good": [os.getpid()], "bad": [process.pid or 0]})
        for _ in range(2)
    ]
    alone, beside = Seen(), Seen()
    for _ in range(load.turns):
        with meters[0].running():
            crew.send(load.seconds / load.turns, alone)
        ours.send(True)
        ours.recv()  # each has had an answer
        with meters[1].running():
            crew.send(load.seconds / load.turns, beside)
        ours.send(False)
        ours.recv()  # each has had its last
    ours.send(None)
    got: dict[tuple[str, str], list[float]] = ours.recv()
    process.join()
    ratio = {"p99_ratio": f"{percentile_ms(beside.seconds, 99) / percentile_ms(alone.seconds, 99):.2f}"}
    yield {"model": model, "who": "good, alone"} | alone.line() | meters[0].line()
    yield {"model": model, "who": "good, beside bad"} | beside.line() | ratio | meters[1].line()
    for (kind, answer), waited in sorted(got.items()):
        yield {"model": model, "who": f"bad, {kind}"} | Seen(waited).line() | {"answer": answer}


class Crew:
    """Good clients of a model, each with a connection of its own, which no other thread may use over HTTP."""

    def __init__(self, urls: Urls, model: str, good: Sequence[Request], right: Sequence[Answer]) -> None:
        self._urls, self._model = urls, model
        self._good = list(zip(good, right, strict=True))

    def send(self, seconds: float, seen: Seen) -> None:
        """Send for so long, one request after another."""
        end = time.monotonic() + seconds
        with ThreadPoolExecutor(len(CLIENTS)) as pool:
            list(pool.map(lambda number: self._send(number, end, seen), range(len(CLIENTS))))

    def _send(self, number: int, end: float, seen: Seen) -> None:
        protocol = CLIENTS[number]
        asker = Asker(self._urls[protocol], protocol, self._model)
        first = number * len(self._good) // len(CLIENTS)
        for request, right in cycle([*self._good[first:], *self._good[:first]]):
            start = time.monotonic()
            if start > end:
                return
            try:
                answer = asker.ask(request)
            except Exception as error:  # whatever a client raises
                seen.failures[one_line(error)] += 1
                continue
            seen.seconds.append(time.monotonic() - start)
            if not np.allclose(answer, right, rtol=0, atol=TOLERANCE):
                seen.failures["another answer"] += 1


def poison(connection: Connection, urls: Urls, model: str, kinds: Sequence[str], pause: float) -> None:
    """Send bad requests whenever told to, and tell in the end how long each kind and answer took."""
    give_way()
    requests = {kind: request for kind, request in poison_of(model).items() if kind in kinds}
    order = list(requests)
    got: dict[tuple[str, str], list[float]] = {}
    senders = [Sender(urls[protocol], protocol, model, requests) for protocol in CLIENTS]
    turns = [
        cycle(order[number % len(order) :] + order[: number % len(order)]) for number in range(len(CLIENTS))
    ]

    def send(number: int, begun: Event, end: Event) -> None:
        for kind in turns[number]:
            start = time.monotonic()
            try:
                answer = senders[number].send(kind)
            except Exception as error:  # whatever a client raises
                answer = one_line(error)
            got.setdefault((kind, answer), []).append(time.monotonic() - start)
            begun.set()
            if end.wait(pause):
                return

    while connection.recv():
        end = Event()
        begun = [Event() for _ in CLIENTS]
        with ThreadPoolExecutor(len(CLIENTS)) as pool:
            sending = [pool.submit(send, number, begun[number], end) for number in range(len(CLIENTS))]
            for event in begun:
                event.wait(TIMEOUT_S)
            connection.send(None)
            connection.recv()
            end.set()
        for each in sending:
            each.result()
        connection.send(None)
    connection.send(got)


def give_way() -> None:
    """Have this process run where no other wants to.

    Linux shares cores among sessions first, and only within one by how nice a process is: the session of
    its own is made as nice.
    """
    os.setsid()
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(FileNotFoundError):  # a kernel that does not share by sessions
        Path("/proc/self/autogroup").write_text(str(LOWEST_PRIORITY), encoding="utf-8")


class Meter:
    """How many cores groups of processes take while it runs."""

    def __init__(self, processes: Mapping[str, Sequence[int]]) -> None:
        self._processes = processes
        self._took = dict.fromkeys(processes, 0.0)
        self._seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        before = {name: cpu_seconds(ids) for name, ids in self._processes.items()}
        start = time.monotonic()
        yield
        self._seconds += time.monotonic() - start
        for name, ids in self._processes.items():
            self._took[name] += cpu_seconds(ids) - before[name]

    def line(self) -> Line:
        return {f"cores_{name}": f"{took / self._seconds:.2f}" for name, took in self._took.items()}


def cpu_seconds(process_ids: Sequence[int]) -> float:
    return float(sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in process_ids))


if __name__ == "__main__":
    typer.run(main)
