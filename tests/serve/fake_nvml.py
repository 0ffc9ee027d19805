"""A driver of NVIDIA's that stands in for the machine's: NVML's functions, by what they answer."""

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from sparse_serve.nvml import CudaDevice

H200 = CudaDevice("NVIDIA H200", 141 * 10**9, (9, 0), max_sm_clock_mhz=1980, application_clock_mhz=1830)

_ONE_H200: dict[str, Any] = {
    "nvmlInit": None,
    "nvmlShutdown": None,
    "nvmlSystemGetCudaDriverVersion_v2": 12040,
    "nvmlSystemGetDriverVersion": "550.54",
    "nvmlDeviceGetCount": 1,
    "nvmlDeviceGetHandleByIndex": lambda number: number,
    "nvmlDeviceGetName": H200.name,
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=H200.memory_bytes, free=140 * 10**9),
    "nvmlDeviceGetCudaComputeCapability": H200.capability,
    "nvmlDeviceGetMaxClockInfo": H200.max_sm_clock_mhz,
    "nvmlDeviceGetApplicationsClock": H200.application_clock_mhz,
}


def one_h200(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> None:
    """Have NVML tell of one H200, and what else is given: a value, an error, or what is called for it."""
    for name, answer in {**_ONE_H200, **answers}.items():
        monkeypatch.setattr(pynvml, name, answer if callable(answer) else _answering(answer))


def no_driver(monkeypatch: pytest.MonkeyPatch, error: int = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND) -> None:
    """Have no driver answer."""
    monkeypatch.setattr(pynvml, "nvmlInit", _answering(pynvml.NVMLError(error)))


def _answering(answer: Any) -> Any:
    def function(*_arguments: object) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return function
