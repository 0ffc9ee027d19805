"""Windows of a fixed time in which requests are repeated, by one sender or several.

In a closed loop a concurrency of N is N senders, each with a client of its own, that wait for an answer
before they send again. In an open loop requests arrive at a rate, whatever is in flight, as those of
clients do that know nothing of each other; a latency begins when its request was due, so that a server that
falls behind cannot hide it by holding the senders up. Senders are threads of this process, and not a
process each: while they wait they hold neither the interpreter nor a core, and N processes would fight with
the server for the cores in ways that no real client does. What this process itself takes of the processor
is measured, so that a reader sees where the client is the limit.
"""

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field, replace
from threading import Event, Lock
from typing import Literal, Protocol, runtime_checkable

import numpy as np

Distribution = Literal["poisson", "constant"]


@dataclass(frozen=True)
class Timing:
    """One request as the client sees it, in ns: tensors made, answer waited for, answer decoded.

    `late_ns` is how long it was due before it was sent, which is part of its latency; 0 in a closed loop.
    `batch` is the number of what was sent among what its sender repeats.
    """

    send_ns: int
    wait_ns: int
    receive_ns: int
    late_ns: int = 0
    batch: int = 0

    @property
    def total_ns(self) -> int:
        """The latency of the request."""
        return self.late_ns + self.send_ns + self.wait_ns + self.receive_ns


@dataclass(frozen=True)
class GpuSample:
    """A GPU at one moment: its busy share, SM clock in MHz and power in watts; None what it does not tell.

    `clock_limits` are what keeps its clocks below the highest.
    """

    utilisation: float | None
    sm_clock_mhz: float | None
    power_watts: float | None
    clock_limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerTimes:
    """What a server says of its requests so far: how many, and the ns they spent in each part.

    `processor_ns` is the processor time of its processes, and `energy_mj` what the machine's counters of
    energy say; 0 where that cannot be seen.
    """

    requests: int = 0
    queue_ns: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0
    processor_ns: int = 0
    energy_mj: int = 0

    def __add__(self, other: "ServerTimes") -> "ServerTimes":
        return ServerTimes(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: "ServerTimes") -> "ServerTimes":
        return ServerTimes(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))


class Load(Protocol):
    """A request that can be repeated, and the server's view of it."""

    def request(self) -> Timing:
        """Send one request and wait for its answer."""

    def server_times(self, at_least: int = 0) -> ServerTimes:
        """Return the server's statistics of the model asked.

        A server may count a request after it has answered it: `at_least` so many are waited for, but not
        for long.
        """


