"""Where and with what a report is made."""

import platform
from datetime import UTC, datetime
from pathlib import Path

from sparse_serve import __version__
from sparse_serve.environment import OpLibrary, onnxruntime_version, read_cpu, read_gpus, read_op_library
from sparse_serve.errors import OpLibraryError
from sparse_serve.op_library import library_path
from sparse_serve.report.document import Environment
from sparse_serve.triton.installation import TritonInstallation

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def read_environment(installation: TritonInstallation | None, server_version: str) -> Environment:
    """Describe this machine; `server_version` is what the running Triton says of itself.

    Of another machine's server, `installation` None, no more than that is known.
    """
    triton, onnxruntime = server_version, None
    if installation is not None:
        release = f"release {installation.version}, " if installation.version else ""
        triton = f"{server_version} ({release}{installation.kind})"
        # A server's own onnxruntime backend brings its ONNX Runtime, and does not say which.
        onnxruntime = None if installation.has_onnxruntime else onnxruntime_version()
    return Environment(
        created=datetime.now(UTC).replace(microsecond=0),
        cpu=read_cpu(),
        gpus=read_gpus(),
        kernel=f"{platform.system()} {platform.release()}",
        transparent_huge_pages=_transparent_huge_pages(),
        triton=triton,
        onnxruntime=onnxruntime,
        op_library=_op_library(),
        python=platform.python_version(),
        package=__version__,
    )


def _transparent_huge_pages() -> str | None:
    try:
        setting = _HUGE_PAGES.read_text(encoding="ascii")
    except OSError:
        return None
    return setting.partition("[")[2].partition("]")[0] or None


def _op_library() -> OpLibrary | None:
    try:
        return read_op_library(library_path())
    except OpLibraryError:
        return None
