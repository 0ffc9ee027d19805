"""What is said of the machine, and in a report of the software on it."""

import os
from pathlib import Path

import pynvml
import pytest
from fake_nvml import no_driver, one_h200

from sparse_serve.environment import read_gpus
from sparse_serve.errors import OpLibraryError
from sparse_serve.processor import physical_cores
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


@pytest.mark.parametrize(
    ("siblings", "allowed", "cores"),
    [
        ({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, {0, 1, 2, 3}, 2),
        ({0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, {0, 2}, 1),
        ({0: "0", 1: "1"}, {0, 1}, 2),
        ({0: "0-1", 1: "0-1"}, {1}, 1),
        ({}, {0, 5}, 2),
    ],
    ids=["two threads a core", "one core of two", "one thread a core", "half a core", "nothing told"],
)
def test_physical_cores(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    siblings: dict[int, str],
    allowed: set[int],
    cores: int,
) -> None:
    for number, told in siblings.items():
        topology = tmp_path / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{told}\n", encoding="ascii")
    assert physical_cores(tmp_path, allowed) == cores
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: allowed)
    assert physical_cores(tmp_path) == cores
