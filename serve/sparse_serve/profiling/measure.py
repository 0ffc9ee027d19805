"""What is measured, and how: the memory of a group of processes, and the latency of repeated requests.

Memory is resident memory as Linux counts it. Writing 5 to `/proc/PID/clear_refs` sets a process's high-water
mark (`VmHWM`) back to what is resident now, so that the mark read after a few requests is their peak and
not that of loading the model. Pages that processes share are counted in each of them, and the processes'
peaks are added although they need not fall together: the sum is an upper bound.

Latency is taken in windows of a fixed time, until the last three agree: perf_analyzer's rule.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from sparse_serve.errors import ServerError

STABLE_WINDOWS = 3
MEMORY_ROUNDS = 3
WARM_UP_REQUESTS = 4

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
    process_ids: Callable[[], Sequence[int]], warm_up: Callable[[], object], request: Callable[[], object]
) -> MemoryReading:
    """Measure the peak memory of `request` above what the server holds after `warm_up`.

    Args:
        process_ids: the server's processes; asked again each round, since children may come late.
        warm_up: one tiny request, which makes the server allocate what every later one uses again.
        request: the request measured, once in each of `MEMORY_ROUNDS` rounds.

    Raises:
        ServerError: a process ended, or its peak cannot be reset.
    """
    warm_up()
    idle = resident_bytes(process_ids())
    rounds = []
    for _ in range(MEMORY_ROUNDS):
        reset_peaks(process_ids())
        request()
        rounds.append(max(0, peak_bytes(process_ids()) - idle))
    return MemoryReading(idle, tuple(rounds))


@dataclass(frozen=True)
class Timing:
    """One request as the client sees it, in ns: tensors made, answer waited for, answer decoded."""

    send_ns: int
    wait_ns: int
    receive_ns: int

    @property
    def total_ns(self) -> int:
        """The latency of the request."""
        return self.send_ns + self.wait_ns + self.receive_ns


@dataclass(frozen=True)
class ServerTimes:
    """What a server says of its requests so far: how many, and the ns they spent in each part."""

    requests: int = 0
    queue_ns: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0

    def __add__(self, other: "ServerTimes") -> "ServerTimes":
        return ServerTimes(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: "ServerTimes") -> "ServerTimes":
        return ServerTimes(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))


class Load(Protocol):
    """A request that can be repeated, and the server's view of it."""

    def request(self) -> Timing:
        """Send one request and wait for its answer."""

    def server_times(self) -> ServerTimes:
        """Return the server's statistics of the model asked."""


@dataclass(frozen=True)
class Window:
    """The requests that were completed within one window, the ns it lasted, and the server's view of them."""

    timings: tuple[Timing, ...]
    elapsed_ns: int
    server: ServerTimes = field(default_factory=ServerTimes)

    @property
    def requests_per_second(self) -> float:
        """Throughput of the window."""
        return len(self.timings) / self.elapsed_ns * 1e9

    def latencies_ms(self) -> list[float]:
        """Latency of each request in ms."""
        return [timing.total_ns / 1e6 for timing in self.timings]


@dataclass(frozen=True)
class StabilityRule:
    """perf_analyzer's rule: throughput and latency of the last three windows differ by so many percent.

    `percentile` is the latency that is compared; the mean where it is None. After `max_trials` windows a
    measurement ends and counts as unstable.
    """

    percentage: float = 10.0
    percentile: int | None = None
    max_trials: int = 10

    def is_stable(self, windows: Sequence[Window]) -> bool:
        """Return whether the last three windows agree."""
        last = windows[-STABLE_WINDOWS:]
        if len(last) < STABLE_WINDOWS:
            return False
        bound = 1 + self.percentage / 100
        throughputs = [window.requests_per_second for window in last]
        latencies = [self._latency(window) for window in last]
        return max(throughputs) <= bound * min(throughputs) and max(latencies) <= bound * min(latencies)

    def _latency(self, window: Window) -> float:
        latencies = window.latencies_ms()
        if self.percentile is None:
            return statistics.fmean(latencies)
        return percentile(latencies, self.percentile)


@dataclass(frozen=True)
class LatencyReading:
    """The last three windows of a measurement, how many there were, and whether those three agree."""

    windows: tuple[Window, ...]
    trials: int
    stable: bool

    @property
    def timings(self) -> list[Timing]:
        """All requests of the three windows."""
        return [timing for window in self.windows for timing in window.timings]

    @property
    def server(self) -> ServerTimes:
        """The server's view of the three windows."""
        return sum((window.server for window in self.windows), ServerTimes())

    @property
    def requests_per_second(self) -> float:
        """Throughput over the three windows."""
        return len(self.timings) / sum(window.elapsed_ns for window in self.windows) * 1e9

    @property
    def spread(self) -> float:
        """How far the windows' throughputs lie apart: greatest over least, less 1."""
        throughputs = [window.requests_per_second for window in self.windows]
        return max(throughputs) / min(throughputs) - 1


def percentile(values: Sequence[float], rank: float) -> float:
    """Return the nearest-rank percentile: the least value that `rank` percent of the values do not exceed.

    Raises:
        ValueError: there are no values, or `rank` is not in (0, 100].
    """
    if not values or not 0 < rank <= 100:
        raise ValueError(
            f"percentile {rank} of {len(values)} values; give a rank in (0, 100] and some values"
        )
    return sorted(values)[math.ceil(rank / 100 * len(values)) - 1]


def measure_window(load: Load, interval_ms: float) -> Window:
    """Send requests one after another until `interval_ms` have passed; the last one is waited for."""
    before = load.server_times()
    timings: list[Timing] = []
    start = time.perf_counter_ns()
    end = start + round(interval_ms * 1e6)
    while (now := time.perf_counter_ns()) < end or not timings:
        timings.append(load.request())
    return Window(tuple(timings), now - start, load.server_times() - before)


def measure_latencies(
    loads: Mapping[Key, Load],
    interval_ms: float,
    rule: StabilityRule,
    on_reading: Callable[[Key], object] = lambda _key: None,
) -> dict[Key, LatencyReading]:
    """Measure several loads side by side: a window of each in turn, until each is stable.

    What disturbs the machine for a while disturbs them all, instead of the one whose turn it is. Some
    requests before the first window are not counted, and one before each later window, since others had the
    processor meanwhile; no more of them once one has taken longer than a window.
    """
    interval_ns = interval_ms * 1e6
    windows: dict[Key, list[Window]] = {key: [] for key in loads}
    readings: dict[Key, LatencyReading] = {}
    while len(readings) < len(loads):
        for key in [key for key in loads if key not in readings]:
            if not windows[key]:
                _warm_up(loads[key], interval_ns)
            elif windows[key][-1].timings[-1].total_ns < interval_ns:
                loads[key].request()
            windows[key].append(measure_window(loads[key], interval_ms))
            stable, trials = rule.is_stable(windows[key]), len(windows[key])
            if stable or trials >= rule.max_trials:
                readings[key] = LatencyReading(tuple(windows[key][-STABLE_WINDOWS:]), trials, stable)
                on_reading(key)
    return readings


def _warm_up(load: Load, most_ns: float) -> None:
    for _ in range(WARM_UP_REQUESTS):
        if load.request().total_ns >= most_ns:
            return
