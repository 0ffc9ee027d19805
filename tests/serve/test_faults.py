"""What clients and the launcher see when something dies: an error, never a wrong answer, and nothing left."""

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from threading import Event

import psutil
import pytest
from haproxy import is_ready, needs_haproxy, started
from serving import addresses, alive, leftovers, pending, serve, wait_for
from tiny_entry import WORDS, edit

from command_line import own_process
from sparse_serve.client import Client
from sparse_serve.connection import Protocol
from sparse_serve.deploy import limits
from sparse_serve.deploy.gateway import Gateway
from sparse_serve.deploy.limits import Limits, health_request
from sparse_serve.errors import RequestError
from sparse_serve.repository.config import CONFIG_NAME
from sparse_serve.repository.entries import read_entry
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.server import ServerOptions
from wall_clock import WallClock

pytestmark = pytest.mark.slow

MakeSpec = Callable[..., EntrySpec]
Logits = tuple[float, ...]

CLIENTS: Sequence[Protocol] = ("http", "grpc", "http", "grpc")
TEXTS = [" ".join(WORDS[start : start + 3]) for start in range(12)]


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    monkeypatch.setenv("TMPDIR", str(own))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, make_spec: MakeSpec) -> Path:
    folder = tmp_path_factory.mktemp("faults") / "models"
    # One process of the tokenizer, so that no other answers in its place, and one text a run, so that
    # of several requests all but one wait, which the server tells.
    config = write_entry(folder, make_spec()) / CONFIG_NAME
    edit(config, "count: 2", "count: 1")
    edit(config, "max_batch_size: 64", "max_batch_size: 1")
    return folder


@pytest.fixture(scope="module")
def right(server: TritonServer) -> dict[str, Logits]:
    """The right answer to each text, from a server that nothing happens to."""
    with Client(server.http_url) as classifier:
        return {text: classifier.classify("tiny", [text])[0].logits for text in TEXTS}


@dataclass
class Command:
    """A running `serve`, its Triton, and the stubs by model."""

    process: "subprocess.Popen[str]"
    urls: dict[str, str]
    triton: psutil.Process
    stubs: dict[str, psutil.Process]

    def ended(self) -> str:
        """Wait for the end of the command, which fails, and return its last line."""
        _, errors = self.process.communicate(timeout=30)
        assert self.process.returncode == 1, errors
        assert errors.count("error") == 1
        return errors.splitlines()[-1]


def stubs_of(triton: psutil.Process) -> dict[str, psutil.Process]:
    """The Python stubs by the model they run, whose folder their command line names."""
    found = [child for child in triton.children(recursive=True) if "stub" in child.name()]
    return {Path(stub.cmdline()[1]).parents[1].name: stub for stub in found}


@contextmanager
def served(repository: Path) -> Iterator[Command]:
    process = serve(repository)
    try:
        urls = addresses(process)
        children = psutil.Process(process.pid).children()
        triton = next(child for child in children if child.name() == "tritonserver")
        yield Command(process, urls, triton, stubs_of(triton))
    finally:
        process.kill()
        process.communicate()
        wait_for(lambda: not leftovers(process.pid))


