"""The memory that requests take in a group of server processes.

Memory is resident memory as Linux counts it. Writing 5 to `/proc/PID/clear_refs` sets a process's high-water
mark (`VmHWM`) back to what is resident now, so that the mark read after a few requests is their peak and
not that of loading the model. Pages that processes share are counted in each of them, and the processes'
peaks are added although they need not fall together: the sum is an upper bound.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sparse_serve.errors import ServerError

MEMORY_ROUNDS = 3

_PEAK_RESET = "5"

Key = TypeVar("Key")


def resident_bytes(process_ids: Sequence[int]) -> int:
    """Return the resident memory (VmRSS) of the processes together, in bytes."""
    return sum(_status_bytes(pid, "VmRSS") for pid in process_ids)


def peak_bytes(process_ids: Sequence[int]) -> int:
    """Return the sum of the processes' high-water marks (VmHWM), in bytes."""
    return sum(_status_bytes(pid, "VmHWM") for pid in process_ids)


def reset_peaks(process_ids: Sequence[int]) -> None:
    """Set every process's high-water mark back to what is resident now.

    Raises:
        ServerError: a process is gone or belongs to another user, or the kernel lacks `clear_refs`.
    """
    for pid in process_ids:
        path = Path(f"/proc/{pid}/clear_refs")
        try:
            path.write_text(_PEAK_RESET, encoding="ascii")
        except OSError as error:
            raise ServerError(
                f"the peak memory of server process {pid} cannot be reset: {path}: {error.strerror}; "
                "profile needs Linux with /proc and a server of the same user"
            ) from error


def _status_bytes(pid: int, field: str) -> int:
    path = Path(f"/proc/{pid}/status")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ServerError(f"server process {pid} ended while its memory was measured") from error
    for line in lines:
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return 0  # a child that has exited and waits to be reaped has no memory and no such line


@dataclass(frozen=True)
class MemoryReading:
    """Resident memory of a server in bytes: at rest, and each round's peak above that."""

    idle_bytes: int
    rounds: tuple[int, ...]

    @property
    def peak_above_idle_bytes(self) -> int:
        """The median round: one round can catch a page cache or a thread that starts late."""
        return round(statistics.median(self.rounds))


def measure_memory(
    process_ids: Callable[[], Sequence[int]],
    warm_up: Callable[[], object],
    requests: Mapping[Key, Callable[[], object]],
) -> dict[Key, MemoryReading]:
    """Measure the peak memory of each of `requests` above what the server holds after `warm_up`.

    Args:
        process_ids: the server's processes; asked again each round, since children may come late.
        warm_up: one tiny request, which makes the server allocate what every later one uses again.
        requests: what is measured, one after another, the smallest first: what a greater one leaves
            allocated would be counted again. Each is sent once in each of `MEMORY_ROUNDS` rounds.

    Raises:
        ServerError: a process ended, or its peak cannot be reset.
    """
    warm_up()
    idle = resident_bytes(process_ids())
    readings = {}
    for key, request in requests.items():
        rounds = []
        for _ in range(MEMORY_ROUNDS):
            reset_peaks(process_ids())
            request()
            rounds.append(max(0, peak_bytes(process_ids()) - idle))
        readings[key] = MemoryReading(idle, tuple(rounds))
    return readings
