"""The machine and the op library on it, as records."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import pynvml
from pydantic import BaseModel, ConfigDict, Field

from sparse_serve.digests import file_digest
from sparse_serve.nvml import read_driver
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
    """One NVIDIA device; `cuda` is the highest version its driver supports.

    Clocks of its multiprocessors in MHz, the highest and the one set for applications; None what it does not
    tell. Whether clocks are locked no driver tells: theirs do not vary while something computes.
    """

    name: str
    memory_bytes: int = Field(ge=0)
    driver: str
    cuda: str
    max_sm_clock_mhz: int | None = None
    application_clock_mhz: int | None = None


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
        driver = read_driver()
    except pynvml.NVMLError:
        return None
    return tuple(
        Gpu(
            name=device.name,
            memory_bytes=device.memory_bytes,
            driver=driver.version,
            cuda=".".join(map(str, driver.cuda)),
            max_sm_clock_mhz=device.max_sm_clock_mhz,
            application_clock_mhz=device.application_clock_mhz,
        )
        for device in driver.devices
    )


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