class Traffic:
    """Clients of both protocols that ask without pause until they get an error, and keep every answer."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self.answers: list[tuple[str, Logits]] = []
        self._urls = urls
        self._pool = ThreadPoolExecutor(len(CLIENTS))
        self._stop = Event()
        self._clients: list[Future[str]] = []

    def __enter__(self) -> "Traffic":
        self._clients = [self._pool.submit(self._ask, protocol) for protocol in CLIENTS]
        self.wait_for_more()
        return self

    def wait_for_more(self) -> None:
        """Wait until some texts more are answered."""
        before = len(self.answers)
        wait_for(lambda: len(self.answers) > before + 10 * len(CLIENTS))

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()

    def _ask(self, protocol: Protocol) -> str:
        with Client(self._urls[protocol], protocol) as classifier:
            for text in cycle(TEXTS):
                try:
                    (answer,) = classifier.classify("tiny", [text])
                except RequestError as error:
                    return str(error)
                self.answers.append((text, answer.logits))
                if self._stop.is_set():
                    break
        return ""

    def ended(self, seconds: float) -> list[bool]:
        """Whether each client has got an error, after so many seconds."""
        time.sleep(seconds)
        return [client.done() for client in self._clients]

    def errors(self) -> list[str]:
        """What each client got in the end."""
        return [client.result(timeout=30) for client in self._clients]


@contextmanager
def frozen(stub: psutil.Process) -> Iterator[None]:
    """While the model answers nothing, what is asked of it is in mid-request."""
    stub.suspend()
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            stub.resume()


def test_a_server_killed_in_mid_request(repository: Path, right: dict[str, Logits]) -> None:
    with served(repository) as command, Traffic(command.urls) as traffic:
        with frozen(command.stubs["tiny"]):
            wait_for(lambda: pending(command.urls["metrics"], "tiny") >= 1)
            command.triton.kill()
            assert all("no answer from" in error for error in traffic.errors())
        for protocol in CLIENTS:
            late = Client(command.urls[protocol], protocol)
            with late, pytest.raises(RequestError, match="no answer from"):
                late.classify("tiny", ["w1"])
        assert command.ended().startswith("error: Triton was ended by SIGKILL: serve again")
    assert all(logits == right[text] for text, logits in traffic.answers)


def test_a_model_killed_in_mid_request(repository: Path, right: dict[str, Logits]) -> None:
    with served(repository) as command, Traffic(command.urls) as traffic:
        stub = command.stubs["tiny"]
        with frozen(stub):
            wait_for(lambda: pending(command.urls["metrics"], "tiny") >= 1)
            stub.kill()
        assert all(traffic.errors())
        assert command.ended() == (
            f"error: model 'tiny' answers no more, its process {stub.pid} has died: serve again"
        )
        assert not alive([command.triton, *command.stubs.values()])
    assert all(logits == right[text] for text, logits in traffic.answers)


def test_files_truncated_while_they_are_served(
    repository: Path, right: dict[str, Logits], tmp_path: Path
) -> None:
    own = Path(shutil.copytree(repository, tmp_path / "models"))
    with served(own) as command:
        with Traffic(command.urls) as traffic:
            for path in own.rglob("*"):
                if path.is_file():
                    os.truncate(path, path.stat().st_size // 2)
            traffic.wait_for_more()
        assert not any(traffic.errors())
    assert all(logits == right[text] for text, logits in traffic.answers)
    again = serve(own)
    output, errors = again.communicate(timeout=30)
    assert (again.returncode, output, errors.count("\n")) == (1, "", 1)
    assert errors.startswith("error: ")


@needs_haproxy
def test_a_gateway_killed_under_traffic(
    server: TritonServer, right: dict[str, Logits], tmp_path: Path
) -> None:
    entry = read_entry(server.repository / "tiny")
    gateway = Gateway(
        models=tuple(entry.models),
        health_request=health_request(entry),
        limits=Limits(max_requests=8, max_pending_requests=8),
        http_server=server.http_url,
        grpc_server=server.grpc_url,
    )
    with ExitStack() as killed:
        running = killed.enter_context(started(tmp_path / "first", gateway))
        with Traffic({"http": running.http, "grpc": running.grpc}) as traffic:
            killed.close()  # which kills it
            assert all("no answer from" in error for error in traffic.errors())
    assert all(logits == right[text] for text, logits in traffic.answers)
    with (
        started(tmp_path / "second", gateway) as running,
        Traffic({"http": running.http, "grpc": running.grpc}) as traffic,
    ):
        pass
    assert not any(traffic.errors())
    assert all(logits == right[text] for text, logits in traffic.answers)


@pytest.mark.parametrize("through", ["serve", pytest.param("gateway", marks=needs_haproxy)])
def test_the_wall_clock_is_set_back_under_traffic(
    repository: Path,
    right: dict[str, Logits],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    through: str,
) -> None:
    clock = WallClock(tmp_path)
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(limits, "_HEALTH_SECONDS", 0.5)
    with served(repository) as command, ExitStack() as stack:
        processes = [psutil.Process(command.process.pid), command.triton, *command.stubs.values()]
        assert all("wall_clock.so" in Path(f"/proc/{each.pid}/maps").read_text() for each in processes)
        urls, ready = command.urls, list[bool]()
        if through == "gateway":
            entry = read_entry(repository / "tiny")
            gateway = Gateway(
                models=tuple(entry.models),
                health_request=health_request(entry),
                limits=Limits(max_requests=8, max_pending_requests=8),
                http_server=urls["http"],
                grpc_server=urls["grpc"],
            )
            running = stack.enter_context(started(tmp_path / "gateway", gateway))
            urls = {"http": running.http, "grpc": running.grpc}
        with Traffic(urls) as traffic:
            for hours in (-1, -2):
                clock.set_ahead(hours * 3600)
                until = time.monotonic() + 1.5  # three health checks
                traffic.wait_for_more()
                while through == "gateway" and time.monotonic() < until:
                    ready.append(is_ready(running))
                    time.sleep(0.1)
        assert not any(traffic.errors())
        assert all(ready)
        assert command.process.poll() is None
    assert all(logits == right[text] for text, logits in traffic.answers)


def test_the_wall_clock_is_set_forward_under_traffic(
    repository: Path, right: dict[str, Logits], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton takes a model for hung that it waits for at that moment: an error, never another's answer."""
    clock = WallClock(tmp_path)
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    with served(repository) as command, Traffic(command.urls) as traffic:
        for hours in range(1, 100):
            clock.set_ahead(hours * 3600)
            if all(traffic.ended(0.1)):
                break
        assert all(traffic.errors())
        assert "answers no more" in command.ended()
    assert all(logits == right[text] for text, logits in traffic.answers)


