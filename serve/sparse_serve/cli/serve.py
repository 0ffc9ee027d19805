"""`sparse-serve serve`: Triton on a model repository, until Ctrl-C."""

import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import typer

from sparse_serve.cli.options import DEFAULT_REPOSITORY, Verbose, given
from sparse_serve.cli.signals import Handler, handled
from sparse_serve.errors import OptionError
from sparse_serve.repository.contents import read_pins
from sparse_serve.triton.container import DEFAULT_IMAGE, ContainerOptions, ContainerServer
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.preflight import processor_warnings
from sparse_serve.triton.server import LaunchLine, Server, ServerOptions

_CHECK_SECONDS = 1.0

ServerMode = Literal["auto", "path", "bundled", "docker"]

Port = Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free port.")]


def serve(  # noqa: PLR0913  one parameter per option
    context: typer.Context,
    repository: Annotated[Path, typer.Argument(metavar="DIR", help="Model repository.")] = DEFAULT_REPOSITORY,
    triton_args: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="Passed to Triton.")
    ] = None,
    *,
    http_port: Port = 8000,
    grpc_port: Port = 8001,
    metrics_port: Port = 8002,
    host: Annotated[
        str, typer.Option(help="Address to listen on; the bundled Triton takes loopback only.")
    ] = "127.0.0.1",
    mode: Annotated[
        ServerMode,
        typer.Option(help="tritonserver on PATH, the bundled one, or the container of docker/."),
    ] = "auto",
    image: Annotated[str, typer.Option(help="Image of the container.")] = DEFAULT_IMAGE,
    gpus: Annotated[
        str | None, typer.Option(help="GPUs of the container, as docker run has it: all.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Most memory of the container, as docker run has it: 4g.")
    ] = None,
    portable: Annotated[
        bool, typer.Option("--portable", help="Serve without the op library, slower.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(help="First hold every file against the manifest, and see who else can write it."),
    ] = True,
    startup_timeout: Annotated[
        int, typer.Option(min=1, help="Seconds until all models must be ready.")
    ] = 300,
    drain_timeout: Annotated[
        int, typer.Option(min=0, help="Seconds that a stop waits for requests in flight.")
    ] = 30,
    manifest_digest: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SHA256",
            help="Serve the entry NAME only with this manifest, as check shows it; repeatable.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the command line that would be run.")
    ] = False,
    log_file: Annotated[Path | None, typer.Option(help="Keep Triton's log here.")] = None,
    verbose: Verbose = False,
) -> None:
    """Serve a model repository with Triton until Ctrl-C.

    Exits with status 1 as soon as the server, or the process of a server-side tokenizer, has died: have a
    supervisor start it again. To find out, the models of a container are asked for an inference every five
    seconds, which Triton's statistics count.
    """
    if str(repository).startswith("-"):  # without DIR the first of Triton's options stands in its place
        triton_args = [str(repository), *(triton_args or ())]
        repository = DEFAULT_REPOSITORY
    if triton_args and not triton_args[0].startswith("-"):
        raise OptionError(f"unexpected argument '{triton_args[0]}': Triton's own options go after --")
    options = ServerOptions(
        repository,
        pins=_pins(manifest_digest or [], verify),
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        address=host,
        mode="auto" if mode == "docker" else mode,
        portable=portable,
        verify=verify,
        extra_args=tuple(triton_args or ()),
        log_path=log_file,
        echo_log=verbose,
        start_seconds=startup_timeout,
        stop_seconds=drain_timeout,
    )
    if mode == "docker":
        options = replace(options, environment={"DRAIN_TIMEOUT": str(drain_timeout)})
        container = ContainerOptions(image, gpus, memory)
        server: Server = ContainerServer(options, container)
    else:
        _refuse_container_options(context)
        server = TritonServer(options)
    if dry_run:
        _show(server.launch_line(), 0 in (http_port, grpc_port, metrics_port))
    else:
        _serve(server)


def _pins(values: list[str], verify: bool) -> dict[str, str]:
    if values and not verify:
        raise OptionError("--manifest-digest pins what --no-verify does not look at: give one of them")
    try:
        return read_pins(values)
    except ValueError as error:
        raise OptionError(f"--manifest-digest {error}") from None


def _refuse_container_options(context: typer.Context) -> None:
    """Refuse them on the command line; in the environment they are for the servers that take them."""
    for name in given(context, ("image", "gpus", "memory")):
        raise OptionError(f"--{name} {context.params[name]} is the container's: give it with --mode docker")


def _show(line: LaunchLine, picks_ports: bool) -> None:
    """Print the line on stdout and, on stderr, what of it holds only once it is run by `serve`."""
    print(line)
    notes = [f"{folder} is there only while serve runs" for folder in line.scratch]
    if picks_ports:
        notes.append("serve puts a free port in the place of 0")
    if notes:
        print("; ".join(notes), file=sys.stderr)


def _serve(server: Server) -> None:
    with handled(_interrupting_once(server)), server:
        with suppress(KeyboardInterrupt):
            for message in processor_warnings(server.repository, server.models):
                print(f"warning: {message}", file=sys.stderr)
            print(f"http     http://{server.http_url}")
            print(f"grpc     {server.grpc_url}")
            print(f"metrics  {server.metrics_url}")
            print(f"models   {' '.join(server.models)}", flush=True)
            print("serving; Ctrl-C stops", file=sys.stderr)
            while True:
                server.check()
                time.sleep(_CHECK_SECONDS)
        print("stopping; Ctrl-C again kills", file=sys.stderr)


def _interrupting_once(server: Server) -> Handler:
    """Return what interrupts at the first signal, so that the server is stopped, and at others kills it."""
    interrupted = threading.Event()

    def handle(_signal: int, _frame: FrameType | None) -> None:
        if interrupted.is_set():
            server.kill()
            return
        interrupted.set()
        raise KeyboardInterrupt

    return handle
