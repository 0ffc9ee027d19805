"""Energy and GPUs by counters that stand in for the machine's: read where they are, absent where not."""

from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
from fake_nvml import no_driver, one_h200

from sparse_serve.profiling import energy
from sparse_serve.profiling.energy import PowerMeter
from sparse_serve.profiling.windows import GpuSample


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The counters of two processor packages, which begin anew at 10 J, beside those of other zones.

    Cores and memory lie within a package, and psys has the packages within it.
    """
    zones = {
        "intel-rapl:0": "package-0",
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "dram",
        "intel-rapl:1": "package-1",
        "intel-rapl:1:0": "core",
        "intel-rapl:2": "psys",
        "intel-rapl-mmio:0": "package-0",
    }
    for zone, name in zones.items():
        path = tmp_path / zone
        path.mkdir()
        (path / "name").write_text(f"{name}\n")
        (path / "energy_uj").write_text("9000000")
        (path / "max_energy_range_uj").write_text("10000000")
    monkeypatch.setattr(energy, "_ZONES", tmp_path)
    return [tmp_path / zone / "energy_uj" for zone in zones]


def test_without_counters_and_gpus_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "_ZONES", tmp_path / "missing")
    no_driver(monkeypatch)
    meter = PowerMeter()
    assert meter.energy_mj() == 0
    assert meter.gpu_sample() is None
    assert meter.gpu_bytes([1]) is None


def test_a_counter_that_begins_anew_goes_on(packages: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    no_driver(monkeypatch)
    meter = PowerMeter()
    first, *_, second, _core, _psys, _mmio = packages
    first.write_text("9500000")
    assert meter.energy_mj() == 500
    first.write_text("500000")
    second.write_text("9250000")
    assert meter.energy_mj() == 500 + 1000 + 250


def test_what_lies_within_a_package_is_not_counted_again(
    packages: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_driver(monkeypatch)
    meter = PowerMeter()
    for path in packages:
        path.write_text("9500000")
    assert meter.energy_mj() == 2 * 500


def test_gpus_are_read_and_what_they_do_not_tell_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = [
        SimpleNamespace(pid=11, usedGpuMemory=3 << 20),
        SimpleNamespace(pid=12, usedGpuMemory=1 << 20),
        SimpleNamespace(pid=13, usedGpuMemory=None),
    ]
    one_h200(
        monkeypatch,
        nvmlDeviceGetCount=2,
        nvmlDeviceGetTotalEnergyConsumption=lambda gpu: 1000 * (gpu + 1),
        nvmlDeviceGetUtilizationRates=lambda gpu: SimpleNamespace(gpu=40 * gpu),
        nvmlDeviceGetClockInfo=1980,
        nvmlDeviceGetCurrentClocksThrottleReasons=0b101,
        nvmlDeviceGetPowerUsage=pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED),
        nvmlDeviceGetComputeRunningProcesses=lambda gpu: processes if gpu else [],
    )
    monkeypatch.setattr(energy, "_ZONES", Path("/missing"))
    meter = PowerMeter()
    assert meter.energy_mj() == 3000
    assert meter.gpu_sample() == GpuSample(0.4, 1980.0, power_watts=None, clock_limits=("power cap",))
    assert meter.gpu_free_bytes() == 2 * 140 * 10**9
    assert meter.gpu_bytes([11, 13, 99]) == 3 << 20
    assert meter.gpu_bytes([13]) is None
