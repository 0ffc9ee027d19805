"""Memory on GPUs as a profile tells it, by a driver and a server that stand in for real ones."""

import csv
import io
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pynvml
import pytest
from fake_nvml import no_driver, one_h200
from sample_report import MIB, measurement, report_of, servers
from tiny_entry import tiny_graph

from sparse_serve.environment import read_gpus
from sparse_serve.profiling import subjects
from sparse_serve.profiling.energy import PowerMeter
from sparse_serve.profiling.gpu_memory import ARENA_LOG, GpuReading, GpuWatch, arena_bytes
from sparse_serve.profiling.memory import measure_memory
from sparse_serve.profiling.subjects import Place, find_subjects, serving
from sparse_serve.report.measured import GpuMemory, GpuUse
from sparse_serve.report.page import to_html
from sparse_serve.report.sentences import clocks, findings
from sparse_serve.report.table import to_csv
from sparse_serve.repository.computing import Computing
from sparse_serve.repository.config import CONFIG_NAME, read_config
from sparse_serve.repository.entries import read_entry
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.triton.server import ServerOptions

LOG = """
[I:onnxruntime:Default, bfc_arena.cc:28 BFCArena] Creating BFCArena for Cuda with following configs: 0
[I:onnxruntime:Default, bfc_arena.cc:281 Reserve] Reserving memory in BFCArena for Cuda size: 1000
[I:onnxruntime:Default, bfc_arena.cc:281 Reserve] Reserving memory in BFCArena for CudaPinned size: 7000
[I:onnxruntime:Default, bfc_arena.cc:347 Alloc] Extending BFCArena for Cuda. bin_num:8 rounded_bytes:2000
[I:onnxruntime:Default, bfc_arena.cc:206 Extend] Extended allocation by 2000 bytes.
[I:onnxruntime:Default, bfc_arena.cc:347 Alloc] Extending BFCArena for CudaPinned. bin_num:8 bytes:9000
[I:onnxruntime:Default, bfc_arena.cc:206 Extend] Extended allocation by 9000 bytes.
[V:onnxruntime:Default, bfc_arena.cc:500 Shrink] Cuda BFC Arena shrunk by 2000 bytes.
[I:onnxruntime:Default, bfc_arena.cc:347 Alloc] Extending BFCArena for Cuda. bin_num:8 rounded_bytes:500
[I:onnxruntime:Default, bfc_arena.cc:206 Extend] Extended allocation by 500 bytes.
"""


def test_the_arenas_mark_is_in_the_log() -> None:
    assert arena_bytes(LOG) == 3000
    assert arena_bytes("") is None
    assert arena_bytes(LOG.replace("Cuda", "Cpu")) is None


def test_the_log_has_onnxruntimes_own_words(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    onnxruntime.set_default_logger_severity(0)
    try:
        onnxruntime.InferenceSession(tiny_graph(tmp_path / "g.onnx"), providers=["CPUExecutionProvider"])
    finally:
        onnxruntime.set_default_logger_severity(2)
    log = capfd.readouterr().err
    assert "BFCArena for Cpu" in log
    assert arena_bytes(log.replace("BFCArena for Cpu", "BFCArena for Cuda"))


def test_a_watch_sees_what_the_gpu_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [1000 * MIB]
    one_h200(
        monkeypatch,
        nvmlDeviceGetMemoryInfo=lambda _gpu: SimpleNamespace(total=2000 * MIB, free=free[-1]),
        nvmlDeviceGetComputeRunningProcesses=lambda _gpu: [SimpleNamespace(pid=7, usedGpuMemory=300 * MIB)],
    )
    watch = GpuWatch(PowerMeter(), tmp_path / "log")
    free.append(200 * MIB)  # while it loads

    def request() -> None:
        free.append(600 * MIB)
        deadline = time.monotonic() + 30
        while watch.read([7]).taken != 400 * MIB and time.monotonic() < deadline:
            time.sleep(0.005)
        free.append(700 * MIB)

    free.append(750 * MIB)
    assert watch.read([7]) == GpuReading(300 * MIB, 0, None)
    (tmp_path / "log").write_text(LOG)
    monkeypatch.setattr("sparse_serve.profiling.memory.reset_peaks", lambda _pids: None)
    readings = measure_memory(list, lambda: None, {1: request}, watch)
    assert readings[1].gpu == GpuReading(None, 400 * MIB, 3000)


def test_what_no_driver_tells_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_driver(monkeypatch)
    watch = GpuWatch(PowerMeter(), tmp_path / "log")
    with watch.sampling():
        pass
    assert watch.read([7]) == GpuReading(None, None, None)
    one_h200(
        monkeypatch,
        nvmlDeviceGetMemoryInfo=pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED),
        nvmlDeviceGetComputeRunningProcesses=pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED),
    )
    watch = GpuWatch(PowerMeter(), tmp_path / "log")
    with watch.sampling():
        pass
    assert watch.read([7]) == GpuReading(None, None, None)
    assert read_gpus() is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("for_memory", [True, False])
