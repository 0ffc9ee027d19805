"""Percentiles, the stability rule, windows in turn, and the memory of real processes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Barrier, BrokenBarrierError, get_ident

import pytest

from sparse_serve.errors import ServerError
from sparse_serve.profiling import measure, memory
from sparse_serve.profiling.measure import (
    LatencyReading,
    ServerTimes,
    StabilityRule,
    Stretch,
    Timing,
    Window,
    measure_latencies,
    measure_window,
)
from sparse_serve.profiling.memory import MemoryReading, measure_memory, reset_peaks
from sparse_serve.profiling.subjects import MALLOC_MMAP_THRESHOLD

MS = 1_000_000
MIB = 2**20


def stretch(*latencies_ms: float) -> Stretch:
    timings = tuple(Timing(0, round(ms * MS), 0) for ms in latencies_ms)
    return Stretch(timings, sum(timing.total_ns for timing in timings))


def window(*latencies_ms: float) -> Window:
    return Window((stretch(*latencies_ms),))


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
    monkeypatch.setattr("time.perf_counter_ns", lambda: clock.now)
    return clock


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
    windows = [Window((Stretch(same, elapsed * MS),)) for elapsed in (10, 10, 20)]
    assert not StabilityRule().is_stable(windows)


def test_a_window_ends_with_the_request_under_way(clock: Clock) -> None:
    measured = measure_window([FakeLoad(clock, "a", [40.0])], 100)
    assert len(measured.timings) == 3
    assert measured.elapsed_ns == 120 * MS
    assert measured.requests_per_second == pytest.approx(25)
    assert measured.server == ServerTimes(3, 3000, 0, 15000, 0)


def test_a_window_holds_one_request_at_least(clock: Clock) -> None:
    assert len(measure_window([FakeLoad(clock, "a", [400.0])], 100).timings) == 1


def test_windows_are_taken_in_turn(clock: Clock) -> None:
    order: list[str] = []
    loads = {name: [FakeLoad(clock, name, [50.0], order)] for name in "ab"}
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
    loads = {"steady": [steady], "wild": [wild]}
    readings = measure_latencies(loads, 100, StabilityRule(max_trials=5), done.append)
    assert done == ["steady", "wild"]
    assert (readings["steady"].trials, readings["wild"].trials) == (3, 5)
    assert not readings["wild"].stable
    assert len(readings["wild"].windows) == 3
    assert readings["wild"].spread > 0.1


def test_requests_longer_than_a_window_are_not_spent_on_settling(clock: Clock) -> None:
    slow = FakeLoad(clock, "slow", [500.0])
    measure_latencies({"slow": [slow]}, 100, StabilityRule())
    assert slow.sent == 1 + 3


def test_senders_add_up() -> None:
    """Each at its own rate over its own time, which is not that of the window where requests are long."""
    both = Window((stretch(10, 10, 10), stretch(25, 25)))
    assert both.requests_per_second == pytest.approx(100 + 40)
    assert both.latencies_ms() == [10, 10, 10, 25, 25]
    assert both.elapsed_ns == 40 * MS
    reading = LatencyReading((both, window(20, 20)), 3, stable=True)
    assert reading.requests_per_second == pytest.approx((140 + 50) / 2)
    assert len(reading.timings) == 7


class Meeting:
    """A server that answers as soon as so many requests are there together."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.answered: list[int] = []
        self._barrier = Barrier(size)

    def request(self) -> Timing:
        with suppress(BrokenBarrierError):
            self._barrier.wait(timeout=0.5)
            self.answered.append(get_ident())
            return Timing(0, MS, 0)
        return Timing(0, 999 * MS, 0)

    def server_times(self) -> ServerTimes:
        return ServerTimes(requests=len(self.answered))


@pytest.mark.parametrize("size", [2, 5])
def test_every_counted_request_meets_as_many_as_the_concurrency(size: int) -> None:
    """Also the first and the last ones, since each sender begins before and goes on after what is counted."""
    server = Meeting(size)
    measured = measure_window([Member(server) for _ in range(size)], 30)
    assert len(measured.stretches) == size
    assert all(timing.total_ns == MS for timing in measured.timings)
    assert len(set(server.answered)) == size
    assert 0 < measured.server.requests < len(server.answered)


@dataclass(eq=False)
class Member:
    """One sender's way to a server that several share."""

    server: Meeting

    def request(self) -> Timing:
        return self.server.request()

    def server_times(self) -> ServerTimes:
        return self.server.server_times()


def test_a_failing_sender_ends_the_others(clock: Clock) -> None:
    class Refused(FakeLoad):
        def request(self) -> Timing:
            raise ServerError("gone")

    senders = [FakeLoad(clock, "a", [1.0]), Refused(clock, "b", [1.0])]
    with pytest.raises(ServerError, match="gone"):
        measure_window(senders, 1e9)


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
        [sys.executable, "-c", HOLDER],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": str(MALLOC_MMAP_THRESHOLD)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def hold(size: int) -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            print(size, file=process.stdin, flush=True)
            assert process.stdout.readline() == "done\n"

        yield process.pid, hold
        assert process.stdin is not None
        process.stdin.close()


Holder = tuple[int, Callable[[int], object]]


def measured_memory(holder: Holder, processes: int, *sizes: int) -> list[MemoryReading]:
    pid, hold = holder
    requests = {size: partial(hold, size) for size in sizes}
    return list(measure_memory(lambda: [pid] * processes, lambda: hold(MIB), requests).values())


def test_memory_is_the_peak_of_the_request(holder: Holder) -> None:
    holder[1](256 * MIB)  # an earlier and greater peak, as loading a model is
    (reading,) = measured_memory(holder, 1, 64 * MIB)
    assert reading.peak_above_idle_bytes == pytest.approx(64 * MIB, abs=2 * MIB)
    assert len(reading.rounds) == memory.MEMORY_ROUNDS
    assert 0 < reading.idle_bytes < 64 * MIB


def test_memory_of_several_processes_is_added(holder: Holder) -> None:
    (once,) = measured_memory(holder, 1, 32 * MIB)
    (twice,) = measured_memory(holder, 2, 32 * MIB)
    assert twice.peak_above_idle_bytes == pytest.approx(2 * once.peak_above_idle_bytes, abs=4 * MIB)


def test_memory_of_several_requests_is_above_the_same_idle(holder: Holder) -> None:
    small, great = measured_memory(holder, 1, 16 * MIB, 48 * MIB)
    assert small.idle_bytes == great.idle_bytes
    assert small.peak_above_idle_bytes == pytest.approx(16 * MIB, abs=2 * MIB)
    assert great.peak_above_idle_bytes == pytest.approx(48 * MIB, abs=2 * MIB)


def test_a_process_that_is_gone_is_an_error() -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    with pytest.raises(ServerError, match=f"process {ended.pid}"):
        reset_peaks([ended.pid])
    with pytest.raises(ServerError, match="ended while its memory"):
        memory.resident_bytes([ended.pid])
