"""Measures plans round by round on fresh servers, and keeps on where something fails.

a round: memory, a fresh server per variant and length
         latency, fresh servers of all variants of all plans side by side
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from threading import Event
from typing import Protocol

from sparse_serve.data import read_texts
from sparse_serve.environment import available_cores
from sparse_serve.errors import SparseServeError
from sparse_serve.profiling import summary
from sparse_serve.profiling.capacity import CapacityLimits, measure_capacity
from sparse_serve.profiling.energy import PowerMeter
from sparse_serve.profiling.load import TritonLoad
from sparse_serve.profiling.measure import Arrivals, LatencyReading, WindowRule, measure_latencies
from sparse_serve.profiling.memory import MemoryReading, measure_memory
from sparse_serve.profiling.options import OPEN_SENDERS, ProfileOptions
from sparse_serve.profiling.plan import Plan, tokens_of
from sparse_serve.profiling.subjects import (
    Place,
    ServedSubject,
    SteadyReading,
    Subject,
    attached,
    on_cores,
    serving,
)
from sparse_serve.profiling.workload import Batch, Workload, make_workload
from sparse_serve.report.measured import Capacity, Failure, Quality, Sparsity, Stage
from sparse_serve.repository.config import CONFIG_NAME, read_config
from sparse_serve.triton.container import find_image

# Servers started, stopped or measured for memory at a time; latency is always measured alone.
_MOST_WORKERS = 4


class Progress(Protocol):
    """Hears what is done, step by step."""

    def start(self, steps: int) -> None:
        """Say how many steps there will be."""

    def done(self, what: str) -> None:
        """One step is done."""

    def notice(self, message: str) -> None:
        """Something the user should know."""


Point = tuple[Subject, int, Arrivals]


@dataclass
class Findings:
    """What was measured so far, by round."""

    latency: dict[Point, dict[int, LatencyReading]] = field(default_factory=dict)
    memory: dict[tuple[Subject, int, int], dict[int, MemoryReading]] = field(default_factory=dict)
    steady: dict[Subject, dict[int, SteadyReading]] = field(default_factory=dict)
    sparsity: dict[tuple[Subject, int], Sparsity] = field(default_factory=dict)
    quality: dict[Subject, Quality] = field(default_factory=dict)
    capacity: list[Capacity] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


class Run:
    """Measures plans round by round, and keeps on where something fails."""

    def __init__(self, options: ProfileOptions, progress: Progress) -> None:
        self.options = options
        self.first_error: SparseServeError | None = None
        self.server_version = "unknown"
        self._progress = progress
        server_cores = options.server_cores if options.client_cores else None
        self._client_cores = (
            None if server_cores is None else frozenset(os.sched_getaffinity(0) - server_cores)
        )
        # Before anything is measured: without Docker nothing can be.
        self.image = None if options.image is None else find_image(options.image)
        self._place = Place(options.session_threads, server_cores, PowerMeter(), options.image)
        self._stopping = Event()

    def measure(self, plans: Sequence[Plan], number: int, found: Findings) -> None:
        """Measure one round of all entries: memory, then latency, and in the first one what does not vary."""
        if self.options.url is None and self.options.concurrencies:
            for plan in plans:
                self._measure_memory(plan, number, found)
        plan_of = {subject: plan for plan in plans for subject in plan.subjects}
        with on_cores(self._client_cores), self._all_serving(list(plan_of), number, found) as servers:
            lost: set[Subject] = set()
            # All entries have as many lengths, but their own texts of them.
            points = product(range(len(plans[0].workloads)), self.options.arrivals)
            for point, (place, arrivals) in enumerate(points):
                left = [
                    (served, plan_of[served.subject].workloads[place])
                    for served in servers
                    if served.subject not in lost
                ]
                lost |= self._measure_latency(left, arrivals, number, point, found)
            for served in servers:
                if served.subject not in lost:
                    self._measure_once(served, plan_of[served.subject], number, found)

    def _measure_memory(self, plan: Plan, number: int, found: Findings) -> None:
        """Measure every variant at each length on a fresh server, several at a time."""
        # What the devices lack can be told of one server at a time.
        with _workers(1 if plan.entry.manifest.device == "cuda" else _MOST_WORKERS) as pool:
            futures = {
                (subject, workload.length): pool.submit(self._memory_of, plan, subject, workload)
                for workload in plan.workloads
                for subject in plan.subjects
            }
            try:
                for (subject, length), future in futures.items():
                    try:
                        readings = future.result()
                    except SparseServeError as error:
                        self._failed(found, subject, "memory", number, length, str(error))
                        continue
                    for concurrency, reading in readings.items():
                        found.memory.setdefault((subject, length, concurrency), {})[number] = reading
                    self._progress.done(f"memory   {subject.title} {length}, round {number}")
            except BaseException:
                self._stopping.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _memory_of(self, plan: Plan, subject: Subject, workload: Workload) -> dict[int, MemoryReading]:
        """Return the readings of one fresh server by concurrency."""

        def at_once(concurrency: int) -> None:
            if self._stopping.is_set():
                raise SparseServeError("profile was stopped")
            with ThreadPoolExecutor(concurrency) as senders:
                list(senders.map(TritonLoad.request, served.loads[:concurrency]))

        clients = max(self.options.concurrencies)
        with serving(subject, self._place, clients, for_memory=True) as served:
            served.repeat([workload.heaviest], [0])
            requests = {number: partial(at_once, number) for number in self.options.concurrencies}
            tiny = _tiny(plan)
            try:
                return measure_memory(
                    served.process_ids,
                    lambda: served.load.send(tiny, (served.load.output,)),
                    requests,
                    served.watch,
                )
            except SparseServeError as error:
                raise SparseServeError(served.why(error)) from error

    def _measure_latency(
        self,
        servers: Sequence[tuple[ServedSubject, Workload]],
        arrivals: Arrivals,
        number: int,
        point: int,
        found: Findings,
    ) -> set[Subject]:
        """Measure a round's `point` of every server that is left, by its workload; return whom it lost."""
        by_subject = {served.subject: (served, workload) for served, workload in servers}
        lost: set[Subject] = set()

        def done(subject: Subject) -> None:
            length = by_subject[subject][1].length
            self._progress.done(f"latency  {subject.title} {length} {arrivals.title}, round {number}")

        def failed(subject: Subject, error: SparseServeError) -> None:
            lost.add(subject)
            served, workload = by_subject[subject]
            reason = served.why(error)
            self._failed(found, subject, "latency", number, workload.length, reason, arrivals)

        for served, workload in servers:
            served.repeat(workload.batches, workload.order(number))
        count = arrivals.concurrency or OPEN_SENDERS
        senders = {served.subject: served.loads[:count] for served, _ in servers}
        rule = WindowRule(
            self.options.measurement_interval_ms,
            self.options.rule,
            self.options.request_distribution,
            seed=(number, point),
        )
        readings = measure_latencies(senders, arrivals, rule, done, failed)
        for subject, reading in readings.items():
            length = by_subject[subject][1].length
            found.latency.setdefault((subject, length, arrivals), {})[number] = reading
        return lost

    def _measure_once(self, served: ServedSubject, plan: Plan, number: int, found: Findings) -> None:
        """Read what a server holds after its load; where it has not been, its sparsity and quality."""
        subject = served.subject
        self.server_version = served.load.server_version
        stage: Stage = "steady"
        try:
            steady = served.steady()
            if steady is not None:
                found.steady.setdefault(subject, {})[number] = steady
            stage = "sparsity"
            for workload in plan.workloads if subject.variant == "model" else ():
                if (subject, workload.length) not in found.sparsity and served.has_measures:
                    found.sparsity[subject, workload.length] = summary.sparsity(served.load, workload)
            stage = "quality"
            if plan.evaluation is not None and subject not in found.quality:
                found.quality[subject] = summary.quality(served, plan.evaluation)
                self._progress.done(f"quality  {subject.title}")
        except SparseServeError as error:
            self._failed(found, subject, stage, number, None, served.why(error))

    def find_capacity(self, plan: Plan, limit: int, found: Findings) -> None:
        """Find what fits a memory limit, on a fresh server of each variant."""
        tokens = tokens_of(plan.entry)
        texts = read_texts(self.options.inputs)
        config = read_config(plan.entry.graph_path / CONFIG_NAME)
        bounds = CapacityLimits(
            shortest=max(8, tokens.shortest),
            length=plan.entry.manifest.max_length,
            rows=config.max_batch_size,
            batch_length=max(workload.length for workload in plan.workloads),
        )

        def batch(rows: int, length: int) -> Batch:
            one = make_workload(tokens, texts, length, 1, turns=plan.turns).batches[0]
            return tokens.batch(one.texts * rows, one.text_pairs and one.text_pairs * rows, plan.turns)

        for subject in plan.limited:
            try:
                with serving(subject, self._place, 1, for_memory=True) as served:
                    found.capacity.append(measure_capacity(served, limit, bounds, batch))
                self._progress.done(f"capacity {subject.title}")
            except SparseServeError as error:
                self._failed(found, subject, "capacity", self.options.rounds, None, str(error))

    @contextmanager
    def _all_serving(
        self, subjects: Sequence[Subject], number: int, found: Findings
    ) -> Iterator[list[ServedSubject]]:
        """Serve the subjects that can be at the same time, started and stopped in parallel."""
        with _workers() as pool:
            futures = {subject: pool.submit(self._start, subject) for subject in subjects}
            servers = []
            try:
                for subject, future in futures.items():
                    try:
                        servers.append(future.result()[0])
                    except SparseServeError as error:
                        self._failed(found, subject, "start", number, None, str(error))
                yield servers
            finally:
                for future in futures.values():
                    future.cancel()
                list(pool.map(_stop, futures.values()))

    def _start(self, subject: Subject) -> tuple[ServedSubject, ExitStack]:
        options = self.options
        with ExitStack() as stack:
            server = (
                serving(subject, self._place, options.clients, for_memory=False)
                if options.url is None
                else attached(subject, options.url, options.ca_certificates, options.clients)
            )
            return stack.enter_context(server), stack.pop_all()

    def _failed(
        self,
        found: Findings,
        subject: Subject,
        stage: Stage,
        number: int,
        length: int | None,
        reason: str,
        arrivals: Arrivals | None = None,
    ) -> None:
        arrivals = arrivals or Arrivals()
        failure = Failure(
            model=subject.entry.name,
            variant=subject.variant,
            stage=stage,
            round=number,
            length=length,
            concurrency=arrivals.concurrency,
            request_rate=arrivals.request_rate,
            reason=" ".join(reason.split()),
        )
        found.failures.append(failure)
        self.first_error = self.first_error or SparseServeError(f"{subject.title}: {failure.reason}")
        self._progress.notice(f"{subject.title} failed ({stage}, round {number}): {failure.reason}")


def _stop(future: "Future[tuple[ServedSubject, ExitStack]]") -> None:
    if not future.cancelled() and future.exception() is None:
        future.result()[1].close()


def _workers(most: int = _MOST_WORKERS) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(most, available_cores()), thread_name_prefix="profile")


def _tiny(plan: Plan) -> Batch:
    """Return the smallest request."""
    word = (plan.workloads[0].batches[0].texts[0].split() or ["a"])[0]
    tokens = tokens_of(plan.entry)
    return tokens.batch([word], [word] if tokens.pairs else None, plan.turns)
