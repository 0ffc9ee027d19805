"""The processor: what it computes right, and which of its cores this process may compute on."""

import os
import platform
from collections.abc import Collection
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_CPUS = Path("/sys/devices/system/cpu")
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


def physical_cores(cpus: Path = _CPUS, numbers: Collection[int] | None = None) -> int:
    """Return how many cores some processors are of, by their numbers; None for all that this process may use.

    Two threads that multiply matrices on one core are no faster than one. `cpus` is where Linux tells of its
    processors; those that it tells nothing of are taken for a core each.
    """
    used = os.sched_getaffinity(0) if numbers is None else numbers
    return len({_siblings(cpus, number) for number in used})


def _siblings(cpus: Path, number: int) -> str:
    """Return what names a processor's core: all the processors that are of it."""
    try:
        return (cpus / f"cpu{number}" / "topology" / "thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return str(number)