@pytest.fixture
def own_server(repository: Path) -> Iterator[TritonServer]:
    with TritonServer(ServerOptions(repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running
        running.check()


CLIENT = """
import sys
from sparse_serve.client import Client
Client(*sys.argv[1:]).classify("tiny", ["w1"])
"""


def cut_in_the_request(server: TritonServer) -> None:
    """Send half a request, and reset the connection."""
    with socket.create_connection(("127.0.0.1", server.http_port)) as connection:
        connection.sendall(b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_clients_that_go_in_mid_request(own_server: TritonServer, right: dict[str, Logits]) -> None:
    urls: dict[Protocol, str] = {"http": own_server.http_url, "grpc": own_server.grpc_url}
    metrics = own_server.metrics_url.removeprefix("http://").removesuffix("/metrics")
    stub = stubs_of(psutil.Process(own_server.process_ids()[0]))["tiny"]
    clients = []
    try:
        with frozen(stub):
            for protocol, url in [*urls.items()] * 2:
                clients.append(subprocess.Popen([sys.executable, "-c", CLIENT, url, protocol]))
            cut_in_the_request(own_server)
            wait_for(lambda: pending(metrics, "tiny") >= len(clients) - 1)
            for client in clients:
                client.kill()
                client.wait()
    finally:
        for client in clients:
            client.kill()
    for protocol, url in urls.items():
        with Client(url, protocol) as classifier:
            found = {text: classifier.classify("tiny", [text])[0].logits for text in TEXTS}
        assert found == right


def descendants(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def stubs(pid: int) -> list[psutil.Process]:
    """Triton's Python stubs among them; helpers of a start end meanwhile."""
    found = []
    for child in descendants(pid):
        with suppress(psutil.NoSuchProcess):
            found += [child] if "stub" in child.name() else []
    return found


def test_a_killed_launcher_takes_its_server_along(repository: Path) -> None:
    with served(repository) as command:
        family = descendants(command.process.pid)
        assert len(leftovers(command.process.pid)) >= 2
        command.process.kill()
        wait_for(lambda: not alive(family))
        wait_for(lambda: not leftovers(command.process.pid))


def test_a_launcher_killed_during_its_start_takes_its_server_along(repository: Path) -> None:
    process = serve(repository)
    wait_for(lambda: stubs(process.pid))
    family = descendants(process.pid)
    process.kill()
    process.communicate()
    wait_for(lambda: not alive(family))
    wait_for(lambda: not leftovers(process.pid))


def test_a_killed_profile_takes_its_servers_along(repository: Path, tmp_path: Path) -> None:
    """It starts them on threads of its own."""
    command = own_process("profile", "tiny", f"--model-repository={repository}")
    options = [f"--output-dir={tmp_path}", "--lengths=8,16", "--variants=model,text"]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE)
    wait_for(lambda: stubs(process.pid))
    family = descendants(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not alive(family))
    wait_for(lambda: not leftovers(process.pid))
