"""HAProxy as the gateway of a server, where it is installed."""

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from serving import wait_for

from sparse_serve.deploy.gateway import CONFIG, Gateway, gateway_files
from sparse_serve.triton.preflight import claim_ports

HAPROXY = shutil.which("haproxy")
needs_haproxy = pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")


def check_config(config: Path) -> str:
    """See that HAProxy takes a configuration; what it says of it."""
    done = subprocess.run([HAPROXY or "", "-c", "-f", config], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def write_gateway(folder: Path, gateway: Gateway) -> None:
    for name, text in gateway_files(gateway).items():
        (folder / name).write_text(text, newline="")


@contextmanager
def started(folder: Path, gateway: Gateway) -> Iterator[Gateway]:
    """Run HAProxy on free ports until it calls its server ready."""
    http, grpc_port, metrics = (f"127.0.0.1:{port}" for port in claim_ports("127.0.0.1", 0, 0, 0))
    gateway = replace(gateway, http=http, grpc=grpc_port, metrics=metrics)
    folder.mkdir(exist_ok=True)
    write_gateway(folder, gateway)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([HAPROXY or "", "-db", "-f", folder / CONFIG], stdout=log, stderr=log)
    try:
        wait_for(lambda: process.poll() is not None or is_ready(gateway))
        assert process.poll() is None, (folder / "log").read_text()
        yield gateway
    finally:
        process.kill()
        process.wait()


def is_ready(gateway: Gateway) -> bool:
    try:
        return ask(gateway, "GET", "/v2/health/ready")[0] == 200
    except OSError:
        return False


def ask(
    gateway: Gateway, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, str, dict[str, str]]:
    """Return status, body and headers of what the gateway's HTTP answers."""
    if gateway.certificate is None:
        connection = HTTPConnection(gateway.http, timeout=10)
    else:
        trusted = ssl.create_default_context(cafile=gateway.certificate)
        connection = HTTPSConnection(gateway.http, timeout=10, context=trusted)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read().decode(), dict(response.getheaders())
    finally:
        connection.close()