@runtime_checkable
class SeesGpu(Protocol):
    """A load that can look at the GPU its server computes on."""

    def gpu_sample(self) -> GpuSample | None:
        """Return what the GPU does now; None where there is none."""


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

    `client_cores` is the processor time that this process took meanwhile, in cores; `gpu` what the GPU did at
    the window's end, None where there is none.
    """

    stretches: tuple[Stretch, ...]
    server: ServerTimes = field(default_factory=ServerTimes)
    client_cores: float = 0.0
    gpu: GpuSample | None = None

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


def _gpu_sample(load: Load) -> GpuSample | None:
    return load.gpu_sample() if isinstance(load, SeesGpu) else None


def measure_window(senders: Sequence[Load], interval_ms: float, settling: int = 0) -> Window:
    """Have all senders send, each one request after another, until `interval_ms` have passed.

    The request under way at the end is waited for and counted, and a sender's throughput is over its own
    time, so that it is right also where requests are as long as a window. First, `settling` requests of each
    sender are not counted; no more of them once one has taken longer than a window. With several senders
    one is never spared: until each has a request in flight, the load is not there yet. And each goes on
    sending until the last has settled, and until the last has ended its stretch, so that nothing is counted
    of one that is alone.

    Raises:
        ServerError: a request was refused, or the server is gone.
    """
    crew = _Crew(senders, round(interval_ms * 1e6), max(settling, int(len(senders) > 1)))
    start, processor_start = time.perf_counter_ns(), time.process_time_ns()
    stretches = crew.send()
    elapsed = time.perf_counter_ns() - start
    client_cores = (time.process_time_ns() - processor_start) / elapsed
    return Window(stretches, crew.server, client_cores, crew.gpu)


def arrival_times_ns(
    rate: float, interval_ms: float, distribution: Distribution, seed: int | Sequence[int]
) -> tuple[int, ...]:
    """Return when requests are due within a window, in ns from its start, one at least.

    Poisson's are those of a Poisson process of which so many fall into the window as its rate says: each
    anywhere in it, so that requests come in bursts as clients' do, and every window has as many.
    """
    number = max(1, round(rate * interval_ms / 1000))
    if distribution == "constant":
        due = np.arange(1, number + 1) / rate
    else:
        due = np.sort(np.random.default_rng(seed).uniform(0, number / rate, number))
    return tuple((1e9 * due).astype(np.int64).tolist())


def measure_open_window(
    senders: Sequence[Load], arrivals_ns: Sequence[int], settling: int = 0, interval_ms: float = 0.0
) -> Window:
    """Send requests when they are due, by whichever sender is free; each waits for its answer.

    Where all senders wait, a request is sent late, and is so much the longer. The window ends with the last
    answer; its throughput is over `interval_ms`, or over as long as it took where the server fell behind.
    First, `settling` requests are sent that are not counted.

    Raises:
        ServerError: a request was refused, or the server is gone.
    """
    calls = _Calls(senders, arrivals_ns)
    first = senders[0]
    earlier = first.server_times().requests
    for _ in range(settling):
        first.request()
    before = first.server_times(earlier + settling)
    start, processor_start = time.perf_counter_ns(), time.process_time_ns()
    stretch = calls.send(round(interval_ms * 1e6))
    elapsed, processor = time.perf_counter_ns() - start, time.process_time_ns() - processor_start
    gpu = _gpu_sample(first)
    server = first.server_times(before.requests + len(stretch.timings)) - before
    return Window((stretch,), server, processor / elapsed, gpu)


class _Calls:
    """Requests that are due at given times, and senders that take the next one as they are free."""

    def __init__(self, senders: Sequence[Load], arrivals_ns: Sequence[int]) -> None:
        self._senders = senders
        self._due = iter(arrivals_ns)
        self._timings: list[Timing] = []
        self._lock = Lock()
        self._abandoned = Event()
        self._start = 0

    def send(self, least_ns: int) -> Stretch:
        """Return all requests, and the time from the start to the last answer, `least_ns` at least."""
        with ThreadPoolExecutor(len(self._senders)) as pool:
            self._start = time.perf_counter_ns()
            futures = [pool.submit(self._work, sender) for sender in self._senders]
            try:
                for future in futures:
                    future.result()
            finally:
                self._abandoned.set()
        return Stretch(tuple(self._timings), max(least_ns, time.perf_counter_ns() - self._start))

    def _work(self, sender: Load) -> None:
        try:
            while not self._abandoned.is_set():
                with self._lock:
                    due = next(self._due, None)
                if due is None:
                    return
                wait = self._start + due - time.perf_counter_ns()
                if wait > 0 and self._abandoned.wait(wait / 1e9):
                    return
                late = max(0, time.perf_counter_ns() - self._start - due)
                timing = sender.request()
                self._timings.append(replace(timing, late_ns=late))
        except BaseException:
            self._abandoned.set()
            raise


class _Crew:
    """Senders at work side by side, a thread each."""

    def __init__(self, senders: Sequence[Load], interval_ns: int, settling: int) -> None:
        self.server = ServerTimes()
        self.gpu: GpuSample | None = None
        self._senders = senders
        self._interval_ns = interval_ns
        self._settling = settling
        self._earlier = 0
        self._uncounted: list[Timing] = []
        self._settled: list[Load] = []
        self._ended: list[Load] = []
        self._abandoned = Event()

    def send(self) -> tuple[Stretch, ...]:
        """Return every sender's stretch, when the server's statistics have all that was sent."""
        self._earlier = self._senders[0].server_times().requests
        with ThreadPoolExecutor(len(self._senders)) as pool:
            futures = [pool.submit(self._work, sender) for sender in self._senders]
            try:
                stretches = tuple(future.result() for future in futures)
            finally:
                self._abandoned.set()
        sent = len(self._uncounted) + sum(len(stretch.timings) for stretch in stretches)
        self._senders[0].server_times(self._earlier + sent)
        return stretches

    def _work(self, sender: Load) -> Stretch:
        try:
            self._settle(sender)
            see = self._seen_stretch if sender is self._senders[0] else self._stretch
            stretch = see(sender)
        except BaseException:
            self._abandoned.set()
            raise
        self._ask_on(sender, self._ended)
        return stretch

    def _settle(self, sender: Load) -> None:
        for _ in range(self._settling):
            timing = sender.request()
            self._uncounted.append(timing)
            if timing.total_ns >= self._interval_ns or self._abandoned.is_set():
                break
        # Else one that is answered sooner would be measured while others are not yet asking again.
        self._ask_on(sender, self._settled)

    def _ask_on(self, sender: Load, done: list[Load]) -> None:
        """Say that a sender is done with a part, and keep up its load until all are."""
        done.append(sender)
        while len(done) < len(self._senders) and not self._abandoned.is_set():
            self._uncounted.append(sender.request())

    def _seen_stretch(self, sender: Load) -> Stretch:
        """Return a stretch of the first sender, and see what the server and its GPU did meanwhile.

        Beside others, some requests are always under way, so that statistics have about those of the stretch.
        """
        is_alone = len(self._senders) == 1
        before = sender.server_times(self._earlier + len(self._uncounted) if is_alone else 0)
        stretch = self._stretch(sender)
        self.gpu = _gpu_sample(sender)
        after = sender.server_times(before.requests + len(stretch.timings) if is_alone else 0)
        self.server = after - before
        return stretch

    def _stretch(self, sender: Load) -> Stretch:
        timings: list[Timing] = []
        start = now = time.perf_counter_ns()
        end = start + self._interval_ns
        while not timings or (now < end and not self._abandoned.is_set()):
            timings.append(sender.request())
            now = time.perf_counter_ns()
        return Stretch(tuple(timings), now - start)
