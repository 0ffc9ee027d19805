"""Percentiles, the stability rule, windows in turn, and the memory of real processes."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event, Lock, get_ident
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from sparse_serve.errors import ServerError
from sparse_serve.profiling import measure, memory
from sparse_serve.profiling.energy import PowerMeter
from sparse_serve.profiling.measure import (
    Arrivals,
    LatencyReading,
    StabilityRule,
    WindowRule,
    measure_latencies,
)
from sparse_serve.profiling.memory import MemoryReading, measure_memory, reset_peaks
from sparse_serve.profiling.subjects import MALLOC_MMAP_THRESHOLD, ServerGauges
from sparse_serve.profiling.windows import (
    Distribution,
    ServerTimes,
    Stretch,
    Timing,
    Window,
    arrival_times_ns,
    measure_open_window,
    measure_window,
)

MS = 1_000_000
ONE = Arrivals(concurrency=1)
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

    def server_times(self, at_least: int = 0) -> ServerTimes:
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
        ([window(*[10] * 10), window(*[10] * 9, 14), window(*[10] * 10)], StabilityRule(), True),
        (
            [window(*[10] * 10), window(*[10] * 9, 14), window(*[10] * 10)],
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
    readings = measure_latencies(loads, ONE, WindowRule(100, StabilityRule()))
    first = 2 * (measure.WARM_UP_REQUESTS + 2)
    cycles = [order[:first], order[first : first + 6], order[first + 6 :]]
    assert [len(cycle) for cycle in cycles] == [first, 6, 6]
    for cycle in cycles:
        turns = [name for name, _ in groupby(cycle)]
        assert sorted(turns) == ["a", "b"]
        assert cycle.count("a") == len(cycle) / 2
    for reading in readings.values():
        assert (reading.trials, reading.stable, len(reading.timings)) == (3, True, 6)
        assert reading.requests_per_second == pytest.approx(20)
        assert reading.spread == 0
        assert reading.server.requests == 6


def test_no_load_always_follows_the_same_other(clock: Clock) -> None:
    def turns(seed: int) -> list[str]:
        order: list[str] = []
        loads = {name: [FakeLoad(clock, name, [50.0], order)] for name in "abcd"}
        rule = StabilityRule(percentage=-1, max_trials=8)  # never stable
        measure_latencies(loads, ONE, WindowRule(100, rule, seed=(seed,)))
        return [name for name, _ in groupby(order)]

    taken = turns(1)
    followed = {name: {before for before, after in pairwise(taken) if after == name} for name in "abcd"}
    assert all(len(others) == 3 for others in followed.values())
    assert taken == turns(1)
    assert taken != turns(2)


@dataclass
class Belated(FakeLoad):
    """A server that has counted its last request only where it is waited for, as Triton may not have yet."""

    took: list[int] = field(default_factory=list)

    def request(self) -> Timing:
        timing = super().request()
        self.took.append(timing.total_ns)
        return timing

    def server_times(self, at_least: int = 0) -> ServerTimes:
        counted = min(self.sent, max(at_least, self.sent - 1))
        return ServerTimes(counted, compute_infer_ns=sum(self.took[:counted]))


def test_what_the_server_says_is_of_the_requests_that_count(clock: Clock) -> None:
    """Of neither the one before them that lets things settle, nor of all but the last."""
    closed = measure_window([Belated(clock, "a", [90.0, *[10.0] * 9, 20.0])], 100, 1)
    opened = measure_open_window([Belated(clock, "a", [90.0, 10.0, 20.0])], [0, 0], 1)
    for window, latencies in ((closed, [10.0] * 9 + [20.0]), (opened, [10.0, 20.0])):
        assert [timing.total_ns - timing.late_ns for timing in window.timings] == [
            ms * MS for ms in latencies
        ]
        assert window.server == ServerTimes(len(latencies), compute_infer_ns=round(sum(latencies) * MS))


def test_a_stable_load_waits_for_no_other(clock: Clock) -> None:
    done: list[str] = []
    steady = FakeLoad(clock, "steady", [50.0])
    wild = FakeLoad(clock, "wild", [50.0 + 30 * (number % 7) for number in range(1000)])
    loads = {"steady": [steady], "wild": [wild]}
    readings = measure_latencies(loads, ONE, WindowRule(100, StabilityRule(max_trials=5)), done.append)
    assert done == ["steady", "wild"]
    assert (readings["steady"].trials, readings["wild"].trials) == (3, 5)
    assert not readings["wild"].stable
    assert len(readings["wild"].windows) == 3
    assert readings["wild"].spread > 0.1


def test_requests_longer_than_a_window_are_not_spent_on_settling(clock: Clock) -> None:
    slow = FakeLoad(clock, "slow", [500.0])
    measure_latencies({"slow": [slow]}, ONE, WindowRule(100, StabilityRule()))
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
    """A server that answers, in 1 ms, as soon as so many requests are there together.

    From `until_ms` on it keeps none waiting, as others need not come any more.
    """

    def __init__(self, clock: Clock, size: int, until_ms: int) -> None:
        self.answered: list[int] = []
        self.asked: list[int] = []
        self.waited_for = 0
        self._clock, self._until_ns = clock, until_ms * MS
        self._barrier = Barrier(size, self._let_pass)

    def _let_pass(self) -> None:
        self._clock.now += MS

    def request(self) -> Timing:
        self.asked.append(get_ident())
        if self._clock.now < self._until_ns:
            with suppress(BrokenBarrierError):
                self._barrier.wait(timeout=30)
                self.answered.append(get_ident())
                return Timing(0, MS, 0)
        self._clock.now += 999 * MS
        return Timing(0, 999 * MS, 0)

    def server_times(self, at_least: int = 0) -> ServerTimes:
        self.waited_for = at_least
        return ServerTimes(requests=len(self.answered))


@pytest.mark.parametrize("size", [2, 5])
def test_every_counted_request_meets_as_many_as_the_concurrency(clock: Clock, size: int) -> None:
    """Also the first and the last ones, since each sender begins before and goes on after what is counted."""
    # A sender's first one settles it, and if others have not yet seen that theirs did, so does its second.
    server = Meeting(clock, size, until_ms=2 + 30)
    measured = measure_window([Member(server) for _ in range(size)], 30)
    assert len(measured.stretches) == size
    assert all(timing.total_ns == MS for timing in measured.timings)
    assert len(set(server.answered)) == size
    assert 0 < measured.server.requests < len(server.answered)
    assert server.waited_for == len(server.asked)  # nothing of it is counted in the next window


class Sender:
    """One of two: the first answer to one of them comes late, and until then the other is alone."""

    def __init__(self, both_ask: Event, *, is_late: bool) -> None:
        self._both_ask, self._is_late = both_ask, is_late

    def request(self) -> Timing:
        if self._is_late and not self._both_ask.is_set():
            time.sleep(0.05)
            self._both_ask.set()
        latency = 2 * MS if self._both_ask.is_set() else MS
        time.sleep(0.002)
        return Timing(0, latency, 0)

    def server_times(self, at_least: int = 0) -> ServerTimes:
        return ServerTimes()


def test_nothing_is_counted_while_a_sender_is_alone() -> None:
    """Its throughput would be that of the server, to which the others' is added."""
    both_ask = Event()
    senders = [Sender(both_ask, is_late=False), Sender(both_ask, is_late=True)]
    measured = measure_window(senders, 30, 1)
    assert {timing.total_ns for timing in measured.timings} == {2 * MS}


