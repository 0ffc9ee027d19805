"""Measures entries of a model repository: memory, latency, sparsity and quality of every variant.

entries → subjects (variants found) → memory, a fresh server per number
                                    → latency, all variants side by side, a window of each in turn
                                    → Report
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Protocol

import numpy as np

from sparse_serve.data import Columns, read_texts
from sparse_serve.environment import available_cores
from sparse_serve.errors import OptionError, SparseServeError
from sparse_serve.profiling.evaluation import Evaluation, accuracy, read_evaluation
from sparse_serve.profiling.measure import (
    MEMORY_ROUNDS,
    STABLE_WINDOWS,
    LatencyReading,
    MemoryReading,
    StabilityRule,
    measure_latencies,
    measure_memory,
    percentile,
)
from sparse_serve.profiling.provenance import read_environment
from sparse_serve.profiling.report import (
    VARIANTS,
    Absent,
    Breakdown,
    Environment,
    Inputs,
    Latency,
    Measurement,
    Memory,
    Quality,
    Report,
    Settings,
    Sparsity,
    Variant,
)
from sparse_serve.profiling.savings import growth, savings, splits
from sparse_serve.profiling.subjects import (
    MALLOC_MMAP_THRESHOLD,
    ServedSubject,
    Subject,
    attention_heads,
    find_subjects,
    serving,
)
from sparse_serve.profiling.workload import (
    BUILT_IN,
    Workload,
    load_tokenizer,
    make_batch,
    make_workload,
)
from sparse_serve.repository.config import CONFIG_NAME, read_config
from sparse_serve.repository.entries import TOKENIZER_NAME, Entry, read_entry, repository_path
from sparse_serve.triton.installation import find_triton

LENGTHS = (64, 128, 256, 512)

# Servers started, stopped or measured for memory at a time; latency is always measured alone.
_MOST_WORKERS = 4

_MEMORY_METHOD = (
    "A fresh server per number, loading only what the variant needs, with ONNX Runtime's CPU arena off. "
    "Idle is VmRSS of all server processes after one tiny request. Then, "
    f"{MEMORY_ROUNDS} times, VmHWM is reset (/proc/PID/clear_refs) and read again after a request; "
    "the median is reported, less idle. Pages that processes share (tensors in /dev/shm among them) count in "
    "each, and peaks of different processes are added although they need not fall together."
)
_LATENCY_METHOD = (
    "A server per variant with the entry's own settings, all running, one asked at a time over gRPC on "
    f"loopback: one window of each in turn until the last {STABLE_WINDOWS} windows of a variant agree in "
    "throughput and latency (perf_analyzer's rule); figures are over those. Other work on the machine shows "
    "as spread."
)


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """What to measure; times in ms.

    `threads` None means one per available core; `columns` are those of `evaluation`.
    """

    repository: Path
    names: Sequence[str]
    lengths: Sequence[int] = LENGTHS
    variants: Sequence[Variant] = VARIANTS
    batch_size: int = 1
    measurement_interval_ms: float = 5000.0
    rule: StabilityRule = field(default_factory=StabilityRule)
    threads: int | None = None
    inputs: Path | None = None
    evaluation: Path | None = None
    columns: Columns = field(default_factory=Columns)

    @property
    def session_threads(self) -> int:
        """Threads of each ONNX Runtime session."""
        return self.threads or available_cores()


class Progress(Protocol):
    """Hears what is done, step by step."""

    def start(self, steps: int) -> None:
        """Say how many steps there will be."""

    def done(self, what: str) -> None:
        """One step is done."""

    def notice(self, message: str) -> None:
        """Something the user should know."""


@dataclass(frozen=True)
class _Plan:
    """One entry, ready to be measured."""

    entry: Entry
    subjects: list[Subject]
    absent: list[Absent]
    workloads: list[Workload]
    evaluation: Evaluation | None


@dataclass(frozen=True)
class _Findings:
    """What was measured of one entry."""

    measurements: list[Measurement]
    quality: list[Quality]
    environment: Environment


def profile(options: ProfileOptions, progress: Progress) -> Report:
    """Measure every variant of every entry at every length.

    Raises:
        OptionError: a length or batch beyond what an entry takes, or labels where there are none.
        RepositoryError: an entry is missing or malformed.
        DataError: the texts or labels cannot be read or used.
        ServerError: a server does not start, or ends while it is measured.
    """
    plans = [_plan(read_entry(repository_path(options.repository) / name), options) for name in options.names]
    for absent in (absent for plan in plans for absent in plan.absent):
        progress.notice(f"{absent.model} {absent.variant} is left out: {absent.reason}")
    rounds = [2 * len(plan.workloads) + (plan.evaluation is not None) for plan in plans]
    progress.start(sum(len(plan.subjects) * each for plan, each in zip(plans, rounds, strict=True)))
    findings = [_measure(plan, options, progress) for plan in plans]
    measurements = [measurement for finding in findings for measurement in finding.measurements]
    return Report(
        environment=findings[0].environment,
        settings=_settings(options),
        inputs=tuple(_inputs(plan.entry.name, workload) for plan in plans for workload in plan.workloads),
        measurements=tuple(measurements),
        absent=tuple(absent for plan in plans for absent in plan.absent),
        quality=tuple(quality for finding in findings for quality in finding.quality),
        savings=tuple(savings(measurements)),
        splits=tuple(splits(measurements)),
        growth=tuple(
            found
            for plan in plans
            for found in growth(measurements, plan.entry.name, attention_heads(plan.entry))
        ),
    )


def _plan(entry: Entry, options: ProfileOptions) -> _Plan:
    longest = entry.manifest.max_length
    for length in options.lengths:
        if length > longest:
            raise OptionError(
                f"length {length} is more than the {longest} tokens '{entry.name}' takes; "
                f"give --lengths up to {longest}"
            )
    most = read_config(entry.graph_path / CONFIG_NAME).max_batch_size
    if options.batch_size > most:
        raise OptionError(
            f"batch size {options.batch_size} is more than the {most} rows '{entry.name}' takes; "
            f"give -b up to {most}"
        )
    tokenizer = load_tokenizer(entry.path / TOKENIZER_NAME)
    texts, source = read_texts(options.inputs), str(options.inputs or BUILT_IN)
    subjects, absent = find_subjects(entry, options.variants)
    if not subjects:
        raise OptionError(
            f"'{entry.name}' has none of the variants {', '.join(options.variants)}; give others"
        )
    return _Plan(
        entry,
        subjects,
        absent,
        [make_workload(tokenizer, texts, length, options.batch_size, source) for length in options.lengths],
        None if options.evaluation is None else read_evaluation(options.evaluation, entry, options.columns),
    )


def _measure(plan: _Plan, options: ProfileOptions, progress: Progress) -> _Findings:
    memory = _measure_all_memory(plan, options, progress)
    measurements: list[Measurement] = []
    with _all_serving(plan.subjects, options.session_threads) as servers:
        for workload in plan.workloads:
            for served in servers:
                served.load.repeat(workload.batches)
            readings = _latencies(servers, workload.length, options, progress)
            for served in servers:
                point = (served.subject, workload.length)
                measurements.append(_measurement(served, workload, memory[point], readings[served.subject]))
        quality = []
        if plan.evaluation is not None:
            for served in servers:
                quality.append(_quality(served, plan.evaluation))
                progress.done(f"quality  {served.subject.title}")
        environment = read_environment(find_triton(), servers[0].load.server_version)
    order = [(variant, length) for variant in options.variants for length in options.lengths]
    measurements.sort(key=lambda measurement: order.index((measurement.variant, measurement.length)))
    return _Findings(measurements, quality, environment)


def _measure_all_memory(
    plan: _Plan, options: ProfileOptions, progress: Progress
) -> dict[tuple[Subject, int], MemoryReading]:
    tokenizer = load_tokenizer(plan.entry.path / TOKENIZER_NAME)
    tiny = make_batch(tokenizer, [plan.workloads[0].batches[0].texts[0].split()[0]])
    stopping = Event()

    def measure(subject: Subject, workload: Workload) -> MemoryReading:
        def request() -> None:
            if stopping.is_set():
                raise SparseServeError("profile was stopped")
            served.load.request()

        with serving(subject, options.session_threads, for_memory=True) as served:
            served.load.repeat(workload.batches)
            return measure_memory(
                served.server.process_ids, lambda: served.load.send(tiny, ("logits",)), request
            )

    with _workers() as pool:
        futures = {
            (subject, workload.length): pool.submit(measure, subject, workload)
            for workload in plan.workloads
            for subject in plan.subjects
        }
        try:
            readings = {}
            for (subject, length), future in futures.items():
                readings[subject, length] = future.result()
                progress.done(f"memory   {subject.title} {length}")
        except BaseException:
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return readings


def _latencies(
    servers: Sequence[ServedSubject], length: int, options: ProfileOptions, progress: Progress
) -> dict[Subject, LatencyReading]:
    def report(subject: Subject) -> None:
        progress.done(f"latency  {subject.title} {length}")

    loads = {served.subject: served.load for served in servers}
    return measure_latencies(loads, options.measurement_interval_ms, options.rule, report)


@contextmanager
def _all_serving(subjects: Sequence[Subject], threads: int) -> Iterator[list[ServedSubject]]:
    """Serve several subjects at the same time, started and stopped in parallel."""

    def start(subject: Subject) -> tuple[ServedSubject, ExitStack]:
        with ExitStack() as stack:
            served = stack.enter_context(serving(subject, threads, for_memory=False))
            return served, stack.pop_all()

    def stop(future: Future[tuple[ServedSubject, ExitStack]]) -> None:
        if not future.cancelled() and future.exception() is None:
            future.result()[1].close()

    with _workers() as pool:
        futures = [pool.submit(start, subject) for subject in subjects]
        try:
            yield [future.result()[0] for future in futures]
        finally:
            for future in futures:
                future.cancel()
            list(pool.map(stop, futures))


def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_MOST_WORKERS, available_cores()), thread_name_prefix="profile")


def _measurement(
    served: ServedSubject, workload: Workload, memory: MemoryReading, reading: LatencyReading
) -> Measurement:
    batch = workload.batches[0]
    rows, tokens = len(batch.texts), sum(batch.row_lengths)
    return Measurement(
        model=served.subject.entry.name,
        variant=served.subject.variant,
        served_as=served.subject.served_as,
        length=workload.length,
        batch=rows,
        concurrency=1,
        tokens_per_request=tokens,
        requests=len(reading.timings),
        windows=reading.trials,
        stable=reading.stable,
        spread=reading.spread,
        texts_per_second=rows * reading.requests_per_second,
        tokens_per_second=tokens * reading.requests_per_second,
        latency_ms=_latency(reading),
        breakdown_us=_breakdown(reading),
        memory_bytes=Memory(
            idle=memory.idle_bytes, peak_above_idle=memory.peak_above_idle_bytes, rounds=memory.rounds
        ),
        sparsity=_sparsity(served, workload) if served.subject.variant == "model" else None,
    )


def _latency(reading: LatencyReading) -> Latency:
    values = [timing.total_ns / 1e6 for timing in reading.timings]
    return Latency(
        mean=sum(values) / len(values),
        p50=percentile(values, 50),
        p90=percentile(values, 90),
        p95=percentile(values, 95),
        p99=percentile(values, 99),
    )


def _breakdown(reading: LatencyReading) -> Breakdown | None:
    server, timings = reading.server, reading.timings
    if not server.requests:
        return None
    inside = (
        server.queue_ns,
        server.compute_input_ns,
        server.compute_infer_ns,
        server.compute_output_ns,
    )
    queue, compute_input, compute_infer, compute_output = (ns / server.requests / 1000 for ns in inside)
    waited = sum(timing.wait_ns for timing in timings) / len(timings) / 1000
    return Breakdown(
        client_send=sum(timing.send_ns for timing in timings) / len(timings) / 1000,
        network=max(0.0, waited - queue - compute_input - compute_infer - compute_output),
        server_queue=queue,
        server_compute_input=compute_input,
        server_compute_infer=compute_infer,
        server_compute_output=compute_output,
        client_receive=sum(timing.receive_ns for timing in timings) / len(timings) / 1000,
    )


def _sparsity(served: ServedSubject, workload: Workload) -> Sparsity:
    """Ask the served graph for ρ `(batch, layers)` of every request, and average over rows."""
    rho = np.concatenate([served.load.send(batch, ("rho",)).tensors["rho"] for batch in workload.batches])
    true_lengths = np.array([batch.row_lengths for batch in workload.batches]).reshape(-1, 1)
    return Sparsity(
        rho=tuple(rho.mean(axis=0, dtype=np.float64).tolist()),
        keys_kept=tuple(((1.0 - rho) * true_lengths).mean(axis=0, dtype=np.float64).tolist()),
    )


def _quality(served: ServedSubject, evaluation: Evaluation) -> Quality:
    return Quality(
        model=served.subject.entry.name,
        variant=served.subject.variant,
        file=str(evaluation.path),
        rows=len(evaluation.labels),
        accuracy=accuracy(served.load, evaluation),
    )


def _inputs(model: str, workload: Workload) -> Inputs:
    lengths = workload.batches[0].row_lengths
    return Inputs(
        model=model,
        length=workload.length,
        batch=len(lengths),
        source=workload.source,
        requests=len(workload.batches),
        row_lengths=lengths,
        mean_length=sum(lengths) / len(lengths),
        tokens=sum(lengths),
        padding_share=1 - sum(lengths) / (len(lengths) * workload.length),
    )


def _settings(options: ProfileOptions) -> Settings:
    return Settings(
        lengths=tuple(options.lengths),
        variants=tuple(options.variants),
        batch_size=options.batch_size,
        concurrency=1,
        measurement_interval_ms=options.measurement_interval_ms,
        stability_percentage=options.rule.percentage,
        percentile=options.rule.percentile,
        max_trials=options.rule.max_trials,
        intra_op_threads=options.session_threads,
        memory_arena=False,
        malloc_mmap_threshold_bytes=MALLOC_MMAP_THRESHOLD,
        memory=_MEMORY_METHOD,
        latency=_LATENCY_METHOD,
    )
