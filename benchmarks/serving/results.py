"""The lines of a result: with what they were measured, and the file that they are written to."""

import csv
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import onnxruntime

from sparse_serve import __version__
from sparse_serve.digests import file_digest
from sparse_serve.environment import read_cpu
from sparse_serve.op_library import library_path

Line = dict[str, str]


def environment(server_version: str) -> Line:
    """Return where and with what is measured, the load of the machine at this moment included."""
    cpu = read_cpu()
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu.model,
        "cores": str(cpu.cores),
        "load_average": f"{os.getloadavg()[0]:.1f}",
        "system": f"{platform.system()} {platform.machine()}",
        "triton": server_version,
        "onnxruntime": onnxruntime.__version__,
        "package": __version__,
        "op_library": file_digest(library_path())[:12],
    }


def write_lines(path: Path, lines: Sequence[Mapping[str, str]]) -> None:
    """Write lines, with a column for every name that any of them has."""
    names = list(dict.fromkeys(name for line in lines for name in line))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
