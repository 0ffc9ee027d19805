"""Measures entries of a model repository: memory, latency, sparsity and quality of every variant.

entries → subjects (variants found) → memory, a fresh server per variant and length
                                    → latency, all variants side by side, a window of each in turn
                                    → Report
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from threading import Event
from typing import Protocol

from sparse_serve.data import read_texts
from sparse_serve.environment import available_cores
from sparse_serve.errors import OptionError, SparseServeError
from sparse_serve.profiling import summary
from sparse_serve.profiling.evaluation import Evaluation, read_evaluation
from sparse_serve.profiling.load import TritonLoad
from sparse_serve.profiling.measure import (
    STABLE_WINDOWS,
    LatencyReading,
    StabilityRule,
    measure_latencies,
)
from sparse_serve.profiling.memory import MEMORY_ROUNDS, MemoryReading, measure_memory
from sparse_serve.profiling.provenance import read_environment
from sparse_serve.profiling.report import (
    VARIANTS,
    Absent,
    Environment,
    Measurement,
    Quality,
    Report,
    Settings,
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
from sparse_serve.profiling.workload import BUILT_IN, ONE_TASK, Tokens, Turns, Workload, make_workload
from sparse_serve.repository.config import CONFIG_NAME, read_config
from sparse_serve.repository.entries import TOKENIZER_NAME, Entry, read_entry, repository_path
from sparse_serve.triton.installation import find_triton

LENGTHS = (64, 128, 256, 512)
# Each is a thread, and a client of every variant's server.
MOST_CONCURRENT = 256

# Servers started, stopped or measured for memory at a time; latency is always measured alone.
_MOST_WORKERS = 4

_MEMORY_METHOD = (
    "A fresh server per variant and length, loading only what the variant needs, with ONNX Runtime's CPU "
    "arena off. Idle is VmRSS of all server processes after one tiny request. Then, for each concurrency, "
    f"{MEMORY_ROUNDS} times: VmHWM is reset (/proc/PID/clear_refs), as many requests are sent at once, and "
    "it is read again; the median is reported, less idle. Pages that processes share (tensors in /dev/shm "
    "among them) count in each, and peaks of different processes are added although they need not fall "
    "together."
)
_LATENCY_METHOD = (
    "A server per variant with the entry's own settings, all running, one asked at a time over gRPC on "
    f"loopback: one window of each in turn until the last {STABLE_WINDOWS} windows of a variant agree in "
    "throughput and latency (perf_analyzer's rule); figures are over those. N requests in flight are N "
    "threads of this client, each of which waits for its answer before it sends again; a request takes this "
    "client, which is Python's, 0.1 to 0.4 ms longer than perf_analyzer. Other work on the machine shows as "
    "spread."
)


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """What to measure; times in ms, lengths and concurrencies ascending.

    `threads` None means one per available core; the columns are those of `evaluation`, None the task's own.
    `task_mix` has the share of each task's texts, a whole number, where entries have several tasks; empty for
    all in turn.
    """

    repository: Path
    names: Sequence[str]
    lengths: Sequence[int] = LENGTHS
    concurrencies: Sequence[int] = (1,)
    variants: Sequence[Variant] = VARIANTS
    batch_size: int = 1
    measurement_interval_ms: float = 5000.0
    rule: StabilityRule = field(default_factory=StabilityRule)
    threads: int | None = None
    inputs: Path | None = None
    evaluation: Path | None = None
    text_column: str | None = None
    text_pair_column: str | None = None
    label_column: str | None = None
    task_mix: Mapping[str, int] = field(default_factory=dict)

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
    turns: Turns
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
        OptionError: a length or batch beyond what an entry takes.
        RepositoryError: an entry is missing or malformed.
        DataError: the texts or labels cannot be read or used.
        ServerError: a server does not start, or ends while it is measured.
    """
    plans = [_plan(read_entry(repository_path(options.repository) / name), options) for name in options.names]
    for absent in (absent for plan in plans for absent in plan.absent):
        progress.notice(f"{absent.model} {absent.variant} is left out: {absent.reason}")
    points = 1 + len(options.concurrencies)  # memory once a length
    rounds = [points * len(plan.workloads) + (plan.evaluation is not None) for plan in plans]
    progress.start(sum(len(plan.subjects) * each for plan, each in zip(plans, rounds, strict=True)))
    findings = [_measure(plan, options, progress) for plan in plans]
    measurements = [measurement for finding in findings for measurement in finding.measurements]
    return Report(
        environment=findings[0].environment,
        settings=_settings(options),
        served=tuple(summary.served(plan.entry) for plan in plans),
        inputs=tuple(
            summary.inputs(plan.entry.name, workload) for plan in plans for workload in plan.workloads
        ),
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
    tokens, turns = _tokens(entry), _turns(entry, options.task_mix)
    texts, source = read_texts(options.inputs), str(options.inputs or BUILT_IN)
    subjects, absent = find_subjects(entry, options.variants)
    if not subjects:
        raise OptionError(
            f"'{entry.name}' has none of the variants {', '.join(options.variants)}; give others"
        )
    return _Plan(
        entry,
        turns,
        subjects,
        absent,
        [
            make_workload(tokens, texts, length, options.batch_size, source, turns)
            for length in options.lengths
        ],
        _evaluation(entry, turns, options),
    )


def _turns(entry: Entry, mix: Mapping[str, int]) -> Turns:
    """Return the tasks that an entry's texts are of in turn."""
    tasks = entry.manifest.tasks
    if len(tasks) == 1:
        if mix:
            raise OptionError(
                f"'{entry.name}' has one task: leave out --task and --task-mix, or profile it by itself"
            )
        return ONE_TASK
    for name in mix:
        if name not in tasks:
            raise OptionError(f"'{entry.name}' has no task '{name}'; its tasks are {', '.join(tasks)}")
    shares = mix or dict.fromkeys(tasks, 1)
    return tuple(name for name, share in shares.items() for _ in range(share))


def _evaluation(entry: Entry, turns: Turns, options: ProfileOptions) -> Evaluation | None:
    if options.evaluation is None:
        return None
    asked = [name for name in dict.fromkeys(turns) if name is not None]
    if len(asked) > 1:
        raise OptionError(
            f"--eval has the rows of one task, and '{entry.name}' is asked for {', '.join(asked)}: say with "
            "--task which one it is"
        )
    rows = entry.manifest.task.member(turns[0]).rows
    columns = rows.named(options.text_column, options.text_pair_column, options.label_column)
    return read_evaluation(options.evaluation, entry, columns, turns[0])


def _tokens(entry: Entry) -> Tokens:
    manifest, path = entry.manifest, entry.path / TOKENIZER_NAME
    return Tokens(path, manifest.task, manifest.max_length, manifest.truncation, in_graph=entry.takes_text)


def _measure(plan: _Plan, options: ProfileOptions, progress: Progress) -> _Findings:
    memory = _measure_all_memory(plan, options, progress)
    measurements: list[Measurement] = []
    with _all_serving(plan.subjects, options) as servers:
        for workload, concurrency in product(plan.workloads, options.concurrencies):
            readings = _latencies(servers, workload, concurrency, options, progress)
            for served in servers:
                subject = served.subject
                peak = memory[subject, workload.length][concurrency]
                measurements.append(
                    summary.measurement(served, workload, concurrency, peak, readings[subject])
                )
        quality = []
        if plan.evaluation is not None:
            for served in servers:
                quality.append(summary.quality(served, plan.evaluation))
                progress.done(f"quality  {served.subject.title}")
        environment = read_environment(find_triton(), servers[0].load.server_version)
    order = list(product(options.variants, options.lengths, options.concurrencies))
    measurements.sort(key=lambda m: order.index((m.variant, m.length, m.concurrency)))
    return _Findings(measurements, quality, environment)


def _measure_all_memory(
    plan: _Plan, options: ProfileOptions, progress: Progress
) -> dict[tuple[Subject, int], dict[int, MemoryReading]]:
    """Return the readings by concurrency of each variant at each length."""
    word = plan.workloads[0].batches[0].texts[0].split()[0]
    tokens = _tokens(plan.entry)
    tiny = tokens.batch([word], [word] if tokens.pairs else None, plan.turns)
    stopping = Event()

    def measure(subject: Subject, workload: Workload) -> dict[int, MemoryReading]:
        def at_once(concurrency: int) -> None:
            if stopping.is_set():
                raise SparseServeError("profile was stopped")
            with ThreadPoolExecutor(concurrency) as senders:
                list(senders.map(TritonLoad.request, served.loads[:concurrency]))

        clients = max(options.concurrencies)
        with serving(subject, options.session_threads, clients, for_memory=True) as served:
            served.repeat(workload.batches)
            requests = {number: partial(at_once, number) for number in options.concurrencies}
            return measure_memory(
                served.server.process_ids, lambda: served.load.send(tiny, (served.load.output,)), requests
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
    servers: Sequence[ServedSubject],
    workload: Workload,
    concurrency: int,
    options: ProfileOptions,
    progress: Progress,
) -> dict[Subject, LatencyReading]:
    def report(subject: Subject) -> None:
        progress.done(f"latency  {subject.title} {workload.length} at concurrency {concurrency}")

    for served in servers:
        served.repeat(workload.batches)
    senders = {served.subject: served.loads[:concurrency] for served in servers}
    return measure_latencies(senders, options.measurement_interval_ms, options.rule, report)


@contextmanager
def _all_serving(subjects: Sequence[Subject], options: ProfileOptions) -> Iterator[list[ServedSubject]]:
    """Serve several subjects at the same time, started and stopped in parallel."""

    def start(subject: Subject) -> tuple[ServedSubject, ExitStack]:
        with ExitStack() as stack:
            clients = max(options.concurrencies)
            served = stack.enter_context(serving(subject, options.session_threads, clients, for_memory=False))
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


def _settings(options: ProfileOptions) -> Settings:
    return Settings(
        lengths=tuple(options.lengths),
        variants=tuple(options.variants),
        batch_size=options.batch_size,
        concurrencies=tuple(options.concurrencies),
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
