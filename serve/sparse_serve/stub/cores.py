"""The cores that this process may compute on."""

import os
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")


def physical_cores(cpus: Path = _CPUS) -> int:
    """Return how many cores this process may run on, of which each may show as several processors.

    Two threads that multiply matrices on one core are no faster than one. `cpus` is where Linux tells of its
    processors; those that it tells nothing of are taken for a core each.
    """
    return len({_siblings(cpus, number) for number in os.sched_getaffinity(0)})


def _siblings(cpus: Path, number: int) -> str:
    """Return what names a processor's core: all the processors that are of it."""
    try:
        return (cpus / f"cpu{number}" / "topology" / "thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return str(number)
