"""NVIDIA's driver and GPUs as NVML tells of them, from beside what computes there: looking takes nothing."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pynvml


@dataclass(frozen=True)
class CudaDevice:
    """One GPU.

    Attributes:
        name: such as "NVIDIA H200".
        memory_bytes: all of its memory.
        capability: its compute capability, such as (9, 0).
        max_sm_clock_mhz: the highest clock of its multiprocessors; None where it does not tell.
        application_clock_mhz: the clock that was set for applications, likewise. Clocks that were locked are
            not told by any driver.
    """

    name: str
    memory_bytes: int
    capability: tuple[int, int]
    max_sm_clock_mhz: int | None = None
    application_clock_mhz: int | None = None


@dataclass(frozen=True)
class Driver:
    """The driver: its version, the newest CUDA that it runs, such as (13, 0), and its GPUs."""

    version: str
    cuda: tuple[int, int]
    devices: tuple[CudaDevice, ...]


def open_gpus() -> list[Any]:
    """Return NVML's handles of all GPUs, which hold until `pynvml.nvmlShutdown`.

    Raises:
        NVMLError: no driver answers.
    """
    pynvml.nvmlInit()
    return [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]


def read_driver() -> Driver:
    """Look at the driver and its GPUs.

    Raises:
        NVMLError: no driver answers.
    """
    handles = open_gpus()
    try:
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        return Driver(
            version=str(pynvml.nvmlSystemGetDriverVersion()),
            cuda=(cuda // 1000, cuda % 1000 // 10),
            devices=tuple(map(_device, handles)),
        )
    finally:
        pynvml.nvmlShutdown()


def _device(handle: Any) -> CudaDevice:
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    fastest = applications = None
    with suppress(pynvml.NVMLError):
        fastest = int(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM))
    with suppress(pynvml.NVMLError):
        applications = int(pynvml.nvmlDeviceGetApplicationsClock(handle, pynvml.NVML_CLOCK_SM))
    return CudaDevice(
        name=str(pynvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        capability=(int(major), int(minor)),
        max_sm_clock_mhz=fastest,
        application_clock_mhz=applications,
    )
