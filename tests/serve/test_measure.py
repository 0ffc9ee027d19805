"""Percentiles, the stability rule, windows in turn, and the memory of real processes."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_serve.errors import ServerError
from sparse_serve.profiling import measure
from sparse_serve.profiling.measure import (
    ServerTimes,
    StabilityRule,
    Timing,
    Window,
    measure_latencies,
    measure_memory,
    measure_window,
    percentile,
    reset_peaks,
)

MS = 1_000_000
MIB = 2**20


def window(*latencies_ms: float) -> Window:
    timings = tuple(Timing(0, round(ms * MS), 0) for ms in latencies_ms)
    return Window(timings, sum(timing.total_ns for timing in timings))


@dataclass
class Clock:
    """Time that passes only while a request is answered."""

    now: int = 0


@dataclass
class FakeLoad:
    """Answers after the next of `latencies_ms`, the last one over and over; keeps the order of requests."""

    clock: Clock
    name: str
    latencies_ms: Sequence[float]
    order: list[str] = field(default_factory=list)
    sent: int = 0

    def request(self) -> Timing:
        latency = round(self.latencies_ms[min(self.sent, len(self.latencies_ms) - 1)] * MS)
        self.sent += 1
        self.clock.now += latency
        self.order.append(self.name)
        return Timing(1000, latency - 3000, 2000)

    def server_times(self) -> ServerTimes:
        return ServerTimes(self.sent, 1000 * self.sent, 0, 5000 * self.sent, 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(measure.time, "perf_counter_ns", lambda: clock.now)
    return clock


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=50),
    st.sampled_from([1, 25, 50, 90, 95, 99, 100]),
)
def test_percentile_is_nearest_rank(values: list[float], rank: int) -> None:
    assert percentile(values, rank) == np.percentile(values, rank, method="inverted_cdf")


@pytest.mark.parametrize(("values", "rank"), [([], 50), ([1.0], 0), ([1.0], 101)])
def test_percentile_refuses_what_has_none(values: list[float], rank: int) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, rank)


@pytest.mark.parametrize(
    ("windows", "rule", "stable"),
    [
        ([window(10), window(10)], StabilityRule(), False),
        ([window(10), window(10.5), window(11)], StabilityRule(), True),
        ([window(10), window(10.5), window(11.1)], StabilityRule(), False),
        ([window(50), window(10), window(10), window(10)], StabilityRule(), True),
        ([window(10), window(10), window(10), window(50)], StabilityRule(), False),
        ([window(10), window(12), window(11)], StabilityRule(25), True),
        # The mean agrees, the 99th percentile does not.
        ([window(*[10] * 99, 10), window(*[10] * 99, 14), window(*[10] * 99, 10)], StabilityRule(), True),
        (
            [window(*[10] * 9, 10), window(*[10] * 9, 14), window(*[10] * 9, 10)],
            StabilityRule(10, percentile=99),
            False,
        ),
    ],
)
def test_stability_is_perf_analyzers_rule(windows: list[Window], rule: StabilityRule, stable: bool) -> None:
    assert rule.is_stable(windows) is stable


def test_throughput_must_be_stable_too() -> None:
    same = (Timing(0, 10 * MS, 0),)
    windows = [Window(same, 10 * MS), Window(same, 10 * MS), Window(same, 20 * MS)]
    assert not StabilityRule().is_stable(windows)


def test_a_window_ends_with_the_request_under_way(clock: Clock) -> None:
    measured = measure_window(FakeLoad(clock, "a", [40.0]), 100)
    assert len(measured.timings) == 3
    assert measured.elapsed_ns == 120 * MS
    assert measured.requests_per_second == pytest.approx(25)
    assert measured.server == ServerTimes(3, 3000, 0, 15000, 0)


def test_a_window_holds_one_request_at_least(clock: Clock) -> None:
    assert len(measure_window(FakeLoad(clock, "a", [400.0]), 100).timings) == 1


def test_windows_are_taken_in_turn(clock: Clock) -> None:
    order: list[str] = []
    loads = {name: FakeLoad(clock, name, [50.0], order) for name in "ab"}
    readings = measure_latencies(loads, 100, StabilityRule())
    turns = [name for index, name in enumerate(order) if index == 0 or order[index - 1] != name]
    assert turns == ["a", "b"] * 3
    assert order.count("a") == measure.WARM_UP_REQUESTS + 2 + 6
    for reading in readings.values():
        assert (reading.trials, reading.stable, len(reading.timings)) == (3, True, 6)
        assert reading.requests_per_second == pytest.approx(20)
        assert reading.spread == 0
        assert reading.server.requests == 6


def test_a_stable_load_waits_for_no_other(clock: Clock) -> None:
    done: list[str] = []
    steady = FakeLoad(clock, "steady", [50.0])
    wild = FakeLoad(clock, "wild", [50.0 + 30 * (number % 7) for number in range(1000)])
    loads = {"steady": steady, "wild": wild}
    readings = measure_latencies(loads, 100, StabilityRule(max_trials=5), done.append)
    assert done == ["steady", "wild"]
    assert (readings["steady"].trials, readings["wild"].trials) == (3, 5)
    assert not readings["wild"].stable
    assert len(readings["wild"].windows) == 3
    assert readings["wild"].spread > 0.1


def test_requests_longer_than_a_window_are_not_spent_on_settling(clock: Clock) -> None:
    slow = FakeLoad(clock, "slow", [500.0])
    measure_latencies({"slow": slow}, 100, StabilityRule())
    assert slow.sent == 1 + 3


HOLDER = """
import sys
for line in sys.stdin:
    b"x" * int(line)
    print("done", flush=True)
"""


@pytest.fixture
def holder() -> Iterator[tuple[int, Callable[[int], object]]]:
    """A process that holds so many bytes during a request: its id, and the request."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def hold(size: int) -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            print(size, file=process.stdin, flush=True)
            assert process.stdout.readline() == "done\n"

        yield process.pid, hold
        assert process.stdin is not None
        process.stdin.close()


def test_memory_is_the_peak_of_the_request(holder: tuple[int, Callable[[int], object]]) -> None:
    pid, hold = holder
    hold(256 * MIB)  # an earlier and greater peak, as loading a model is
    reading = measure_memory(lambda: [pid], lambda: hold(MIB), lambda: hold(64 * MIB))
    assert reading.peak_above_idle_bytes == pytest.approx(64 * MIB, abs=2 * MIB)
    assert len(reading.rounds) == measure.MEMORY_ROUNDS
    assert 0 < reading.idle_bytes < 64 * MIB


def test_memory_of_several_processes_is_added(holder: tuple[int, Callable[[int], object]]) -> None:
    pid, hold = holder
    once = measure_memory(lambda: [pid], lambda: hold(MIB), lambda: hold(32 * MIB))
    twice = measure_memory(lambda: [pid, pid], lambda: hold(MIB), lambda: hold(32 * MIB))
    assert twice.peak_above_idle_bytes == pytest.approx(2 * once.peak_above_idle_bytes, abs=4 * MIB)


def test_a_process_that_is_gone_is_an_error() -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    with pytest.raises(ServerError, match=f"process {ended.pid}"):
        reset_peaks([ended.pid])
    with pytest.raises(ServerError, match="ended while its memory"):
        measure.resident_bytes([ended.pid])