@dataclass(eq=False)
class Member:
    """One sender's way to a server that several share."""

    server: Meeting

    def request(self) -> Timing:
        return self.server.request()

    def server_times(self, at_least: int = 0) -> ServerTimes:
        return self.server.server_times(at_least)


def test_a_failing_sender_ends_the_others(clock: Clock) -> None:
    class Refused(FakeLoad):
        def request(self) -> Timing:
            raise ServerError("gone")

    senders = [FakeLoad(clock, "a", [1.0]), Refused(clock, "b", [1.0])]
    with pytest.raises(ServerError, match="gone"):
        measure_window(senders, 1e9)


def test_a_load_that_fails_is_left_out_and_the_others_go_on(clock: Clock) -> None:
    class Dying(FakeLoad):
        def request(self) -> Timing:
            if self.sent > 6:
                raise ServerError("gone")
            return super().request()

    failures: list[tuple[str, str]] = []
    loads: dict[str, list[FakeLoad]] = {
        "dying": [Dying(clock, "dying", [50.0])],
        "steady": [FakeLoad(clock, "steady", [50.0])],
    }
    readings = measure_latencies(
        loads,
        ONE,
        WindowRule(100, StabilityRule()),
        on_failure=lambda key, error: failures.append((key, str(error))),
    )
    assert list(readings) == ["steady"]
    assert failures == [("dying", "gone")]


