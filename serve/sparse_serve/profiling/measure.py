"""The latency and throughput of repeated requests, of one sender or of several at a time.

They are taken in windows of a fixed time, until the last three agree: perf_analyzer's rule. A concurrency of
N is N senders, each with a client of its own, that wait for an answer before they send again. They are
threads of this process, and not a process each: while they wait they hold neither the interpreter nor a core,
and N processes would fight with the server for the cores in ways that no real client does. What this process
itself takes of the processor is measured, so that a reader sees where the client is the limit.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field
from threading import Event
from typing import Literal, Protocol, TypeVar

import numpy as np

STABLE_WINDOWS = 3
WARM_UP_REQUESTS = 4

# The least value that so many percent of the values do not exceed: a latency that was measured.
PERCENTILE_METHOD: Literal["inverted_cdf"] = "inverted_cdf"

Key = TypeVar("Key")


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
class Stretch:
    """The requests that one sender sent one after another within a window, and the ns they took."""

    timings: tuple[Timing, ...]
    elapsed_ns: int

    @property
    def requests_per_second(self) -> float:
        """Throughput of this sender."""
        return len(self.timings) / self.elapsed_ns * 1e9


@dataclass(frozen=True)
class Window:
    """What every sender did within one window, and the server's view of the first one's time.

    `client_cores` is the processor time that this process took meanwhile, in cores.
    """

    stretches: tuple[Stretch, ...]
    server: ServerTimes = field(default_factory=ServerTimes)
    client_cores: float = 0.0

    @property
    def timings(self) -> list[Timing]:
        """All requests."""
        return [timing for stretch in self.stretches for timing in stretch.timings]

    @property
    def elapsed_ns(self) -> float:
        """How long a sender sent, on average."""
        return statistics.fmean(stretch.elapsed_ns for stretch in self.stretches)

    @property
    def requests_per_second(self) -> float:
        """Throughput of the senders together."""
        return sum(stretch.requests_per_second for stretch in self.stretches)

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
        return float(np.percentile(latencies, self.percentile, method=PERCENTILE_METHOD))


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
        return self._mean(lambda window: window.requests_per_second)

    @property
    def client_cores(self) -> float:
        """Processor time of the client over the three windows, in cores."""
        return self._mean(lambda window: window.client_cores)

    def _mean(self, value: Callable[[Window], float]) -> float:
        elapsed = [window.elapsed_ns for window in self.windows]
        return statistics.fmean(map(value, self.windows), weights=elapsed)

    @property
    def spread(self) -> float:
        """How far the windows' throughputs lie apart: greatest over least, less 1."""
        throughputs = [window.requests_per_second for window in self.windows]
        return max(throughputs) / min(throughputs) - 1


def measure_window(senders: Sequence[Load], interval_ms: float, settling: int = 0) -> Window:
    """Have all senders send, each one request after another, until `interval_ms` have passed.

    The request under way at the end is waited for and counted, and a sender's throughput is over its own
    time, so that it is right also where requests are as long as a window. First, `settling` requests of each
    sender are not counted; no more of them once one has taken longer than a window. With several senders
    one is never spared: until each has a request in flight, the load is not there yet. And each goes on
    sending until the last has ended its stretch, so that it does not end alone.

    Raises:
        ServerError: a request was refused, or the server is gone.
    """
    crew = _Crew(senders, round(interval_ms * 1e6), max(settling, int(len(senders) > 1)))
    start, processor_start = time.perf_counter_ns(), time.process_time_ns()
    stretches = crew.send()
    elapsed = time.perf_counter_ns() - start
    client_cores = (time.process_time_ns() - processor_start) / elapsed
    return Window(stretches, crew.server, client_cores)


class _Crew:
    """Senders at work side by side, a thread each."""

    def __init__(self, senders: Sequence[Load], interval_ns: int, settling: int) -> None:
        self.server = ServerTimes()
        self._senders = senders
        self._interval_ns = interval_ns
        self._settling = settling
        self._ended: list[Load] = []
        self._abandoned = Event()

    def send(self) -> tuple[Stretch, ...]:
        """Return every sender's stretch."""
        with ThreadPoolExecutor(len(self._senders)) as pool:
            futures = [pool.submit(self._work, sender) for sender in self._senders]
            try:
                return tuple(future.result() for future in futures)
            finally:
                self._abandoned.set()

    def _work(self, sender: Load) -> Stretch:
        try:
            self._settle(sender)
            if sender is not self._senders[0]:
                stretch = self._stretch(sender)
            else:
                before = sender.server_times()
                stretch = self._stretch(sender)
                self.server = sender.server_times() - before
        except BaseException:
            self._abandoned.set()
            raise
        self._ended.append(sender)
        while len(self._ended) < len(self._senders) and not self._abandoned.is_set():
            sender.request()
        return stretch

    def _settle(self, sender: Load) -> None:
        for _ in range(self._settling):
            if sender.request().total_ns >= self._interval_ns or self._abandoned.is_set():
                return

    def _stretch(self, sender: Load) -> Stretch:
        timings: list[Timing] = []
        start = now = time.perf_counter_ns()
        end = start + self._interval_ns
        while not timings or (now < end and not self._abandoned.is_set()):
            timings.append(sender.request())
            now = time.perf_counter_ns()
        return Stretch(tuple(timings), now - start)


def measure_latencies(
    loads: Mapping[Key, Sequence[Load]],
    interval_ms: float,
    rule: StabilityRule,
    on_reading: Callable[[Key], object] = lambda _key: None,
) -> dict[Key, LatencyReading]:
    """Measure several loads, of as many senders as are given, side by side until each is stable.

    A window of each is taken in turn: what disturbs the machine for a while disturbs them all, instead of the
    one whose turn it is. Some requests before the first window are not counted, and one before each later
    window, since others had the processor meanwhile.
    """
    interval_ns = interval_ms * 1e6
    windows: dict[Key, list[Window]] = {key: [] for key in loads}
    readings: dict[Key, LatencyReading] = {}
    while len(readings) < len(loads):
        for key in [key for key in loads if key not in readings]:
            settling = WARM_UP_REQUESTS
            if windows[key]:
                settling = int(windows[key][-1].timings[-1].total_ns < interval_ns)
            windows[key].append(measure_window(loads[key], interval_ms, settling))
            stable, trials = rule.is_stable(windows[key]), len(windows[key])
            if stable or trials >= rule.max_trials:
                readings[key] = LatencyReading(tuple(windows[key][-STABLE_WINDOWS:]), trials, stable)
                on_reading(key)
    return readings
