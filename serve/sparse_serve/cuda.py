"""What stands between a graph and an NVIDIA GPU: driver, ONNX Runtime's provider, op library, device memory.

Where one of them is missing, ONNX Runtime computes on the processor without a word. So whoever is asked for a
GPU asks here first. `probe` alone looks at the machine.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pynvml

from sparse_serve.errors import DeviceError, OpLibraryError, first_line
from sparse_serve.extras import install_hint
from sparse_serve.nvml import CudaDevice, read_driver
from sparse_serve.op_library import Device, library_cuda, verify_library

CPU_PROVIDER, CUDA_PROVIDER = "CPUExecutionProvider", "CUDAExecutionProvider"
CUDA_OPTIONS = {"use_tf32": "0"}
"""Of the provider: float32 is computed as such, or it is not within the gate's error."""

# What `CUDA_PARAMETERS` of `config.pbtxt` say, as ONNX Runtime's own interface has it.
_ARENA_OPTIONS = {"arena_extend_strategy": "kSameAsRequested", "cudnn_conv_algo_search": "HEURISTIC"}
# Of the oldest GPUs that the op library has code for.
_LEAST_CAPABILITY = (8, 0)
_OUT_OF_MEMORY = re.compile(
    r"out of memory|cudaErrorMemoryAllocation|Failed to allocate memory|STATUS_ALLOC_FAILED"
    r"|is smaller than requested bytes",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Machine:
    """What this machine has for a graph on a GPU.

    Attributes:
        devices: its GPUs.
        driver: version of NVIDIA's driver; None where none answers.
        driver_cuda: the newest CUDA that it runs, such as (13, 0).
        fault: why the driver does not answer; None where it does.
        providers: of the ONNX Runtime in this environment; none where there is none.
        onnxruntime: its version.
        runtime_cuda: the CUDA that it was built with; None where it was built without.
        library_cuda: that of the installed op library for GPUs; None where there is none.
    """

    devices: Sequence[CudaDevice] = ()
    driver: str | None = None
    driver_cuda: tuple[int, int] = (0, 0)
    fault: str | None = None
    providers: Sequence[str] = ()
    onnxruntime: str | None = None
    runtime_cuda: tuple[int, int] | None = None
    library_cuda: tuple[int, int] | None = None

    @property
    def gpu_obstacle(self) -> str | None:
        """Why nothing computes on a GPU here, and what to do; None where something can."""
        if self.fault is not None:
            return (
                f"no NVIDIA driver answers here ({self.fault}): install it, load it again by a restart, or "
                "start the container with --gpus all"
            )
        if not self.devices:
            return f"NVIDIA's driver {self.driver} sees no GPU here: make one visible to it"
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None and hidden.strip() in ("", "-1"):
            return f"CUDA_VISIBLE_DEVICES='{hidden}' hides every GPU here: unset it"
        best = max(self.devices, key=lambda device: device.capability)
        if best.capability < _LEAST_CAPABILITY:
            return (
                f"{best.name} has compute capability {_dotted(best.capability)}, at least "
                f"{_dotted(_LEAST_CAPABILITY)} is needed: take an A100 or a newer GPU"
            )
        return None

    @property
    def server_obstacle(self) -> str | None:
        """Why no server computes on a GPU with the op library that is installed; None where one can."""
        if (obstacle := self.gpu_obstacle) is not None:
            return obstacle
        if self.library_cuda is not None and self.driver_cuda[0] < self.library_cuda[0]:
            return (
                f"NVIDIA's driver {self.driver} runs CUDA up to {_dotted(self.driver_cuda)}, the op library "
                f"was built with {_dotted(self.library_cuda)}: install a newer driver, or build it with an "
                "nvcc for this one (make cuda NVCC=/path/to/nvcc)"
            )
        return None

    @property
    def runtime_obstacle(self) -> str | None:
        """Why ONNX Runtime does not compute on a GPU in this process, and what to do; None where it can."""
        if (obstacle := self.server_obstacle) is not None:
            return obstacle
        if self.onnxruntime is None:
            return f"there is no ONNX Runtime here: {install_hint('gpu')}"
        if CUDA_PROVIDER not in self.providers:
            return (
                f"ONNX Runtime {self.onnxruntime} has no {CUDA_PROVIDER} here, only "
                f"{', '.join(self.providers)}: install onnxruntime-gpu in the place of onnxruntime"
            )
        if self.runtime_cuda is not None and self.driver_cuda[0] < self.runtime_cuda[0]:
            return (
                f"NVIDIA's driver {self.driver} runs CUDA up to {_dotted(self.driver_cuda)}, ONNX Runtime "
                f"{self.onnxruntime} was built with {_dotted(self.runtime_cuda)}: install a newer driver, or "
                "an onnxruntime-gpu for this one"
            )
        return None


def probe() -> Machine:
    """Look at this machine: its driver, its GPUs, its ONNX Runtime and the op library for GPUs."""
    providers, onnxruntime, runtime_cuda = _runtime()
    found: dict[str, Any] = {
        "providers": providers,
        "onnxruntime": onnxruntime,
        "runtime_cuda": runtime_cuda,
        "library_cuda": _library_cuda(),
    }
    try:
        driver = read_driver()
    except pynvml.NVMLError as error:
        return Machine(**found, fault=str(error))
    return Machine(**found, devices=driver.devices, driver=driver.version, driver_cuda=driver.cuda)


def _runtime() -> tuple[list[str], str | None, tuple[int, int] | None]:
    """Return the providers of the ONNX Runtime here, its version, and that of the CUDA it was built with."""
    try:
        import onnxruntime  # noqa: PLC0415  not everywhere, and not for who only reads entries
        from onnxruntime.capi import build_and_package_info  # noqa: PLC0415
    except ImportError:
        return [], None, None
    built = re.match(r"(\d+)\.(\d+)", str(getattr(build_and_package_info, "cuda_version", "")))
    cuda = (int(built[1]), int(built[2])) if built else None
    return list(onnxruntime.get_available_providers()), str(onnxruntime.__version__), cuda


def _library_cuda() -> tuple[int, int] | None:
    try:
        return library_cuda(verify_library("cuda"))
    except OpLibraryError:
        return None


def require_gpu(subject: str) -> None:
    """Refuse what is to be computed on a GPU of this machine, by another process.

    Raises:
        DeviceError: there is none that can; says that `subject` needs it, and why it cannot.
    """
    if (obstacle := probe().gpu_obstacle) is not None:
        raise DeviceError(f"{subject} needs a GPU, but {obstacle}")


def require_server(subject: str) -> None:
    """Refuse what a server of this machine is to compute on a GPU with the op library that is installed.

    Raises:
        DeviceError: none can; says that `subject` needs it, and why it cannot.
    """
    if (obstacle := probe().server_obstacle) is not None:
        raise DeviceError(f"{subject} needs a GPU, but {obstacle}")


def require_runtime(subject: str) -> None:
    """Refuse what is to be computed on a GPU by the ONNX Runtime of this process.

    Raises:
        DeviceError: it cannot; says that `subject` needs it, and why it cannot.
    """
    if (obstacle := probe().runtime_obstacle) is not None:
        raise DeviceError(f"{subject} needs a GPU, but {obstacle}")


def session_providers(provider: str) -> list[Any]:
    """Return what a session of ONNX Runtime is given to compute on a provider."""
    if provider != CUDA_PROVIDER:
        return [provider]
    return [(CUDA_PROVIDER, {**_ARENA_OPTIONS, **CUDA_OPTIONS}), CPU_PROVIDER]


def require_provider(session: Any, provider: str) -> None:
    """Refuse a session that has taken another provider than it was opened with.

    Raises:
        DeviceError: ONNX Runtime could not load it.
    """
    if provider not in session.get_providers():
        raise DeviceError(
            f"ONNX Runtime computes by {session.get_providers()[0]} where {provider} was asked for: a "
            "library of CUDA or cuDNN that it needs does not load; its log, on stderr, names it"
        )


def is_out_of_memory(message: str) -> bool:
    """Tell whether ONNX Runtime or CUDA says that memory was not to be had."""
    return _OUT_OF_MEMORY.search(message) is not None


MEMORY_REMEDY = (
    "the GPU's memory is full: end what else is on it, compute fewer texts at a time, or have one instance"
)


@contextmanager
def telling_memory(device: Device, what: str) -> Iterator[None]:
    """Run a session on a device.

    Args:
        device: what computes.
        what: is computed, as the error names it.

    Raises:
        DeviceError: it has no memory left.
    """
    try:
        yield
    except Exception as error:  # ONNX Runtime's exceptions share no base
        if device == "cuda" and is_out_of_memory(str(error)):
            raise DeviceError(f"{what} does not fit: {first_line(error)}; {MEMORY_REMEDY}") from error
        raise


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
