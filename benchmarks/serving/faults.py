"""What clients see when something dies under load, and how long it takes until they are answered again.

    python benchmarks/serving/faults.py CHECKPOINT --rows sst2/dev.tsv

`sparse-serve serve` and the HAProxy that `deploy` configures run as commands that are started again when they
end, as systemd or Kubernetes does. Four clients, two over HTTP and two over gRPC, ask by way of the gateway
without a pause and go on after an error. After some seconds one thing happens. Told is what clients saw:
right answers, wrong ones, errors by what they say, and requests that got neither; and the seconds from what
happened to the last error.

The wall clock of `serve`, Triton, its processes and the gateway is one of their own, which is set while they
run: `tests/wall_clock.py`, which needs a C++ compiler.

Writes `faults.csv`; status 1 where an answer was wrong, or a request got neither answer nor error.
"""

import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Annotated

import psutil
import typer
from clients import Asker, one_line
from gateways import START_S, Urls, start_gateway, write_gateway
from references import Logits, is_right, reference_answers

from sparse_serve.connection import Protocol
from sparse_serve.data import read_data
from sparse_serve.repository.config import graph_name
from sparse_serve.repository.entries import read_entry
from sparse_serve.repository.signature import TEXT_INPUT
from sparse_serve.tasks.encoding import text_column
from sparse_serve.triton.preflight import claim_ports
from sparse_serve.triton.probe import is_ready

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from commands import COMMAND, exit_on_sigterm
from entries import export
from environment import environment
from lines import Line, write_lines
from options import REPOSITORY, Checkpoint, Repository, Results, Rows
from servers import server_version

from wall_clock import WallClock

FRONT, TEXT = "front", "reviews"
CLIENTS: Sequence[Protocol] = ("http", "grpc", "http", "grpc")
TEXTS = 32
BEFORE_S, AFTER_S, RESTART_PAUSE_S = 3.0, 3.0, 0.2
RECOVERY_S = 60.0
HOUR_S, SETTING_S = 3600, 3.0
UNANSWERED = ("timed out", "Deadline Exceeded", "TimeoutError")
FULL_BYTES = 8 << 20
"""What a file of a full disk may have; an entry's graph has more."""


class Kept:
    """A command that is started again whenever it ends."""

    def __init__(self, start: Callable[[], "subprocess.Popen[bytes]"]) -> None:
        self._start, self._stop = start, threading.Event()
        self.process = start()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        while not self._stop.is_set():
            if self.process.poll() is not None:
                time.sleep(RESTART_PAUSE_S)
                if not self._stop.is_set():
                    self.process = self._start()
            time.sleep(0.02)

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self.process.terminate()
        self.process.wait()


@dataclass
class Seen:
    """What clients saw, and when they last got no answer."""

    right: int = 0
    wrong: int = 0
    unanswered: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    last_error: float = 0.0


@dataclass(frozen=True)
class Stack:
    """The commands and what they serve.

    Attributes:
        serve: `sparse-serve serve`, kept.
        gateway: HAProxy, kept.
        server: where the server listens.
        urls: where the gateway does.
        repository: what is served.
        checkpoint: what it was exported from.
        clock: the wall clock that all of them go by.
    """

    serve: Kept
    gateway: Kept
    server: Urls
    urls: Urls
    repository: Path
    checkpoint: Path
    clock: WallClock

    def triton(self) -> psutil.Process:
        children = psutil.Process(self.serve.process.pid).children()
        return next(child for child in children if child.name() == "tritonserver")

    def stub(self, model: str) -> psutil.Process:
        """Return the process that answers for a model, which its command line names."""
        for child in self.triton().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if any(word.startswith(f"{model}_0_") for word in child.cmdline()):
                    return child
        raise RuntimeError(f"no process of {model}")


def kill_front(stack: Stack) -> None:
    stack.stub(FRONT).kill()


def kill_server(stack: Stack) -> None:
    stack.triton().kill()


def kill_serve(stack: Stack) -> None:
    stack.serve.process.kill()


