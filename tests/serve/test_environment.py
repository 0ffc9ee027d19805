"""What is said of the machine, and in a report of the software on it."""

import ctypes
import os
from pathlib import Path

import pynvml
import pytest
from fake_nvml import no_driver, one_h200

from shared_library import compile_library
from sparse_serve.environment import read_gpus
from sparse_serve.errors import OpLibraryError
from sparse_serve.processor import usable_cores
from sparse_serve.profiling import provenance
from sparse_serve.profiling.provenance import read_environment
from sparse_serve.triton.installation import find_triton

HERE = Path(__file__).parent
SERVE = HERE.parents[1] / "serve"
NO_GROUP = HERE / "no_such_group"


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
def test_usable_cores(
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
    assert usable_cores(tmp_path, allowed, NO_GROUP) == cores
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: allowed)
    assert usable_cores(tmp_path, control_group=NO_GROUP) == cores


@pytest.fixture(scope="module")
def backends_cores(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """What the onnxruntime backend has of it. Needs a C++ compiler, CXX or g++."""
    path = tmp_path_factory.mktemp("cores") / "cores.so"
    sources = [HERE / "cores_bridge.cc", SERVE / "onnxruntime_backend" / "cores.cc"]
    compile_library(path, sources, f"-I{SERVE}")
    return ctypes.CDLL(str(path))


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "110000 100000"}, 2),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu.max": "two"}, None),
    ],
    ids=[
        "no group",
        "no limit",
        "one",
        "half of one",
        "more than one",
        "one, v1",
        "no limit, v1",
        "no number",
    ],
)
def test_usable_cores_are_no_more_than_a_control_group_has_time_for(
    tmp_path: Path, backends_cores: ctypes.CDLL, files: dict[str, str], limit: int | None
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n", encoding="ascii")
    many = 10
    assert usable_cores(tmp_path, range(many), tmp_path) == (limit or many)
    own = usable_cores(control_group=NO_GROUP)
    assert usable_cores(control_group=tmp_path) == min(own, limit or own)
    assert backends_cores.usable_cores(bytes(tmp_path)) == min(own, limit or own)
