"""Where a Triton server is, and what has to be arranged for it to run here."""

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.resources import files
from pathlib import Path
from typing import Literal

from sparse_serve.errors import ServerError
from sparse_serve.repository.releases import BUNDLED

Mode = Literal["auto", "path", "bundled"]

_WHEEL = "nvidia-pytriton"
_HELP_SECONDS = 30


@dataclass(frozen=True)
class TritonInstallation:
    """A server program and the folders its backends and libraries come from.

    `python_backend` holds `libtriton_python.so`; None where the server has an onnxruntime backend of its
    own, so that its own backend directory serves. `library_folders` go before the user's LD_LIBRARY_PATH.
    """

    kind: Literal["path", "bundled"]
    executable: Path
    python_backend: Path | None
    stub: Path | None
    library_folders: tuple[Path, ...]
    version: str | None

    def variables(self) -> dict[str, str]:
        """Return the variables the server needs set, the op library's folder on its library path."""
        folders = [*map(str, self.library_folders), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
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


def find_triton(mode: Mode = "auto") -> TritonInstallation:
    """Return the `tritonserver` on PATH, or the one inside the nvidia-pytriton wheel.

    Raises:
        ServerError: there is none, or the environment cannot run it.
    """
    if mode in ("auto", "path"):
        executable = shutil.which("tritonserver")
        if executable is not None:
            return _on_path(Path(executable).resolve())
        if mode == "path":
            raise ServerError("no tritonserver on PATH: install Triton, or use --mode bundled")
    return _bundled()


def _on_path(executable: Path) -> TritonInstallation:
    backends = executable.parent.parent / "backends"
    has_python = (backends / "python" / "libtriton_python.so").is_file()
    has_onnxruntime = (backends / "onnxruntime").is_dir()
    return TritonInstallation(
        kind="path",
        executable=executable,
        python_backend=backends / "python" if has_python and not has_onnxruntime else None,
        stub=None,
        library_folders=_op_library_folder(),
        version=None,
    )


def _bundled() -> TritonInstallation:
    try:
        wheel = distribution(_WHEEL)
    except PackageNotFoundError:
        raise ServerError(
            "no Triton found: put tritonserver on PATH, or install the bundled one with "
            "pip install 'sparse-serve[serve]'"
        ) from None
    if int(version("numpy").split(".")[0]) >= 2:
        raise ServerError(
            f"numpy {version('numpy')} breaks the Python stub of the bundled Triton: "
            "install numpy<2 in this environment"
        )
    site = Path(str(wheel.locate_file("")))
    root = site / "pytriton" / "tritonserver"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = root / "python_backend_stubs" / python / "triton_python_backend_stub"
    if not stub.is_file():
        raise ServerError(
            f"the bundled Triton has no Python stub for Python {python}: use Python 3.11 or 3.12"
        )
    return TritonInstallation(
        kind="bundled",
        executable=root / "bin" / "tritonserver",
        python_backend=root / "backends" / "python",
        stub=stub,
        library_folders=(
            site / "nvidia_pytriton.libs",
            Path(sysconfig.get_config_var("LIBDIR")),
            *_op_library_folder(),
        ),
        version=BUNDLED,
    )


def _op_library_folder() -> tuple[Path, ...]:
    """The folder even where the library is missing: whether it must be there is the entries' matter."""
    return (Path(str(files("sparse_serve") / "lib")),)


def backend_directory(installation: TritonInstallation, target: Path) -> Path | None:
    """Fill `target` with a backend directory that has our onnxruntime backend; None if none is needed.

    Copies, because Triton refuses links out of a backend directory.
    """
    if installation.python_backend is None:
        return None
    python = target / "python"
    python.mkdir(parents=True)
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        shutil.copy2(installation.python_backend / name, python / name)
    stub = installation.stub or installation.python_backend / "triton_python_backend_stub"
    shutil.copy2(stub, python / "triton_python_backend_stub")
    onnxruntime = target / "onnxruntime"
    onnxruntime.mkdir()
    source = files("sparse_serve") / "triton" / "onnxruntime_backend" / "model.py"
    (onnxruntime / "model.py").write_bytes(source.read_bytes())
    return target