def end_serve(stack: Stack) -> None:
    stack.serve.process.send_signal(signal.SIGTERM)


def kill_gateway(stack: Stack) -> None:
    stack.gateway.process.kill()


def truncate_files(stack: Stack) -> None:
    """Halve every file that is served, while it is."""
    for model in (TEXT, FRONT, graph_name(FRONT)):
        for path in (stack.repository / model).rglob("*"):
            if path.is_file():
                os.truncate(path, path.stat().st_size // 2)


def fill_disk(stack: Stack) -> None:
    """Export a version whose files have no room; it must end in one line and leave all as it was."""
    before = sorted(stack.repository.rglob("*"))
    made = subprocess.run(
        [
            COMMAND,
            "export",
            str(stack.checkpoint),
            f"--name={TEXT}",
            "--model-version=2",
            f"--model-repository={stack.repository}",
        ],
        check=False,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, FULL_BYTES)),
    )
    errors = [line for line in made.stderr.splitlines() if line.startswith("error: ")]
    if made.returncode != 1 or len(errors) != 1 or "Traceback" in made.stderr:
        raise SystemExit(f"export on a full disk ended with {made.returncode}: {made.stderr[-2000:]}")
    if sorted(stack.repository.rglob("*")) != before:
        raise SystemExit("export on a full disk has changed the repository")


def leave_in_crowds(stack: Stack) -> None:
    """Begin two hundred requests and close their connections: half of them sent, or not read."""
    host, port = stack.urls["http"].split(":")
    body = b'{"inputs":[{"name":"TEXT","shape":[1,1],"datatype":"BYTES","data":["a fine film"]}]}'
    head = f"POST /v2/models/{TEXT}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    rng = random.Random(0)
    for _ in range(200):
        with suppress(OSError), socket.create_connection((host, int(port)), 5) as connection:
            connection.sendall(head + body[: rng.choice([9, len(body)])])


def set_clock(stack: Stack) -> None:
    """Set the wall clock an hour forward, two hours back, and right again."""
    for hours in (1, -1, 0):
        stack.clock.set_ahead(hours * HOUR_S)
        time.sleep(SETTING_S)


def nothing(_: Stack) -> None:
    """To compare with."""


FAULTS: Mapping[str, tuple[str, Callable[[Stack], None]]] = {
    "nothing": (TEXT, nothing),
    "front process killed": (FRONT, kill_front),
    "server killed": (TEXT, kill_server),
    "serve killed": (TEXT, kill_serve),
    "serve told to end": (TEXT, end_serve),
    "gateway killed": (TEXT, kill_gateway),
    "files truncated": (TEXT, truncate_files),
    "files of a front truncated": (FRONT, truncate_files),
    "disk full at export": (TEXT, fill_disk),
    "200 clients gone": (TEXT, leave_in_crowds),
    "clock set": (TEXT, set_clock),
    "clock of a front set": (FRONT, set_clock),
}
"""What happens, and the model that is asked meanwhile."""


