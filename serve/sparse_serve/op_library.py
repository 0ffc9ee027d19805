"""The compiled op library: where it is, whether it is the installed one, and what it says of itself."""

import ctypes
from base64 import urlsafe_b64decode
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path

from sparse_serve.digests import file_digest
from sparse_serve.errors import OpLibraryError

DOMAIN = "ai.sparse_serve"
OPSET_VERSION = 1
LIBRARY_NAME = "libsparse_ops.so"
TOKENIZERS = ("WordPieceTokenize", "ByteLevelBpeTokenize")
"""The ops that no standard operators can take the place of."""

_DISTRIBUTION = "sparse-serve"
_RECORDED_PATH = f"sparse_serve/lib/{LIBRARY_NAME}"
_REINSTALL = "reinstall the sparse-serve wheel for this platform"


def library_path() -> Path:
    """Return the path of the installed op library.

    Raises:
        OpLibraryError: the installed package holds no library.
    """
    resource = files("sparse_serve") / "lib" / LIBRARY_NAME
    path = Path(str(resource))
    if not path.is_file():
        raise OpLibraryError(f"op library {LIBRARY_NAME} is missing from the installed package: {_REINSTALL}")
    return path


def verify_library() -> Path:
    """Return the op library's path after comparing its digest with the installed package's record.

    Raises:
        OpLibraryError: the library is missing, unrecorded, or not the file that was installed.
    """
    path = library_path()
    recorded = _recorded_digest()
    if recorded is None:
        raise OpLibraryError(f"the installed package has no record of {_RECORDED_PATH}: {_REINSTALL}")
    found = file_digest(path)
    if found != recorded:
        raise OpLibraryError(
            f"op library {path} has sha256 {found[:12]}…, the installed package recorded {recorded[:12]}…: "
            f"it is not the file that was installed; {_REINSTALL}"
        )
    version = library_version(path)
    if version != OPSET_VERSION:
        raise OpLibraryError(
            f"op library {path} speaks version {version} of {DOMAIN}, this package speaks {OPSET_VERSION}: "
            f"{_REINSTALL}"
        )
    return path


def _recorded_digest() -> str | None:
    try:
        recorded = distribution(_DISTRIBUTION).files or []
    except PackageNotFoundError:
        return None
    for entry in recorded:
        if entry.as_posix() == _RECORDED_PATH and entry.hash is not None and entry.hash.mode == "sha256":
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


def instruction_set(path: Path) -> str:
    """Return the instruction set the library chose on this processor: "avx512", "avx2", "neon" or "generic".

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
        raise OpLibraryError(f"op library {path} cannot be used: {error}; {_REINSTALL}") from error
