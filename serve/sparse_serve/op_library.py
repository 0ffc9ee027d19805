"""The compiled op library: where it is, whether it is the installed one, and what it says of itself.

It comes in two builds, of which a process loads one: `libsparse_ops.so` with the kernels for processors,
which every wheel has, and `libsparse_ops_cuda.so` with the same and those for NVIDIA GPUs, which
`make cuda` makes. Entries name the library `libsparse_ops.so` whichever it is: where models compute on a
GPU, what starts them puts a folder on the library path in which the second has that name.
"""

import ctypes
from base64 import urlsafe_b64decode
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path
from typing import Literal

from sparse_serve.digests import file_digest
from sparse_serve.errors import OpLibraryError

DOMAIN = "ai.sparse_serve"
OPSET_VERSION = 1
Device = Literal["cpu", "cuda"]
"""What computes a model."""

LIBRARY_NAME = "libsparse_ops.so"
"""What entries call the op library."""
CUDA_LIBRARY_NAME = "libsparse_ops_cuda.so"
TOKENIZERS = ("WordPieceTokenize", "ByteLevelBpeTokenize")
"""The ops that no standard operators can take the place of."""

_DISTRIBUTION = "sparse-serve"
_FOLDER = "sparse_serve/lib"
_REINSTALL = "reinstall the sparse-serve wheel for this platform"
_BUILD = "build it with make cuda in a clone of sparse-serve"


def library_path(device: Device = "cpu") -> Path:
    """Return the path of the installed op library that has the kernels of a device.

    Raises:
        OpLibraryError: the installed package holds no such library.
    """
    name = LIBRARY_NAME if device == "cpu" else CUDA_LIBRARY_NAME
    path = Path(str(files("sparse_serve") / "lib" / name))
    if not path.is_file():
        raise OpLibraryError(f"op library {name} is missing from the installed package: {_remedy(path)}")
    return path


def verify_library(device: Device = "cpu") -> Path:
    """Return the op library's path after comparing its digest with the installed package's record.

    Raises:
        OpLibraryError: the library is missing, unrecorded, or not the file that was installed.
    """
    path = library_path(device)
    recorded = _recorded_digest(path)
    if recorded is None:
        raise OpLibraryError(f"the installed package has no record of {_FOLDER}/{path.name}: {_remedy(path)}")
    found = file_digest(path)
    if found != recorded:
        raise OpLibraryError(
            f"op library {path} has sha256 {found[:12]}…, the installed package recorded {recorded[:12]}…: "
            f"it is not the file that was installed; {_remedy(path)}"
        )
    version = library_version(path)
    if version != OPSET_VERSION:
        raise OpLibraryError(
            f"op library {path} speaks version {version} of {DOMAIN}, this package speaks {OPSET_VERSION}: "
            f"{_remedy(path)}"
        )
    return path


def _remedy(path: Path) -> str:
    return _REINSTALL if path.name == LIBRARY_NAME else _BUILD


def _recorded_digest(path: Path) -> str | None:
    try:
        recorded = distribution(_DISTRIBUTION).files or []
    except PackageNotFoundError:
        return None
    wanted = f"{_FOLDER}/{path.name}"
    for entry in recorded:
        if entry.as_posix() == wanted and entry.hash is not None and entry.hash.mode == "sha256":
            return urlsafe_b64decode(entry.hash.value + "=").hex()
    return None


def library_version(path: Path) -> int:
    """Return the version of the op domain that the library at `path` speaks.

    Raises:
        OpLibraryError: the file is no loadable op library.
    """
    function = _symbol(path, "SparseOpsVersion")
    function.restype = ctypes.c_int
    return int(function())


def library_cuda(path: Path) -> tuple[int, int]:
    """Return the CUDA that the library at `path` was built with, and holds the runtime of, such as (13, 0).

    Raises:
        OpLibraryError: the file is no op library with kernels for GPUs.
    """
    function = _symbol(path, "SparseOpsCudaVersion")
    function.restype = ctypes.c_int
    version = int(function())
    return version // 1000, version % 1000 // 10


def instruction_set(path: Path) -> str:
    """Return the instruction set the library chose on this processor.

    It is "avx512vnni", "avx512", "avx2", "neon" or "generic".

    Raises:
        OpLibraryError: the file is no loadable op library.
    """
    function = _symbol(path, "SparseOpsInstructionSet")
    function.restype = ctypes.c_char_p
    return bytes(function()).decode()


def _symbol(path: Path, name: str) -> "ctypes._NamedFuncPointer":
    try:
        return ctypes.CDLL(str(path))[name]
    except (OSError, AttributeError) as error:
        raise OpLibraryError(f"op library {path} cannot be used: {error}; {_remedy(path)}") from error
