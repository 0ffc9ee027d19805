"""What is said of the machine, and in a report of the software on it."""

from pathlib import Path

import pynvml
import pytest
from fake_nvml import no_driver, one_h200

from sparse_serve.environment import read_gpus
from sparse_serve.errors import OpLibraryError
from sparse_serve.profiling import provenance
from sparse_serve.profiling.provenance import read_environment
from sparse_serve.triton.installation import find_triton


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    no_driver(monkeypatch)
    found = read_environment(find_triton("bundled"), "2.51.0")
    assert found.gpus is None
    assert found.triton == "2.51.0 (release 24.10, bundled)"
    assert found.onnxruntime is not None
    assert found.cpu.model in Path("/proc/cpuinfo").read_text(encoding="utf-8")


def test_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    one_h200(monkeypatch, nvmlDeviceGetApplicationsClock=pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED))
    (gpu,) = read_gpus() or ()
    assert (gpu.name, gpu.memory_bytes, gpu.driver, gpu.cuda) == (
        "NVIDIA H200",
        141 * 10**9,
        "550.54",
        "12.4",
    )
    assert (gpu.max_sm_clock_mhz, gpu.application_clock_mhz) == (1980, None)


def test_without_an_op_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise OpLibraryError("missing")

    monkeypatch.setattr(provenance, "library_path", missing)
    assert read_environment(find_triton("bundled"), "2.51.0").op_library is None
