"""The machine and the op library on it, as records."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import pynvml
from pydantic import BaseModel, ConfigDict, Field

from sparse_serve.digests import file_digest
from sparse_serve.op_library import instruction_set, library_version


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Cpu(_Record):
    """The processor; `cores` are those this process may use."""

    model: str
    architecture: str
    cores: int = Field(ge=1)
    memory_bytes: int = Field(ge=0)


class Gpu(_Record):
    """One NVIDIA device; `cuda` is the highest version its driver supports."""

    name: str
    memory_bytes: int = Field(ge=0)
    driver: str
    cuda: str


class OpLibrary(_Record):
    """What the installed op library is and says of itself."""

    sha256: str
    version: int
    instruction_set: str


def available_cores() -> int:
    """Return the number of processors this process may run on."""
    return len(os.sched_getaffinity(0))


def read_cpu() -> Cpu:
    """Describe the processors and memory this process may use."""
    return Cpu(
        model=_cpu_model(),
        architecture=platform.machine(),
        cores=available_cores(),
        memory_bytes=psutil.virtual_memory().total,
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or "unknown"


def read_gpus() -> tuple[Gpu, ...] | None:
    """Describe the GPUs; None where no NVIDIA driver answers."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return tuple(
            Gpu(
                name=str(pynvml.nvmlDeviceGetName(handle)),
                memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
                driver=driver,
                cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
            )
            for handle in handles
        )
    finally:
        pynvml.nvmlShutdown()


def read_op_library(path: Path) -> OpLibrary:
    """Describe the op library at `path`.

    Raises:
        OpLibraryError: the file is no loadable op library.
    """
    return OpLibrary(
        sha256=file_digest(path), version=library_version(path), instruction_set=instruction_set(path)
    )


def onnxruntime_version() -> str | None:
    """Return the version of the ONNX Runtime installed here, None if there is none."""
    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None
