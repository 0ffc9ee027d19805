"""Where a Triton server is, and what has to be arranged for it to run here."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.resources import files
from pathlib import Path
from typing import Literal

from sparse_serve.errors import ServerError
from sparse_serve.extras import install_hint
from sparse_serve.repository.config import TEXT_BACKEND
from sparse_serve.repository.releases import BUNDLED

Mode = Literal["auto", "path", "bundled"]

PYTHON = "python"
ONNXRUNTIME = "onnxruntime"

TEXT_BACKEND_MODULES = (
    "__init__.py",
    "errors.py",
    "records.py",
    "repository/__init__.py",
    "repository/measures.py",
    "repository/tunable.py",
    "rows.py",
    "runs.py",
    "tags.py",
    "tasks",
    "text_backend",
)
"""What of this package its text backend needs, beside `model.py`."""

# What serves our entries: one of these, or both.
_NEEDED = (PYTHON, ONNXRUNTIME)
# Of Triton's images and packages, which a tritonserver elsewhere may only start.
_USUAL_HOME = Path("/opt/tritonserver")
_WHEEL = "nvidia-pytriton"
_STUB = "triton_python_backend_stub"
_ONNXRUNTIME_BACKEND = "libtriton_onnxruntime.so"
_ONNXRUNTIME_WHEELS = ("onnxruntime", "onnxruntime-gpu")
_PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_HELP_SECONDS = 30
_COMPILED = shutil.ignore_patterns("__pycache__")


@dataclass(frozen=True)
class TritonInstallation:
    """A server program and the folders its backends and libraries come from.

    `backends` is the server's own backend directory, `stub` that of its Python backend where it lies
    elsewhere. `library_folders` go before the user's LD_LIBRARY_PATH.
    """

    kind: Literal["path", "bundled"]
    executable: Path
    backends: Path
    stub: Path | None
    library_folders: tuple[Path, ...]
    version: str | None

    @property
    def has_onnxruntime(self) -> bool:
        """Whether the server has an onnxruntime backend of its own."""
        return (self.backends / ONNXRUNTIME).is_dir()

    def require_backends(self, names: Iterable[str]) -> None:
        """See that the backends that models name can run.

        Raises:
            ServerError: one of them runs in Python, and the server has no Python backend, or the bundled one
                has none for this environment.
        """
        needing = in_python(names)
        if not needing:
            return
        if not (self.backends / PYTHON).is_dir():
            raise ServerError(
                f"Triton at {self.executable} has no Python backend in {self.backends}, which the backend "
                f"{needing[0]} of a model needs: install a Triton with it, or use --mode bundled"
            )
        if self.kind == "bundled" and self.stub is None:
            raise ServerError(
                f"the bundled Triton has no Python stub for Python {_PYTHON_VERSION}, which the backend "
                f"{needing[0]} of a model needs: use Python 3.11 or 3.12"
            )
        if self.kind == "bundled" and int(version("numpy").split(".")[0]) >= 2:
            raise ServerError(
                f"numpy {version('numpy')} breaks the Python stub of the bundled Triton, which the backend "
                f"{needing[0]} of a model needs: install numpy<2 in this environment"
            )

    def require_cuda_backend(self, model: str) -> None:
        """See that a model that is to compute on a GPU can: ours, in onnxruntime's place, runs on processors.

        Raises:
            ServerError: the server has no onnxruntime backend of its own.
        """
        if not self.has_onnxruntime:
            raise ServerError(
                f"model '{model}' computes on a GPU, and Triton at {self.executable} has no onnxruntime "
                "backend but this package's, which computes on processors: serve it with --mode docker, or "
                "with a tritonserver on PATH that has one"
            )

    def variables(self, first: Iterable[Path] = ()) -> dict[str, str]:
        """Return the variables the server needs set, the op library's folder on its library path.

        `first` are folders before those of the installation.
        """
        own = map(str, (*first, *self.library_folders))
        folders = [*own, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        variables = {
            "LD_LIBRARY_PATH": os.pathsep.join(folders),
            "ORT_DISABLE_TELEMETRY": os.environ.get("ORT_DISABLE_TELEMETRY", "1"),
        }
        if self.kind == "bundled":
            # The Python stub finds its packages by the first python on PATH; it does not read PYTHONPATH.
            programs = str(Path(sys.executable).parent)
            variables["PATH"] = os.pathsep.join([programs, os.environ.get("PATH", "")])
        return variables

    def environment(self) -> dict[str, str]:
        """Return the whole environment the server runs in."""
        return {**os.environ, **self.variables()}

    def flags(self) -> frozenset[str]:
        """Return the command line flags this server knows.

        Raises:
            ServerError: the program cannot be run.
        """
        try:
            result = subprocess.run(
                [str(self.executable), "--help"],
                env=self.environment(),
                capture_output=True,
                text=True,
                timeout=_HELP_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ServerError(f"Triton at {self.executable} cannot be run: {error}") from error
        words = (line.split()[0] for line in (result.stdout + result.stderr).splitlines() if line.split())
        flags = frozenset(word for word in words if word.startswith("--"))
        if "--model-repository" not in flags:
            reason = (result.stderr or result.stdout).strip().splitlines()
            raise ServerError(
                f"Triton at {self.executable} cannot be run: {reason[-1] if reason else 'no output'}"
            )
        return flags


def in_python(names: Iterable[str]) -> list[str]:
    """Return those of the backends that run in Python: our text backend does."""
    return sorted({PYTHON, TEXT_BACKEND}.intersection(names))


def find_triton(mode: Mode = "auto") -> TritonInstallation:
    """Return the `tritonserver` on PATH, or the one inside the nvidia-pytriton wheel.

    Raises:
        ServerError: there is none, or one without backends.
    """
    if mode in ("auto", "path"):
        executable = shutil.which("tritonserver")
        if executable is not None:
            return _on_path(Path(executable).absolute())
        if mode == "path":
            raise ServerError("no tritonserver on PATH: install Triton, or use --mode bundled")
    return _bundled()


def _on_path(executable: Path) -> TritonInstallation:
    """Describe a server whose backends lie beside it, or what it is a link to, or where images have them."""
    homes = [folder for path in (executable.resolve(), executable) for folder in path.parents[:2]]
    looked = list(dict.fromkeys(home / "backends" for home in (*homes, _USUAL_HOME)))
    backends = next((each for each in looked if any((each / name).is_dir() for name in _NEEDED)), None)
    if backends is None:
        raise ServerError(
            f"Triton at {executable} has no backends: none of {' or '.join(_NEEDED)} is in "
            f"{', '.join(map(str, looked))}; put its folder 'backends' there, or use --mode bundled"
        )
    return TritonInstallation(
        kind="path",
        executable=executable.resolve(),
        backends=backends,
        stub=None if (backends / PYTHON / _STUB).exists() else _stub_beside(backends),
        library_folders=(_library_folder(),),
        version=None,
    )


def _bundled() -> TritonInstallation:
    try:
        wheel = distribution(_WHEEL)
    except PackageNotFoundError:
        raise ServerError(
            "no Triton found: put tritonserver on PATH, or install the bundled one with "
            f"{install_hint('serve')}"
        ) from None
    site = Path(str(wheel.locate_file("")))
    root = site / "pytriton" / "tritonserver"
    backends = root / "backends"
    return TritonInstallation(
        kind="bundled",
        executable=root / "bin" / "tritonserver",
        backends=backends,
        stub=_stub_beside(backends),
        library_folders=(
            site / "nvidia_pytriton.libs",
            Path(sysconfig.get_config_var("LIBDIR")),
            _library_folder(),
        ),
        version=BUNDLED,
    )


def _stub_beside(backends: Path) -> Path | None:
    """Return the stub for this Python where it lies as in the wheel, beside the backends."""
    stub = backends.parent / "python_backend_stubs" / _PYTHON_VERSION / _STUB
    return stub if stub.is_file() else None


def _library_folder() -> Path:
    """The folder even where the op library is missing: whether it must be there is the entries' matter."""
    return Path(str(files("sparse_serve") / "lib"))


