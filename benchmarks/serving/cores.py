"""Cores for the server, and others for those who ask it, as these are on other machines in earnest."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from tritonclient.grpc.model_config_pb2 import ModelConfig

from sparse_serve.repository.tunable import THREADS_PARAMETER

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from lines import Line

ClientCores = Annotated[
    int,
    typer.Option(
        min=0,
        help="Cores for clients alone; the server and its gateway have the others.",
        show_default="all share all",
    ),
]


@dataclass(frozen=True)
class Cores:
    """Where the server and its gateway run, and where clients do; None where all share all."""

    server: frozenset[int] | None
    clients: frozenset[int] | None

    def edit(self) -> Callable[[ModelConfig], None] | None:
        """Return what gives every session as many threads as the server has cores."""
        if self.server is None:
            return None
        threads = str(len(self.server))

        def edit(config: ModelConfig) -> None:
            config.parameters[THREADS_PARAMETER].string_value = threads

        return edit

    def line(self) -> Line:
        kept = {"server_cores": self.server, "client_cores": self.clients}
        return {name: "shared" if cores is None else str(len(cores)) for name, cores in kept.items()}


def share_out(client_cores: int) -> Cores:
    """Keep the last cores of this process for clients.

    Raises:
        BadParameter: nothing is left for the server.
    """
    every = sorted(os.sched_getaffinity(0))
    if client_cores >= len(every):
        raise typer.BadParameter(f"--client-cores {client_cores} leaves the server none of {len(every)}")
    if not client_cores:
        return Cores(None, None)
    return Cores(frozenset(every[:-client_cores]), frozenset(every[-client_cores:]))
