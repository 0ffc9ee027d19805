"""The processor: what it computes right, and which of its cores this process may compute on."""

import math
import os
import platform
from collections.abc import Collection
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_CPUS = Path("/sys/devices/system/cpu")
_CONTROL_GROUP = Path("/sys/fs/cgroup")
_VNNI = {"avx512_vnni", "avx_vnni", "amx_int8"}


def has_vnni() -> bool:
    """Tell whether this processor adds products of 8-bit integers in 32 bits.

    Those of x86 without VNNI add two in 16 bits, which weights of 8 bits overflow; others never do.
    """
    if platform.machine() != "x86_64":
        return True
    return not _VNNI.isdisjoint(_CPUINFO.read_text(encoding="utf-8").split())


def vnni_warning(name: str, target_cpu: object) -> str | None:
    """Return what is wrong with an entry's int8 weights on this processor; None where nothing is."""
    if target_cpu != "vnni" or has_vnni():
        return None
    return (
        f"the int8 weights of '{name}' are for processors with VNNI, which this one has not: sums overflow "
        "and answers are wrong; to serve it here, export it with --target-cpu any"
    )


def usable_cores(
    cpus: Path = _CPUS, numbers: Collection[int] | None = None, control_group: Path = _CONTROL_GROUP
) -> int:
    """Return how many threads can compute at a time on some processors, by their numbers, None for all that
    this process may use.

    One for each core, as two that multiply matrices on one are no faster; no more than the process's control
    group has time for, as a container's that may use two of the many cores that it sees. `cpus` and
    `control_group` are where Linux tells of them; processors that it tells nothing of are taken for a core
    each.
    """
    used = os.sched_getaffinity(0) if numbers is None else numbers
    cores = len({_siblings(cpus, number) for number in used})
    return min(cores, math.ceil(quota)) if (quota := _quota(control_group)) is not None else cores


def _quota(control_group: Path) -> float | None:
    """Return of how many cores a control group has the time, in part perhaps; None where it has all."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            text = " ".join((control_group / name).read_text(encoding="ascii") for name in names)
            quota, period = map(float, text.split())
        except (OSError, ValueError):  # is not told; "max"
            continue
        if quota > 0 and period > 0:
            return quota / period
    return None


def _siblings(cpus: Path, number: int) -> str:
    """Return what names a processor's core: all the processors that are of it."""
    try:
        return (cpus / f"cpu{number}" / "topology" / "thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return str(number)
