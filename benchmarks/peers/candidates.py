"""What is measured: servers that are asked over HTTP, and processes that time their own calls."""

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import psutil

from sparse_serve.profiling.windows import ServerTimes, Stretch, Timing, Window, measure_open_window
from sparse_serve.triton.preflight import claim_ports

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from parts import parts
from servers import served

START_S, END_S, REQUEST_S = 180.0, 20.0, 300.0
PAUSE_S = 0.2
HOST = "127.0.0.1"
WORKER = Path(__file__).with_name("worker.py")
QUIET = {"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
"""Peers' environment variables: nothing is asked or told over the network."""

Place = Literal["served", "in process"]
Precision = Literal["fp32", "int8"]
SERVED: Place = "served"
IN_PROCESS: Place = "in process"
Probabilities = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Load:
    """So many requests in flight, of so many texts each."""

    in_flight: int
    texts: int

    def __str__(self) -> str:
        return f"{self.in_flight} x {self.texts}"


LOADS: Mapping[Place, Sequence[Load]] = {
    SERVED: (Load(1, 1), Load(8, 1), Load(32, 1), Load(2, 32)),
    IN_PROCESS: (Load(1, 1), Load(1, 32)),
}


class Running(Protocol):
    """A candidate at work."""

    def process_ids(self) -> Sequence[int]:
        """Return the ids of all its processes."""

    def probabilities(self, texts: Sequence[str]) -> Probabilities:
        """Return the probability of each class, `(N, C)`, of texts asked one by one."""

    def measure(self, texts: Sequence[str], load: Load, count: int) -> Window:
        """Ask the first `count` texts, again from the first where there are fewer, each once.

        Of requests in flight whichever is answered makes way for the next. Within a time instead, short texts
        would be counted that overtake long ones.
        """


Start = Callable[[], AbstractContextManager[Running]]


@dataclass(frozen=True)
class Candidate:
    """What is measured, and how it is started.

    `same` ones compute what our dense fp32 entry does, and must answer as it does. Where `cuts` is false, no
    text of more tokens than the model reads is sent.
    """

    name: str
    place: Place
    precision: Precision
    ours: bool
    same: bool
    environment: str | None
    start: Start
    cuts: bool = True


class Ask(Protocol):
    """How a server is asked over HTTP: where, with what body, and where its answer has the probabilities."""

    path: str

    def body(self, texts: Sequence[str]) -> bytes: ...

    def read(self, answer: Any) -> Probabilities: ...


class AskTriton:
    """The inference protocol in JSON."""

    def __init__(self, model: str) -> None:
        self.path = f"/v2/models/{model}/infer"

    def body(self, texts: Sequence[str]) -> bytes:
        tensor = {"name": "TEXT", "shape": [len(texts), 1], "datatype": "BYTES", "data": list(texts)}
        return json.dumps({"inputs": [tensor], "outputs": [{"name": "scores"}]}).encode()

    def read(self, answer: Any) -> Probabilities:
        (output,) = answer["outputs"]
        return np.reshape(output["data"], output["shape"])


class AskInfinity:
    """Infinity's `/classify`; classes come best first, by name."""

    path = "/classify"

    def __init__(self, model: str, labels: Sequence[str]) -> None:
        self._model, self._labels = model, labels

    def body(self, texts: Sequence[str]) -> bytes:
        return json.dumps({"model": self._model, "input": list(texts)}).encode()

    def read(self, answer: Any) -> Probabilities:
        rows = [{each["label"]: each["score"] for each in classes} for classes in answer["data"]]
        return np.array([[row[label] for label in self._labels] for row in rows])


class HttpLoad:
    """A sender of one server's requests over a connection that is kept alive, a `measure.Load`.

    Bodies are made before, and may be those of several senders; an answer is read as far as its JSON. It is
    the same for every server.
    """

    def __init__(self, url: str, path: str, bodies: Iterator[bytes]) -> None:
        self._connection = http.client.HTTPConnection(url, timeout=REQUEST_S)
        self._path = path
        self._bodies = bodies

    def __enter__(self) -> "HttpLoad":
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def request(self) -> Timing:
        return self.exchange()[1]

    def exchange(self) -> tuple[Any, Timing]:
        """Send the next body; return the answer and its timing.

        Raises:
            RuntimeError: the server refused it.
            OSError: it is gone.
        """
        start = time.perf_counter_ns()
        self._connection.request("POST", self._path, next(self._bodies), {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        content = response.read()
        answered = time.perf_counter_ns()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {content[:200].decode(errors='replace')}")
        answer = json.loads(content)
        return answer, Timing(0, answered - start, time.perf_counter_ns() - answered)

    def server_times(self, at_least: int = 0) -> ServerTimes:
        return ServerTimes()


class Served:
    """A server that runs."""

    def __init__(self, url: str, ask: Ask, process_ids: Callable[[], Sequence[int]]) -> None:
        self._url, self._ask = url, ask
        self.process_ids = process_ids

    def probabilities(self, texts: Sequence[str]) -> Probabilities:
        with HttpLoad(self._url, self._ask.path, iter([self._ask.body([text]) for text in texts])) as load:
            return np.concatenate([self._ask.read(load.exchange()[0]) for _ in texts])

    def measure(self, texts: Sequence[str], load: Load, count: int) -> Window:
        made = [self._ask.body(part) for part in parts(texts, load.texts)]
        bodies = chain(made[:1], cycle(made))  # the first settles, and takes none of those that are counted
        with ExitStack() as stack:
            senders = [
                stack.enter_context(HttpLoad(self._url, self._ask.path, bodies))
                for _ in range(load.in_flight)
            ]
            # All are due at once; that one is late is no part of its latency here.
            window = measure_open_window(senders, [0] * (count // load.texts), settling=1)
        (stretch,) = window.stretches
        prompt = tuple(replace(timing, late_ns=0) for timing in stretch.timings)
        return replace(window, stretches=(replace(stretch, timings=prompt),))


class Worker:
    """A process that times its own calls."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process, self._log = process, log

    def process_ids(self) -> Sequence[int]:
        return family(self._process.pid)

    def probabilities(self, texts: Sequence[str]) -> Probabilities:
        return np.concatenate([self._ask({"texts": [text]})["probabilities"] for text in texts])

    def measure(self, texts: Sequence[str], load: Load, count: int) -> Window:
        requests = list(islice(cycle(parts(texts, load.texts)), count // load.texts))
        took = self._ask({"requests": requests})["ns"]
        return Window((Stretch(tuple(Timing(0, each, 0) for each in took), sum(took)),))

    def _ask(self, asked: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(last_line(self._log))
        return json.loads(line)


@contextmanager
def ours(repository: Path, model: str) -> Iterator[Served]:
    """Serve one of our entries by Triton."""
    with served(repository, [model]) as server:
        yield Served(server.http_url, AskTriton(model), server.process_ids)


@contextmanager
def infinity(programs: Path, engine: str, model: Path, labels: Sequence[str], log: Path) -> Iterator[Served]:
    """Serve a checkpoint by Infinity, as its command line does unless told otherwise.

    It runs in the checkpoint's folder: given any other, its ONNX engine does not find the graph. What it
    makes of a graph goes to a cache, here a folder beside the checkpoint's.
    """
    port = claim_ports(HOST, 0, 0, 0)[0]
    command = [str(programs / "infinity_emb"), "v2", "--model-id", ".", "--served-model-name", "peer"]
    command += ["--engine", engine, "--device", "cpu", "--host", HOST, "--port", str(port)]
    if engine == "optimum":
        command.append("--no-model-warmup")  # it warms up with longer texts than the model reads
    cache = {"HF_HOME": str(model.parent / "infinity_cache")}
    with started(command, log, model, cache) as process:
        wait_until_ready(process, f"{HOST}:{port}", log)
        yield Served(f"{HOST}:{port}", AskInfinity("peer", labels), lambda: family(process.pid))


@contextmanager
def worker(programs: Path | None, kind: str, model: Path, log: Path) -> Iterator[Worker]:
    """Run a model in a process of an environment, this one unless another is named."""
    python = sys.executable if programs is None else str(programs / "python")
    with started([python, str(WORKER), kind, str(model)], log) as process:
        yield Worker(process, log)


@contextmanager
def started(
    command: Sequence[str], log: Path, folder: Path | None = None, variables: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """Run a command, what it says in a file, and end it with all that it has started."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if str(WORKER) in command else file,
            stderr=file,
            cwd=folder,
            env={**os.environ, **QUIET, **(variables or {})},
            text=True,
        )
        try:
            yield process
        finally:
            end(process)


def end(process: "subprocess.Popen[str]") -> None:
    processes = [psutil.Process(each) for each in family(process.pid)]
    process.terminate()
    try:
        process.communicate(timeout=END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
    for each in psutil.wait_procs(processes, timeout=1)[1]:
        each.kill()


def wait_until_ready(process: "subprocess.Popen[str]", url: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(last_line(log))
        connection = http.client.HTTPConnection(url, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(PAUSE_S)
        finally:
            connection.close()
    raise RuntimeError(f"not ready within {START_S:g} s; {log} has what it said")


def family(process_id: int) -> list[int]:
    """Return the ids of a process and all its descendants."""
    try:
        children = psutil.Process(process_id).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process_id, *(child.pid for child in children)]


def last_line(log: Path) -> str:
    said = log.read_text("utf-8", errors="replace").strip().splitlines() or ["nothing was said"]
    return f"it ended: {said[-1]} ({log})"
