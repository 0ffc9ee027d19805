"""Energy and GPUs as their own counters tell: RAPL of the processor's packages, NVML of NVIDIA's devices.

Both count for the whole package or device, whoever used it. What cannot be read is absent, never zero.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml

from sparse_serve.nvml import open_gpus
from sparse_serve.profiling.windows import GpuSample

_ZONES = Path("/sys/class/powercap")
# What keeps a GPU's clocks below the highest, by NVML's bits; that nothing is to be done is no limit.
_CLOCK_LIMITS = {
    pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting: "clocks that were set",
    pynvml.nvmlClocksThrottleReasonSwPowerCap: "power cap",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksThrottleReasonSyncBoost: "sync boost",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "heat",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "heat (hardware)",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power brake",
    pynvml.nvmlClocksThrottleReasonDisplayClockSetting: "display clocks",
}


def energy_counters() -> list[Path]:
    """Return the counters of energy in µJ, one for each processor package, that this process may read.

    What lies within a package (cores, graphics) and what packages lie within (psys) have counters beside
    them, and would be counted twice.
    """
    return [path for path in sorted(_ZONES.glob("intel-rapl:*/energy_uj")) if _is_package(path.parent)]


def _is_package(zone: Path) -> bool:
    try:
        name = (zone / "name").read_text(encoding="ascii")
    except OSError:
        return False
    is_outermost = re.fullmatch(r"intel-rapl:\d+", zone.name) is not None
    return is_outermost and name.startswith("package-") and _microjoules(zone / "energy_uj") > 0


def _microjoules(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


class PowerMeter:
    """Counts the energy that the processor packages and GPUs of this machine take."""

    def __init__(self) -> None:
        self._packages = dict.fromkeys(energy_counters(), 0)
        self._last = {path: _microjoules(path) for path in self._packages}
        self._limits = {path: _microjoules(path.with_name("max_energy_range_uj")) for path in self._packages}
        self.gpus: list[Any] = []
        with suppress(pynvml.NVMLError):
            self.gpus = open_gpus()

    def energy_mj(self) -> int:
        """Return a count of energy in mJ, of all counters together, that only grows; 0 where there are none.

        Counters of packages begin anew at their limit, after hours; this must be asked at least as often.
        """
        for path in self._packages:
            now = _microjoules(path)
            passed = now - self._last[path]
            self._packages[path] += passed if passed >= 0 else passed + self._limits[path]
            self._last[path] = now
        energy = sum(self._packages.values()) // 1000
        for gpu in self.gpus:
            with suppress(pynvml.NVMLError):
                energy += int(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu))
        return energy

    def gpu_sample(self) -> GpuSample | None:
        """Return what the busiest GPU does now; None where there is none."""
        samples = [_sample(gpu) for gpu in self.gpus]
        return max(samples, key=lambda sample: sample.utilisation or 0.0, default=None)

    def gpu_bytes(self, process_ids: Sequence[int]) -> int | None:
        """Return the device memory of the processes, in bytes; None where the driver does not tell it."""
        found = None
        for gpu in self.gpus:
            with suppress(pynvml.NVMLError):
                for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu):
                    if process.pid in process_ids and process.usedGpuMemory is not None:
                        found = (found or 0) + int(process.usedGpuMemory)
        return found

    def gpu_free_bytes(self) -> int | None:
        """Return what is free of the memory of all GPUs, as `cudaMemGetInfo` has it; None if one is mute."""
        if not self.gpus:
            return None
        try:
            return sum(int(pynvml.nvmlDeviceGetMemoryInfo(gpu).free) for gpu in self.gpus)
        except pynvml.NVMLError:
            return None


def _sample(gpu: Any) -> GpuSample:
    utilisation = clock = power = None
    limits: tuple[str, ...] = ()
    with suppress(pynvml.NVMLError):
        utilisation = pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100
    with suppress(pynvml.NVMLError):
        clock = float(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM))
    with suppress(pynvml.NVMLError):
        power = pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000
    with suppress(pynvml.NVMLError):
        reasons = int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))
        limits = tuple(name for bit, name in _CLOCK_LIMITS.items() if reasons & bit)
    return GpuSample(utilisation, clock, power, limits)
