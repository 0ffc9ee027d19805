"""The gateway that `deploy` configures, before a server of this machine."""

import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sparse_serve.connection import Protocol
from sparse_serve.deploy.gateway import CONFIG, Gateway, gateway_files
from sparse_serve.deploy.limits import Limits, full_batches, health_request
from sparse_serve.repository.entries import Entry
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.preflight import claim_ports
from sparse_serve.triton.probe import is_ready

START_S = 60.0
Urls = Mapping[Protocol, str]


def urls_of(server: TritonServer) -> Urls:
    return {"http": server.http_url, "grpc": server.grpc_url}


def write_gateway(folder: Path, server: Urls, entry: Entry) -> Urls:
    """Write the gateway's files, and return where it is to listen."""
    http, grpc, metrics = (f"127.0.0.1:{port}" for port in claim_ports("127.0.0.1", 0, 0, 0))
    requests = full_batches(entry)
    gateway = Gateway(
        models=tuple(entry.models),
        health_request=health_request(entry),
        limits=Limits(max_requests=requests, max_pending_requests=requests),
        http=http,
        grpc=grpc,
        metrics=metrics,
        http_server=server["http"],
        grpc_server=server["grpc"],
    )
    for name, text in gateway_files(gateway).items():
        Path(folder, name).write_text(text, encoding="utf-8", newline="")
    return {"http": http, "grpc": grpc}


def start_gateway(folder: Path, environment: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
    """Start HAProxy on the files of a folder, in this process's environment unless in another."""
    command = ["haproxy", "-db", "-f", str(folder / CONFIG)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)


@contextmanager
def behind_gateway(server: TritonServer, entry: Entry) -> Iterator[Urls]:
    """Run HAProxy before a server, and tell where it listens once it calls the server ready."""
    with tempfile.TemporaryDirectory() as folder:
        urls = write_gateway(Path(folder), urls_of(server), entry)
        process = start_gateway(Path(folder))
        try:
            deadline = time.monotonic() + START_S
            while not is_ready(urls["http"]):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the gateway does not call its server ready")
                time.sleep(0.1)
            yield urls
        finally:
            process.kill()
            process.wait()
