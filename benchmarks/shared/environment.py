"""Where and with what is measured: columns of a line, by their names."""

import os
import platform
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import import_module

from lines import Line

from sparse_serve import __version__
from sparse_serve.digests import file_digest
from sparse_serve.environment import read_cpu
from sparse_serve.op_library import instruction_set, library_path

READ: Mapping[str, Callable[[], str]] = {
    "created": lambda: datetime.now(UTC).isoformat(timespec="seconds"),
    "cpu": lambda: read_cpu().model,
    "cores": lambda: str(read_cpu().cores),
    "load_average": lambda: f"{os.getloadavg()[0]:.1f}",
    "system": lambda: f"{platform.system()} {platform.machine()}",
    "instruction_set": lambda: instruction_set(library_path()),
    "package": lambda: __version__,
    "op_library": lambda: file_digest(library_path())[:12],
}
"""What a column has; one of any other name has the version of the package of that name."""


def columns(*names: str) -> Line:
    """Return columns as they are at this moment."""
    return {name: READ[name]() if name in READ else _version(name) for name in names}


def _version(package: str) -> str:
    """As the package itself has it: torch tells which build it is."""
    return str(import_module(package).__version__)


def environment(server_version: str) -> Line:
    """Return the columns of what a server is asked."""
    before = columns("created", "cpu", "cores", "load_average", "system")
    return before | {"triton": server_version} | columns("onnxruntime", "package", "op_library")