def test_requests_of_an_open_loop_arrive_at_their_rate() -> None:
    even = arrival_times_ns(20, 500, "constant", 0)
    assert even == pytest.approx([50 * MS * number for number in range(1, 11)])
    drawn = [arrival_times_ns(200, 5000, "poisson", seed) for seed in (1, 2)]
    gaps = [b - a for a, b in pairwise(drawn[0])]
    assert drawn[0] != drawn[1]
    assert drawn[0] == arrival_times_ns(200, 5000, "poisson", 1)
    # As of exponential gaps mean and deviation are alike.
    assert statistics.fmean(gaps) == pytest.approx(5 * MS, rel=0.15)
    assert statistics.stdev(gaps) == pytest.approx(5 * MS, rel=0.15)


@pytest.mark.parametrize("distribution", ["poisson", "constant"])
def test_every_window_of_an_open_loop_has_the_same_rate(distribution: Distribution) -> None:
    """Few requests, however they fall, are no reason to call a server that keeps up unstable."""
    for seed in range(50):
        due = arrival_times_ns(10, 1000, distribution, (1, seed))
        assert (len(due), max(due) <= 1000 * MS) == (10, True)


def test_the_throughput_of_an_open_loop_is_over_its_window(clock: Clock) -> None:
    """Or over as long as the server took that fell behind."""
    for interval_ms, throughput in ((1000.0, 8.0), (100.0, 50.0)):
        window = measure_open_window([Slow(clock, 1)], [0] * 8, interval_ms=interval_ms)
        assert window.requests_per_second == pytest.approx(throughput)


class Slow:
    """Answers one request at a time, each after 20 ms, once every sender has one in flight."""

    def __init__(self, clock: Clock, senders: int) -> None:
        self._clock, self._lock, self._all_there = clock, Lock(), Barrier(senders)

    def request(self) -> Timing:
        start = self._clock.now
        self._all_there.wait(timeout=30)
        with self._lock:
            self._clock.now += 20 * MS
            return Timing(0, self._clock.now - start, 0)

    def server_times(self, at_least: int = 0) -> ServerTimes:
        return ServerTimes()


@pytest.mark.parametrize("senders", [1, 8])
def test_a_server_that_falls_behind_cannot_hide_it(clock: Clock, senders: int) -> None:
    """Eight requests that are due together take up to eight times as long as one, whoever sends them."""
    measured = measure_open_window([Slow(clock, senders)] * senders, [0] * 8)
    assert sorted(measured.latencies_ms()) == [20 * number for number in range(1, 9)]
    reading = LatencyReading((measured,), 1, stable=True)
    assert reading.late_share == (7 / 8 if senders == 1 else 0)


def test_an_open_loop_is_measured_until_stable(clock: Clock) -> None:
    loads = {"a": [FakeLoad(clock, "a", [0.5])]}
    readings = measure_latencies(loads, Arrivals(request_rate=1e6), WindowRule(0.01, StabilityRule(1e9)))
    assert [len(window.timings) for window in readings["a"].windows] == [10] * 3


def test_a_seed_of_its_own_gives_a_point_an_order_of_its_own(clock: Clock) -> None:
    def turns(seed: tuple[int, int]) -> list[str]:
        order: list[str] = []
        loads = {name: [FakeLoad(clock, name, [50.0], order)] for name in "abcd"}
        measure_latencies(loads, ONE, WindowRule(100, StabilityRule(-1, max_trials=4), seed=seed))
        return order

    assert len({tuple(turns((1, point))) for point in range(5)}) == 5
    assert turns((1, 2)) == turns((1, 2))


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
    assert len(reading.repeats) == memory.MEMORY_REPEATS
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


MAPPER = """
import mmap, sys
maps = []
for line in sys.stdin:
    path, size = line.split()
    with open(path, "rb") as file:
        maps.append(mmap.mmap(file.fileno(), int(size), access=mmap.ACCESS_READ))
    sum(maps[-1][:: mmap.PAGESIZE])
    print("done", flush=True)
"""

MapFile = Callable[[Path, int], object]


