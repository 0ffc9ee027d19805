"""The latency and throughput of requests, in windows until the last three agree: perf_analyzer's rule."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from sparse_serve.errors import SparseServeError
from sparse_serve.profiling.windows import (
    Distribution,
    Load,
    ServerTimes,
    Timing,
    Window,
    arrival_times_ns,
    measure_open_window,
    measure_window,
)

STABLE_WINDOWS = 3
WARM_UP_REQUESTS = 4

# The least value that so many percent of the values do not exceed: a latency that was measured.
PERCENTILE_METHOD: Literal["inverted_cdf"] = "inverted_cdf"

# An open loop's request counts as late where it was sent so long after it was due: Python's timers are good
# to a tenth of that.
_LATE_NS = 1_000_000

Key = TypeVar("Key")


@dataclass(frozen=True)
class Arrivals:
    """How requests come: `concurrency` of them in flight all the time, or `request_rate` a second."""

    concurrency: int | None = None
    request_rate: float | None = None

    @property
    def title(self) -> str:
        """What progress and errors call it."""
        if self.request_rate is not None:
            return f"at {self.request_rate:g} requests/s"
        return f"at concurrency {self.concurrency}"


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

    @property
    def late_share(self) -> float:
        """Share of the requests that were sent after they were due."""
        timings = self.timings
        return sum(timing.late_ns > _LATE_NS for timing in timings) / len(timings)

    @property
    def elapsed_s(self) -> float:
        """How long the three windows took together."""
        return sum(window.elapsed_ns for window in self.windows) / 1e9

    def _mean(self, value: Callable[[Window], float]) -> float:
        elapsed = [window.elapsed_ns for window in self.windows]
        return statistics.fmean(map(value, self.windows), weights=elapsed)

    @property
    def spread(self) -> float:
        """How far the windows' throughputs lie apart: greatest over least, less 1."""
        throughputs = [window.requests_per_second for window in self.windows]
        return max(throughputs) / min(throughputs) - 1


@dataclass(frozen=True)
class WindowRule:
    """How windows are taken: how long, until when, and how requests arrive in an open loop.

    `seed` makes the arrivals, each window's own, and the order that several loads take their turns in: give
    every point of a report its own, or all have the same.
    """

    interval_ms: float
    stability: StabilityRule
    distribution: Distribution = "poisson"
    seed: Sequence[int] = (0,)


def measure_latencies(
    loads: Mapping[Key, Sequence[Load]],
    arrivals: Arrivals,
    rule: WindowRule,
    on_reading: Callable[[Key], object] = lambda _key: None,
    on_failure: Callable[[Key, SparseServeError], object] | None = None,
) -> dict[Key, LatencyReading]:
    """Measure several loads, of as many senders as are given, side by side until each is stable.

    A window of each is taken in turn, in an order drawn anew each time: what disturbs the machine for a while
    disturbs them all, instead of the one whose turn it is, and none always follows the same other. Some
    requests before the first window are not counted, and one before each later window, since others had the
    processor meanwhile. One that fails is left out from there on where `on_failure` hears of it.

    Raises:
        SparseServeError: a load failed, and no one hears of it.
    """
    windows: dict[Key, list[Window]] = {key: [] for key in loads}
    readings: dict[Key, LatencyReading] = {}
    order = np.random.default_rng(rule.seed)
    failed: set[Key] = set()
    while waiting := [key for key in loads if key not in readings and key not in failed]:
        for place in order.permutation(len(waiting)).tolist():
            key = waiting[place]
            try:
                windows[key].append(_next_window(loads[key], arrivals, rule, windows[key]))
            except SparseServeError as error:
                if on_failure is None:
                    raise
                failed.add(key)
                on_failure(key, error)
                continue
            stable, trials = rule.stability.is_stable(windows[key]), len(windows[key])
            if stable or trials >= rule.stability.max_trials:
                readings[key] = LatencyReading(tuple(windows[key][-STABLE_WINDOWS:]), trials, stable)
                on_reading(key)
    return readings


def _next_window(
    senders: Sequence[Load], arrivals: Arrivals, rule: WindowRule, before: Sequence[Window]
) -> Window:
    if arrivals.request_rate is None:
        settling = WARM_UP_REQUESTS
        if before:
            settling = int(before[-1].timings[-1].total_ns < rule.interval_ms * 1e6)
        return measure_window(senders, rule.interval_ms, settling)
    due = arrival_times_ns(
        arrivals.request_rate, rule.interval_ms, rule.distribution, (*rule.seed, len(before))
    )
    interval_ms = 1000 * len(due) / arrivals.request_rate
    return measure_open_window(senders, due, 1 if before else WARM_UP_REQUESTS, interval_ms)
