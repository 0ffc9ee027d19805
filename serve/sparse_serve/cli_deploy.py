"""The command `deploy`: an entry behind a gateway, as files for what runs containers."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sparse_serve.cli_options import DEFAULT_REPOSITORY, ModelRepository, Verbose
from sparse_serve.deploy.compose import compose_files
from sparse_serve.deploy.deployment import Deployment, require_certificate, require_sound
from sparse_serve.deploy.files import write_files
from sparse_serve.deploy.limits import (
    DEFAULT_MAX_BODY,
    DEFAULT_QUEUE_TIMEOUT,
    DEFAULT_REQUEST_TIMEOUT,
    Limits,
    full_batches,
)
from sparse_serve.errors import OptionError
from sparse_serve.repository.entries import read_entry, repository_path, validate_name
from sparse_serve.triton.container import DEFAULT_IMAGE
from sparse_serve.triton.preflight import ipv4_address

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
# A gRPC message says its length in four bytes.
_MOST_BODY = 1 << 31

Port = Annotated[int, typer.Option(min=1, max=65535)]


class Target(StrEnum):
    """What runs the containers."""

    compose = "compose"


_FILES: dict[Target, Callable[[Deployment], dict[str, str]]] = {Target.compose: compose_files}
_STARTED_BY: dict[Target, str] = {Target.compose: "docker compose --project-directory {} up --detach --wait"}


def deploy(  # noqa: PLR0913  one parameter per option
    name: Annotated[str, typer.Argument(metavar="NAME", help="The model: an entry's name.")],
    *,
    target: Annotated[Target, typer.Option(help="What runs the containers.")],
    output_dir: Annotated[Path, typer.Option(help="Folder of the files: new, empty, or as deploy left it.")],
    model_repository: ModelRepository = DEFAULT_REPOSITORY,
    image: Annotated[str, typer.Option(help="Image of docker/.")] = DEFAULT_IMAGE,
    host: Annotated[str, typer.Option(help="Address that the gateway is published on.")] = "127.0.0.1",
    http_port: Port = 8000,
    grpc_port: Port = 8001,
    tls_cert: Annotated[
        Path | None, typer.Option(help="PEM file with certificate and key: TLS for HTTP and gRPC.")
    ] = None,
    max_body: Annotated[
        str, typer.Option(metavar="SIZE", help="Most bytes of a request; k, m or g behind a number.")
    ] = f"{DEFAULT_MAX_BODY >> 20}m",
    max_requests: Annotated[
        int | None,
        typer.Option(min=1, help="Inferences at the same time.", show_default="instances × max_batch_size"),
    ] = None,
    max_pending_requests: Annotated[
        int | None,
        typer.Option(min=0, help="Inferences that wait; more are refused.", show_default="--max-requests"),
    ] = None,
    request_timeout: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds for an answer.")
    ] = DEFAULT_REQUEST_TIMEOUT,
    queue_timeout: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds that an inference may wait.")
    ] = DEFAULT_QUEUE_TIMEOUT,
    force: Annotated[
        bool, typer.Option("--force", help="Write over files that deploy did not write.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", envvar="SPARSE_SERVE_JSON", help="Files and limits as JSON.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Write what runs an entry behind a gateway: Triton, HAProxy and Prometheus, by Docker Compose.

    The gateway refuses at once what the entry cannot take: requests that are too large, and more of them than
    it computes and lets wait. Limits hold for HTTP and gRPC each; they come from the entry's configuration.
    """
    if not image or image != image.strip() or image.startswith("-"):
        raise OptionError(f"--image '{image}' is no name of an image: give one such as {DEFAULT_IMAGE}")
    if http_port == grpc_port:
        raise OptionError(f"--http-port and --grpc-port are both {http_port}: give two")
    body = _size(max_body)
    entry = read_entry(repository_path(model_repository) / validate_name(name))
    require_sound(entry)
    requests = full_batches(entry) if max_requests is None else max_requests
    limits = Limits(
        max_body=body,
        max_requests=requests,
        max_pending_requests=requests if max_pending_requests is None else max_pending_requests,
        request_timeout=request_timeout,
        queue_timeout=queue_timeout,
    )
    deployment = Deployment(
        entry=entry,
        limits=limits,
        image=image,
        host=ipv4_address(host),
        http_port=http_port,
        grpc_port=grpc_port,
        certificate=None if tls_cert is None else require_certificate(tls_cert),
    )
    written = write_files(output_dir, _FILES[target](deployment), force=force)
    for path in written:
        print(f"wrote {path}", file=sys.stderr)
    if as_json:
        print(json.dumps({"files": list(map(str, written)), "limits": asdict(limits)}, indent=2))
    else:
        print(_STARTED_BY[target].format(output_dir))


def _size(text: str) -> int:
    """Return the bytes that `--max-body` says."""
    match = re.fullmatch(r"([1-9][0-9]{0,11})([bkmg]?)", text.lower())
    size = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < size <= _MOST_BODY:
        raise OptionError(
            f"--max-body '{text}' is no size up to 2g: give a number with b, k, m or g behind it, such as 4m"
        )
    return size