@pytest.fixture
def mappers() -> Iterator[list[tuple[int, MapFile]]]:
    """Three processes that map so many bytes of a file, and read them: their ids, and how they are told."""

    def teller(process: subprocess.Popen[str]) -> MapFile:
        def tell(path: Path, size: int) -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            print(path, size, file=process.stdin, flush=True)
            assert process.stdout.readline() == "done\n"

        return tell

    with ExitStack() as stack:
        command = [sys.executable, "-c", MAPPER]
        processes = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(3)
        ]
        yield [(process.pid, teller(process)) for process in processes]
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()


def test_shared_pages_are_counted_once_whoever_else_has_them(
    mappers: list[tuple[int, MapFile]], tmp_path: Path
) -> None:
    """Of a file that one process has read and another one half, and at last a stranger too."""
    small, file = tmp_path / "small", tmp_path / "file"
    small.write_bytes(bytes(MIB))
    file.write_bytes(bytes(32 * MIB))
    (whole, map_whole), (half, map_half), (_, map_as_stranger) = mappers
    for _, map_file in mappers:
        map_file(small, MIB)  # what a first time takes
    before = memory.proportional_bytes([whole, half])
    map_whole(file, 32 * MIB)
    map_half(file, 16 * MIB)
    after = memory.proportional_bytes([whole, half])
    map_as_stranger(file, 32 * MIB)
    among_strangers = memory.proportional_bytes([whole, half])
    alone = [memory.proportional_bytes([pid]) for pid in (whole, half)]
    assert before is not None
    assert after is not None
    taken = [b - a for a, b in zip(before, after, strict=True)]
    assert taken == pytest.approx([24 * MIB, 8 * MIB], abs=MIB)
    assert among_strangers == pytest.approx(after, abs=64 * 1024)
    for process, found in zip((whole, half), alone, strict=True):
        assert found == pytest.approx([memory.resident_bytes([process])], abs=MIB / 2)
    assert memory.proportional_bytes([whole, 2**22 + 1]) is None


def test_what_a_process_maps_twice_counts_once(mappers: list[tuple[int, MapFile]], tmp_path: Path) -> None:
    """As a region of shared memory of Triton's Python backend is, each time that it grows."""
    file = tmp_path / "file"
    file.write_bytes(bytes(32 * MIB))
    (pid, map_file), *_ = mappers
    map_file(file, 32 * MIB)
    (once,) = memory.proportional_bytes([pid]) or [0]
    resident = memory.resident_bytes([pid])
    map_file(file, 32 * MIB)
    assert memory.resident_bytes([pid]) - resident == pytest.approx(32 * MIB, abs=MIB)
    assert memory.proportional_bytes([pid]) == pytest.approx([once], abs=MIB)


def test_processes_are_read_with_what_they_share(holder: Holder) -> None:
    pid, hold = holder
    hold(MIB)  # it has started, and grows no more
    (process,) = memory.read_processes([pid])
    assert process.name.startswith("python")
    assert process.pss_bytes == pytest.approx(process.rss_bytes, abs=MIB / 2)
    assert process.peak_bytes >= process.rss_bytes > 0


def test_a_control_group_counts_what_its_processes_take(holder: Holder) -> None:
    pid, hold = holder
    with memory.control_group(0) as group:
        if group is None:
            pytest.skip("no control group may be made here")
        (group / "cgroup.procs").write_text(str(pid))
        hold(32 * MIB)
        peak = memory.group_peak_bytes(group)
        assert peak is not None
        assert 32 * MIB <= peak < 200 * MIB
        (group.parent / "cgroup.procs").write_text(str(pid))
        left = group.with_name("sparse-serve-4194305-0")  # of a process that cannot be
        left.mkdir()
    assert not group.exists()
    with memory.control_group(0):
        assert not left.exists()


def test_without_control_groups_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_LISTING", str(tmp_path / "missing"))
    with memory.control_group(0) as group:
        assert group is None


def test_processor_time_is_told_to_less_than_a_tick() -> None:
    """Of /proc it is in ticks of 10 ms: of a short load there would be none."""
    server: Any = SimpleNamespace(process_ids=lambda: [os.getpid(), 2**22 + 1])
    gauges = ServerGauges(server, PowerMeter())
    first, began = gauges.processor_ns(), time.process_time_ns()
    while time.process_time_ns() - began < 2_000_000:
        pass
    assert gauges.processor_ns() - first >= 2_000_000
    times = psutil.Process().cpu_times()
    assert gauges.processor_ns() / 1e9 == pytest.approx(times.user + times.system, abs=0.1)
