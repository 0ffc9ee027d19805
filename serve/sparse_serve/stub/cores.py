"""The cores that this process may compute on."""

import os
from collections.abc import Collection
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")


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
