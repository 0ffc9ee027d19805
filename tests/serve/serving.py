"""Running `sparse-serve serve` from a test, waiting for what it does, and finding what it left."""

import http.client
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from command_line import own_process

ANY_PORTS = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")


def wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def serve(repository: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start the command on free ports."""
    return subprocess.Popen(
        own_process("serve", repository, *ANY_PORTS, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def addresses(process: "subprocess.Popen[str]") -> dict[str, str]:
    """Wait until the command is ready, and return what it says of its addresses: host:port, by protocol."""
    assert process.stdout is not None
    lines = [process.stdout.readline().split() for _ in range(3)]
    assert all(lines), process.communicate()[1]
    return {name: url.removeprefix("http://").removesuffix("/metrics") for name, url in lines}


def pending(metrics_url: str, model: str) -> float:
    """Requests that wait for a model, as its server counts them."""
    connection = http.client.HTTPConnection(metrics_url, timeout=10)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    counts = [line for line in lines if line.startswith("nv_inference_pending_request_count{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in counts if f'model="{model}"' in line)


def leftovers(pid: int | None = None) -> list[str]:
    """Shared memory and temporary folders of the servers of one process."""
    regions = Path("/dev/shm").glob(f"sparse_serve_*_{pid or os.getpid()}_*")
    folders = Path(tempfile.gettempdir()).glob(f"sparse-serve-*-{pid or os.getpid()}-*")
    return [str(path) for path in (*regions, *folders)]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; one that only waits for its parent to look does not."""
    return [process for process in processes if _is_alive(process)]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