@contextmanager
def started(repository: Path, checkpoint: Path, model: str) -> Iterator[Stack]:
    """Run `serve` on a copy of a model's entry, and the gateway before it."""
    with tempfile.TemporaryDirectory() as work, ExitStack() as stack:
        folder = Path(work)
        models = folder / "models"
        for name in read_entry(repository / model).models:
            shutil.copytree(repository / name, models / name)
        http, grpc, metrics = claim_ports("127.0.0.1", 0, 0, 0)
        ports = [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
        log = stack.enter_context((folder / "log").open("wb"))
        clock = WallClock(folder)
        environment = os.environ | clock.environment
        serve = Kept(
            lambda: subprocess.Popen(
                [COMMAND, "serve", models, *ports], stdout=log, stderr=log, env=environment
            )
        )
        stack.callback(serve.end)
        server: Urls = {"http": f"127.0.0.1:{http}", "grpc": f"127.0.0.1:{grpc}"}
        urls = write_gateway(folder, server, read_entry(models / model))
        gateway = Kept(lambda: start_gateway(folder, environment))
        stack.callback(gateway.end)
        deadline = time.monotonic() + START_S
        while not (is_ready(server["http"]) and is_ready(urls["http"])):
            if time.monotonic() > deadline:
                raise SystemExit((folder / "log").read_text())
            time.sleep(0.05)
        yield Stack(serve, gateway, server, urls, models, checkpoint, clock)


def ask_on(
    number: int,
    stack: Stack,
    model: str,
    asked: Sequence[tuple[str, Logits]],
    seen: Seen,
    stop: threading.Event,
) -> None:
    """Ask one text after another, whatever comes back, until told to stop."""
    protocol = CLIENTS[number]
    asker = Asker(stack.urls[protocol], protocol, model)
    for text, right in cycle([*asked[number:], *asked[:number]]):
        if stop.is_set():
            return
        try:
            logits = asker.ask({TEXT_INPUT: text_column([text])})
        except Exception as error:  # whatever a client raises
            message = one_line(error)
            seen.errors[f"{protocol}: {message}"] += 1
            seen.unanswered += any(each in message for each in UNANSWERED)
            seen.last_error = time.monotonic()
            time.sleep(0.05)
            asker = Asker(stack.urls[protocol], protocol, model)
            continue
        if is_right(logits[0], right):
            seen.right += 1
        else:
            seen.wrong += 1


def run(
    repository: Path, checkpoint: Path, fault: str, asked: Sequence[tuple[str, Logits]]
) -> tuple[Line, Line]:
    """Let one thing happen; return with what it was measured, and what clients saw."""
    model, happen = FAULTS[fault]
    seen, stop = Seen(), threading.Event()
    with started(repository, checkpoint, model) as stack, ThreadPoolExecutor(len(CLIENTS)) as pool:
        about = environment(server_version(stack.server["grpc"]))
        clients = [
            pool.submit(ask_on, number, stack, model, asked, seen, stop) for number in range(len(CLIENTS))
        ]
        try:
            time.sleep(BEFORE_S)
            before = seen.right
            begun = time.monotonic()
            happen(stack)
            done = time.monotonic()
            while (
                time.monotonic() < max(done, seen.last_error) + AFTER_S
                and time.monotonic() < done + RECOVERY_S
            ):
                time.sleep(0.1)
        finally:
            stop.set()
        for client in clients:
            client.result()
    return about, {
        "fault": fault,
        "model": model,
        "right_before": str(before),
        "right": str(seen.right),
        "wrong": str(seen.wrong),
        "errors": str(seen.errors.total()),
        "unanswered": str(seen.unanswered),
        "recovered_s": f"{max(0.0, seen.last_error - begun):.2f}",
        "is_recovered": "yes" if seen.last_error < time.monotonic() - AFTER_S + 1 else "no",
        "seen": "; ".join(f"{count} {what}" for what, count in seen.errors.most_common()),
    }


def main(
    checkpoint: Checkpoint,
    *,
    rows: Rows,
    repository: Repository = REPOSITORY,
    results: Results = Path(__file__).parent,
    faults: Annotated[
        str | None, typer.Option(help="What happens, separated by commas.", show_default="all")
    ] = None,
) -> None:
    """Export what is missing, let things happen, and write what clients saw."""
    exit_on_sigterm()
    export(checkpoint, repository, TEXT)
    export(checkpoint, repository, FRONT, "--tokenizer", "server")
    texts = [row.text for row in read_data(rows).rows][:TEXTS]
    asked = list(zip(texts, reference_answers(checkpoint, repository / TEXT, texts), strict=True))
    lines: list[Line] = []
    for fault in faults.split(",") if faults else FAULTS:
        about, saw = run(repository, checkpoint, fault, asked)
        lines.append(about | saw)
        typer.echo("  ".join(f"{name} {value}" for name, value in saw.items()))
    write_lines(results / "faults.csv", lines)
    if any(
        line["wrong"] != "0" or line["unanswered"] != "0" or line["is_recovered"] == "no" for line in lines
    ):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