def test_servers_on_a_gpu_are_watched_where_memory_is_measured(
    tmp_path: Path,
    make_spec: Callable[..., EntrySpec],
    monkeypatch: pytest.MonkeyPatch,
    device: Any,
    for_memory: bool,
) -> None:
    no_driver(monkeypatch)
    spec = make_spec(device=device, computing=Computing(device=device))
    entry = read_entry(write_entry(tmp_path, spec))
    started: list[tuple[ServerOptions, Any]] = []

    class Server:
        log_path, grpc_url = tmp_path / "log", ""
        grpc_headers: Mapping[str, str] = {}

        def __init__(self, options: ServerOptions, view: Any) -> None:
            started.append((options, view))

        def __enter__(self) -> "Server":
            return self

        def __exit__(self, *_error: object) -> None:
            pass

        def process_ids(self) -> list[int]:
            return []

    monkeypatch.setattr(subjects, "TritonServer", Server)
    monkeypatch.setattr(subjects, "_clients", lambda *_: [])
    (subject,), _ = find_subjects(entry, ("model",))
    with serving(subject, Place(1, None, PowerMeter()), 1, for_memory=for_memory) as served:
        is_watched = for_memory and device == "cuda"
        assert (served.watch is not None) == is_watched
    ((options, view),) = started
    assert options.extra_args == ((ARENA_LOG,) if is_watched else ())
    config = read_config(entry.graph_path / CONFIG_NAME)
    view.edit(config)
    # Whoever measures what requests take does not want what a full batch has taken before.
    assert len(config.model_warmup) == (3 if device == "cuda" and not for_memory else 1)


def test_a_report_has_the_gpus_memory_and_clocks() -> None:
    on_gpu = measurement(length=512)
    assert on_gpu.memory_bytes is not None
    gpu = GpuMemory(held=servers(900 * MIB), taken=servers(1200 * MIB), arena=None)
    use = GpuUse(
        utilisation=0.9,
        sm_clock_mhz=1900,
        power_watts=500,
        sm_clock_low_mhz=1755,
        sm_clock_high_mhz=1980,
        clock_limits=("power cap",),
    )
    on_gpu = on_gpu.model_copy(
        update={"memory_bytes": on_gpu.memory_bytes.model_copy(update={"gpu": gpu}), "gpu": use}
    )
    report = report_of([on_gpu])
    row = next(csv.DictReader(io.StringIO(to_csv(report))))
    assert (row["gpu_memory_held_bytes"], row["gpu_memory_taken_bytes"]) == (str(900 * MIB), str(1200 * MIB))
    assert (row["gpu_arena_bytes"], row["gpu_clock_limits"]) == ("", "power cap")
    said = " ".join(findings(report, "reviews"))
    assert "On the GPU, at 512 tokens: 900.0 MiB held by its processes, 1200.0 MiB taken" in said
    assert "arenas" not in said
    page = to_html(report)
    assert "Memory on the GPU, in MiB" in page
    assert "1755 to 1980 MHz, while requests ran; lowered by power cap" in page
    assert clocks(report_of([measurement()])) is None
    assert "Memory on the GPU" not in to_html(report_of([measurement()]))
