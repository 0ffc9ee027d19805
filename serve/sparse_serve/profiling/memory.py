"""The memory that requests take in a group of server processes.

Memory is resident memory as Linux counts it. Writing 5 to `/proc/PID/clear_refs` sets a process's high-water
mark (`VmHWM`) back to what is resident now, so that the mark read after a few requests is their peak and
not that of loading the model. Pages that processes share are counted in each of them, and the processes'
peaks are added although they need not fall together: the sum is an upper bound. Proportional memory (PSS)
counts a page that n of the processes share as an n-th in each, whoever else on the machine has it. What a
container is ended on is another figure: what the kernel charges to its control group, pages of files that it
has read included.
"""

import os
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sparse_serve.errors import ServerError
from sparse_serve.profiling.gpu_memory import GpuReading, GpuWatch

# How often a request is measured in one server.
MEMORY_REPEATS = 3

_PEAK_RESET = "5"

_GROUP = "sparse-serve-"
_LISTING = "/proc/{}/cgroup"
_MOUNTS = Path("/proc/self/mounts")

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


def proportional_bytes(process_ids: Sequence[int]) -> list[int] | None:
    """Return what each process has of the memory that they hold together, in bytes: PSS of processes alone.

    The kernel's PSS divides a page of a file, or of shared memory, among all who map it on this machine,
    other servers included. Here it is divided among these processes alone, as the kernel would if nobody
    else ran, so that the sum has their pages once. What several have of one part of a file is taken to be the
    same, as far as the least of them goes. Anonymous pages count in their process, those of a fork in both.
    None where the kernel does not tell it of all.
    """
    held = [_held(pid) for pid in process_ids]
    known = [each for each in held if each is not None]
    if not known or len(known) < len(held):
        return None
    shares = [float(own) for own, _ in known]
    files = [resident for _, resident in known]
    for file in set().union(*files):
        share, below = 0.0, 0
        for rank, process in enumerate(sorted(range(len(files)), key=lambda each: files[each][file])):
            share += (files[process][file] - below) / (len(files) - rank)
            below = files[process][file]
            shares[process] += share
    return [round(share) for share in shares]


def _held(pid: int) -> tuple[int, Counter[str]] | None:
    """Return a process's anonymous memory, and what it has of each part of a file, in bytes.

    A part is named by offset, device and inode. What is mapped more than once counts once: a region of shared
    memory that has grown may be mapped whole for each of its sizes, and its pages are in `VmRSS` as often.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    own, files, part, resident = 0, Counter[str](), "", 0
    for line in lines:
        name, *values = line.split()
        if not name.endswith(":"):  # address, permissions, offset, device, inode and, of a file, its path
            part = " ".join(values[1:4])
        elif name == "Rss:":
            resident = 1024 * int(values[0])
        elif name == "Anonymous:":
            anonymous = 1024 * int(values[0])
            own += anonymous
            files[part] = max(files[part], resident - anonymous)
    return own, files


@dataclass(frozen=True)
class ProcessReading:
    """One process in bytes: its name, proportional and resident memory now, and its peak since it started."""

    name: str
    pss_bytes: int | None
    rss_bytes: int
    peak_bytes: int


def read_processes(process_ids: Sequence[int]) -> list[ProcessReading]:
    """Return what each process holds now.

    Raises:
        ServerError: one is gone.
    """
    shares: Sequence[int | None] = proportional_bytes(process_ids) or [None] * len(process_ids)
    return [
        ProcessReading(_name(pid), share, resident_bytes([pid]), peak_bytes([pid]))
        for pid, share in zip(process_ids, shares, strict=True)
    ]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise ServerError(f"server process {pid} ended while its memory was measured") from error


@contextmanager
def control_group(number: int) -> Iterator[Path | None]:
    """Make a control group inside this process's own, and remove it; None where that may not be.

    It is there for its memory to be counted; nothing is limited. `number` tells it from others of this one.
    Those that processes have left that were killed are removed.
    """
    group = _own_group()
    made = None if group is None else group / f"{_GROUP}{os.getpid()}-{number}"
    if group is not None and made is not None:
        for left in group.glob(f"{_GROUP}*-*"):
            if not Path("/proc", left.name.removeprefix(_GROUP).partition("-")[0]).exists():
                with suppress(OSError):
                    left.rmdir()
        try:
            made.mkdir()
        except OSError:
            made = None
    if made is not None and group_peak_bytes(made) is None:  # without the memory controller
        with suppress(OSError):
            made.rmdir()
        made = None
    try:
        yield made
    finally:
        if made is not None:
            with suppress(OSError):
                made.rmdir()


def group_peak_bytes(group: Path) -> int | None:
    """Return the most memory that was charged to a control group, version 2 or 1; None where none is told."""
    for name in ("memory.peak", "memory.max_usage_in_bytes"):
        with suppress(OSError, ValueError):
            return int((group / name).read_text(encoding="ascii"))
    return None


def container_group(process_id: int, container: str) -> Path | None:
    """Return the folder of the control group of the container of that id; None where it is not to be seen.

    `process_id` is that of a process of it.
    """
    group = _group(Path(_LISTING.format(process_id)))
    named = [] if group is None else [each for each in (group, *group.parents) if container in each.name]
    return named[-1] if named else None


def _own_group() -> Path | None:
    """Return the folder of this process's group."""
    return _group(Path(_LISTING.format("self")))


