"""Stopping: idle connections are not waited for, requests in flight are, for as long as is said."""

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import grpc
import numpy as np
import pytest
from serving import addresses, leftovers, pending, serve, wait_for
from slow_model import ask_http, write_slow_model
from tritonclient import grpc as triton_grpc

from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.triton.connections import end_receiving


@pytest.fixture
def repository(tmp_path: Path, make_spec: Callable[..., EntrySpec]) -> Path:
    models = tmp_path / "models"
    write_entry(models, make_spec())
    write_slow_model(models)
    return models


def ask_grpc(url: str, seconds: float) -> float:
    tensor = triton_grpc.InferInput("SECONDS", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.full((1, 1), seconds, np.float32))
    with triton_grpc.InferenceServerClient(url) as client:
        return float(client.infer("slow", [tensor]).as_numpy("SLEPT")[0, 0])


@contextmanager
def kept_alive(urls: dict[str, str]) -> Iterator[HTTPConnection]:
    """Hold an idle connection of each kind, used once where it is of HTTP."""
    channel = grpc.insecure_channel(urls["grpc"])
    grpc.channel_ready_future(channel).result(timeout=10)
    connections = [HTTPConnection(urls[name]) for name in ("http", "metrics")]
    assert ask_http(connections[0], 0) == 0
    connections[1].request("GET", "/metrics")
    connections[1].getresponse().read()
    yield connections[0]
    channel.close()
    for connection in connections:
        connection.close()


def stop(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert not leftovers(process.pid)


def test_idle_connections_are_not_waited_for(repository: Path) -> None:
    """Some 4 s on a machine with nothing else to do, whatever the exit time-out of Triton is."""
    process = serve(repository, "--drain-timeout", "600")
    with kept_alive(addresses(process)):
        stop(process)


def test_what_is_in_flight_is_answered(repository: Path) -> None:
    """One request is in work, another waits for it over the other protocol; others are idle."""
    process = serve(repository)
    urls = addresses(process)
    with kept_alive(urls), kept_alive(urls) as used, ThreadPoolExecutor() as threads:
        answers: list[Future[float]] = [
            threads.submit(ask_http, used, 4.0),
            threads.submit(ask_grpc, urls["grpc"], 0.5),
        ]
        wait_for(lambda: pending(urls["metrics"], "slow") == 1)
        assert not any(answer.done() for answer in answers)
        stop(process)
        assert [answer.result(timeout=30) for answer in answers] == [4.0, 0.5]


def test_what_takes_too_long_is_cut_off(repository: Path) -> None:
    process = serve(repository, "--drain-timeout", "1")
    urls = addresses(process)
    with ThreadPoolExecutor() as threads:
        answers = [threads.submit(ask_http, HTTPConnection(urls["http"]), 600.0) for _ in range(2)]
        wait_for(lambda: pending(urls["metrics"], "slow") == 1)  # which says that the other is in work
        stop(process)
        for answer in answers:
            with pytest.raises((OSError, HTTPException)):  # whichever way the connection breaks
                answer.result(timeout=30)


def test_connections_of_another_port_or_process_are_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = listener.accept()
            accepted.settimeout(0.1)
            end_receiving([os.getpid()], port + 1)
            end_receiving([2**22 + 1], port)
            with pytest.raises(TimeoutError):
                accepted.recv(1)
            end_receiving([os.getpid()], port)
            assert accepted.recv(1) == b""
            accepted.sendall(b"answer")
            assert client.recv(6) == b"answer"
            accepted.close()
