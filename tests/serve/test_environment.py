"""What is said of the machine, and in a report of the software on it."""

from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from sparse_serve.environment import read_gpus
from sparse_serve.errors import OpLibraryError
from sparse_serve.profiling import provenance
from sparse_serve.profiling.provenance import read_environment
from sparse_serve.triton.installation import find_triton


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    found = read_environment(find_triton("bundled"), "2.51.0")
    assert found.gpus is None
    assert found.triton == "2.51.0 (release 24.10, bundled)"
    assert found.onnxruntime is not None
    assert found.cpu.model in Path("/proc/cpuinfo").read_text(encoding="utf-8")


def test_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlSystemGetCudaDriverVersion_v2": 12040,
        "nvmlSystemGetDriverVersion": "550.54",
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=141 * 10**9),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, lambda *_, answer=answer: answer)
    (gpu,) = read_gpus() or ()
    assert (gpu.name, gpu.memory_bytes, gpu.driver, gpu.cuda) == (
        "NVIDIA H200",
        141 * 10**9,
        "550.54",
        "12.4",
    )


def test_without_an_op_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise OpLibraryError("missing")

    monkeypatch.setattr(provenance, "library_path", missing)
    assert read_environment(find_triton("bundled"), "2.51.0").op_library is None