def backend_directory(installation: TritonInstallation, target: Path, needed: Iterable[str] = ()) -> Path:
    """Make `target` a backend directory: the `needed` ones of the server's own, Python's, and this package's.

    Where the server has no onnxruntime backend, this package's takes its place. All are copies or hard links,
    because Triton refuses symbolic links out of a backend directory.

    Raises:
        ServerError: this package's onnxruntime backend has to take that place, and is not installed, or has
            no ONNX Runtime.
    """
    for name in sorted({PYTHON, *filter(None, needed)} - {TEXT_BACKEND}):
        if name == Path(name).name and (installation.backends / name).is_dir():
            shutil.copytree(
                installation.backends / name, target / name, copy_function=_link, ignore=_COMPILED
            )
    if installation.stub is not None:
        (target / PYTHON).mkdir(parents=True, exist_ok=True)
        _link(installation.stub, target / PYTHON / _STUB)
    if not installation.has_onnxruntime:
        (target / ONNXRUNTIME).mkdir()
        library = _library_folder() / _ONNXRUNTIME_BACKEND
        if not library.is_file():
            raise ServerError(f"{library} is missing: install sparse-serve again")
        _link(library, target / ONNXRUNTIME / _ONNXRUNTIME_BACKEND)
        _link(_onnxruntime_library(), target / ONNXRUNTIME / "libonnxruntime.so")
    package = Path(__file__).parents[1]
    _copy(package / "triton" / "text_backend", target / TEXT_BACKEND)
    for name in TEXT_BACKEND_MODULES:
        _copy(package / name, target / TEXT_BACKEND / package.name / name)
    return target


def _onnxruntime_library() -> Path:
    """Return the shared library that lies in the onnxruntime wheel beside its Python module.

    Raises:
        ServerError: the package is not installed, or came without it.
    """
    for name in _ONNXRUNTIME_WHEELS:
        try:
            folder = Path(str(distribution(name).locate_file("onnxruntime/capi")))
        except PackageNotFoundError:
            continue
        for path in sorted(folder.glob("libonnxruntime.so.*")):
            return path
    raise ServerError(
        f"this package's onnxruntime backend needs the library of one of the packages "
        f"{', '.join(_ONNXRUNTIME_WHEELS)}: {install_hint('serve')}"
    )


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=_COMPILED)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(Path(source).resolve(), target)
    except OSError:  # another file system, or another owner's file
        shutil.copy2(source, target)