def _group(listing: Path) -> Path | None:
    """Return the folder of the group, in the hierarchy that counts memory, by a `/proc/PID/cgroup`."""
    try:
        groups = [line.split(":", 2) for line in listing.read_text(encoding="utf-8").splitlines()]
        mounts = [line.split() for line in _MOUNTS.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None
    places = {
        ("memory" if kind == "cgroup" else ""): place
        for _, place, kind, options, *_ in mounts
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(","))
    }
    for _, controllers, path in sorted(groups, key=lambda group: group[1] == ""):
        key = "memory" if "memory" in controllers.split(",") else controllers
        if key in places:
            return Path(places[key], path.lstrip("/"))
    return None


@dataclass(frozen=True)
class MemoryReading:
    """Resident memory of a server in bytes: at rest, and each repeat's peak above that.

    `gpu` is what it took on GPUs; None where it computes on none.
    """

    idle_bytes: int
    repeats: tuple[int, ...]
    gpu: GpuReading | None = None

    @property
    def peak_above_idle_bytes(self) -> int:
        """The median repeat: one can catch a page cache or a thread that starts late."""
        return round(statistics.median(self.repeats))

    @property
    def total_bytes(self) -> int:
        """The peak with what is held at rest."""
        return self.idle_bytes + self.peak_above_idle_bytes


def measure_memory(
    process_ids: Callable[[], Sequence[int]],
    warm_up: Callable[[], object],
    requests: Mapping[Key, Callable[[], object]],
    watch: GpuWatch | None = None,
) -> dict[Key, MemoryReading]:
    """Measure the peak memory of each of `requests` above what the server holds after `warm_up`.

    Args:
        process_ids: the server's processes; asked again each time, since children may come late.
        warm_up: one tiny request, which makes the server allocate what every later one uses again.
        requests: what is measured, one after another, the smallest first: what a greater one leaves
            allocated would be counted again. Each is sent once in each of `MEMORY_REPEATS` repeats.
        watch: sees the GPUs that the server computes on; None where it computes on none.

    Raises:
        ServerError: a process ended, or its peak cannot be reset.
    """
    warm_up()
    idle = resident_bytes(process_ids())
    readings = {}
    for key, request in requests.items():
        repeats = []
        with nullcontext() if watch is None else watch.sampling():
            for _ in range(MEMORY_REPEATS):
                reset_peaks(process_ids())
                request()
                repeats.append(max(0, peak_bytes(process_ids()) - idle))
        gpu = None if watch is None else watch.read(process_ids())
        readings[key] = MemoryReading(idle, tuple(repeats), gpu)
    return readings
