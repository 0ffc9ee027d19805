"""Measures entries of a model repository: memory, latency, sparsity and quality of every variant.

entries → subjects (variants found) → rounds, each: memory, a fresh server per variant and length
                                                    latency, fresh servers of all variants side by side
                                    → Report
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from threading import Event
from typing import Protocol

from sparse_serve.cuda import require_gpu
from sparse_serve.data import read_data, read_texts
from sparse_serve.environment import available_cores
from sparse_serve.errors import OptionError, SparseServeError
from sparse_serve.profiling import summary
from sparse_serve.profiling.capacity import CapacityLimits, measure_capacity
from sparse_serve.profiling.energy import PowerMeter
from sparse_serve.profiling.estimates import estimate
from sparse_serve.profiling.evaluation import Evaluation, read_evaluation
from sparse_serve.profiling.load import TritonLoad
from sparse_serve.profiling.measure import (
    STABLE_WINDOWS,
    Arrivals,
    Distribution,
    LatencyReading,
    StabilityRule,
    WindowRule,
    measure_latencies,
)
from sparse_serve.profiling.memory import MEMORY_REPEATS, MemoryReading, measure_memory
from sparse_serve.profiling.provenance import read_environment
from sparse_serve.profiling.report import (
    VARIANTS,
    Absent,
    Capacity,
    Environment,
    Expected,
    Failure,
    Measurement,
    Quality,
    Report,
    Served,
    Settings,
    Sparsity,
    Stage,
    Steady,
    Variant,
)
from sparse_serve.profiling.savings import limits, noise, savings, splits
from sparse_serve.profiling.subjects import (
    MALLOC_MMAP_THRESHOLD,
    Place,
    ServedSubject,
    SteadyReading,
    Subject,
    attached,
    find_subjects,
    graph_shape,
    on_cores,
    serving,
    weight_bytes,
)
from sparse_serve.profiling.theory import expected, growth, runs_of
from sparse_serve.profiling.trade import Budget, pick, trade_points
from sparse_serve.profiling.workload import (
    BUILT_IN,
    ONE_TASK,
    Batch,
    Tokens,
    Turns,
    Workload,
    make_workload,
    own_workload,
    read_token_counts,
    recorded_workload,
)
from sparse_serve.repository.config import CONFIG_NAME, device_of, read_config
from sparse_serve.repository.entries import TOKENIZER_NAME, Entry, read_entry, repository_path
from sparse_serve.stub.runs import TOKEN_BYTES
from sparse_serve.triton.container import find_image
from sparse_serve.triton.installation import find_triton

LENGTHS = (64, 128, 256, 512)
ROUNDS = 3
# Each is a thread, and a client of every variant's server.
MOST_CONCURRENT = 256

# An open loop's senders: more requests than that in flight are late, which the report says.
_OPEN_SENDERS = 64
# Servers started, stopped or measured for memory at a time; latency is always measured alone.
_MOST_WORKERS = 4

_MEMORY_METHOD = (
    "A fresh server per round, variant and length, loading only what the variant needs, with ONNX Runtime's "
    "CPU arena off. At rest is VmRSS of all server processes after one tiny request. Then, for each "
    f"concurrency, {MEMORY_REPEATS} times: VmHWM is reset (/proc/PID/clear_refs), the longest request is "
    "sent so many times at once, and it is read again; the median is the server's peak. Pages that processes "
    "share (tensors in /dev/shm among them) count in each, and peaks of different processes are added "
    "although they need not fall together; proportional memory (PSS) counts shared pages once. As deployed, "
    "with the arena as the entry has it, memory is read of the servers that latency was measured on, after "
    "all of their load. On a GPU servers are measured one at a time, warmed up with a short row alone: what "
    "processes hold is the driver's (NVML), what was taken is the devices' free memory before the server "
    "less the least that was free during requests (sampled), and the arenas' mark is from the server's log."
)
_LATENCY_METHOD = (
    "In every round a fresh server per variant with the entry's own settings, all running, one asked at a "
    f"time over gRPC: one window of each in turn until the last {STABLE_WINDOWS} windows of a variant agree "
    "in throughput and latency (perf_analyzer's rule); a server's figures are over those, and the report's "
    "are means over the servers. In a closed loop N requests in flight are N threads of this client, each of "
    "which waits for its answer before it sends again; in an open one requests arrive at a rate, and a "
    "latency begins when its request was due. A request takes this client, which is Python's, 0.1 to 0.4 ms "
    "longer than perf_analyzer. Other work on the machine shows as spread."
)


@dataclass(frozen=True)
class FromCheckpoint:
    """An entry that was exported to be profiled: from what, where it is, and the line that makes it again."""

    checkpoint: str
    repository: Path
    command: str


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """What to measure; times in ms, lengths, concurrencies and rates ascending, rates in requests a second.

    `exported` has those of the `names` that are not in `repository`. `threads` None means one per available
    core that is not the client's; `client_cores` is how many are kept for the client alone. `inputs` are
    texts that are cut to the lengths, or to those of recorded traffic in `input_lengths`, `input_data` rows
    that are sent as they are. The columns are those of `evaluation` and `input_data`, None the task's own.
    `task_mix` has the share of each task's texts, a whole number, where entries have several tasks; empty for
    all in turn.
    `url` is the gRPC address of a running server to measure, None to start some: containers of `image` where
    one is named, else processes of this machine. `memory_limit` in bytes is what the longest text and largest
    batch are looked for within.
    """

    repository: Path
    names: Sequence[str]
    exported: Mapping[str, FromCheckpoint] = field(default_factory=dict)
    lengths: Sequence[int] = LENGTHS
    concurrencies: Sequence[int] = (1,)
    request_rates: Sequence[float] = ()
    request_distribution: Distribution = "poisson"
    variants: Sequence[Variant] = VARIANTS
    rounds: int = ROUNDS
    batch_size: int = 1
    measurement_interval_ms: float = 1000.0
    rule: StabilityRule = field(default_factory=StabilityRule)
    threads: int | None = None
    client_cores: int = 0
    inputs: Path | None = None
    input_data: Path | None = None
    input_lengths: Path | None = None
    evaluation: Path | None = None
    text_column: str | None = None
    text_pair_column: str | None = None
    label_column: str | None = None
    task_mix: Mapping[str, int] = field(default_factory=dict)
    url: str | None = None
    image: str | None = None
    memory_limit: int | None = None
    budget: Budget = field(default_factory=Budget)

    @property
    def session_threads(self) -> int:
        """Threads of each ONNX Runtime session."""
        return self.threads or available_cores() - self.client_cores

    @property
    def arrivals(self) -> list[Arrivals]:
        """All loads, closed ones first."""
        closed = [Arrivals(concurrency=number) for number in self.concurrencies]
        return [*closed, *(Arrivals(request_rate=rate) for rate in self.request_rates)]

    @property
    def clients(self) -> int:
        """The most requests in flight that are needed."""
        return max([*self.concurrencies, *([_OPEN_SENDERS] if self.request_rates else [])])


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


Point = tuple[Subject, int, Arrivals]


@dataclass
class _Findings:
    """What was measured of one entry so far, by round."""

    latency: dict[Point, dict[int, LatencyReading]] = field(default_factory=dict)
    memory: dict[tuple[Subject, int, int], dict[int, MemoryReading]] = field(default_factory=dict)
    steady: dict[Subject, dict[int, SteadyReading]] = field(default_factory=dict)
    sparsity: dict[tuple[Subject, int], Sparsity] = field(default_factory=dict)
    quality: dict[Subject, Quality] = field(default_factory=dict)
    capacity: list[Capacity] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


def profile(
    options: ProfileOptions, progress: Progress, on_round: Callable[[Report], object] = lambda _report: None
) -> Report:
    """Measure every variant of every entry at every length and load, in several rounds of fresh servers.

    What fails is left out and said; what was measured before Ctrl-C is reported as a part. `on_round` is told
    the report after each round but the last.

    Raises:
        OptionError: a length or batch beyond what an entry takes.
        RepositoryError: an entry is missing or malformed.
        DataError: the texts or labels cannot be read or used.
        DeviceError: an entry computes on a GPU, and this machine has none that can be used.
        ServerError: nothing could be measured.
        KeyboardInterrupt: nothing was measured yet.
    """
    plans = [_plan(_read_entry(name, options), options) for name in options.names]
    for absent in (absent for plan in plans for absent in plan.absent):
        progress.notice(f"{absent.model} {absent.variant} is left out: {absent.reason}")
    progress.start(sum(_steps(plan, options) for plan in plans))
    run = _Run(options, progress)
    findings = [_Findings() for _ in plans]
    partial_reason = None
    try:
        for number in range(1, options.rounds + 1):
            for plan, found in zip(plans, findings, strict=True):
                run.measure(plan, number, found)
            if number < options.rounds and any(found.latency for found in findings):
                ended = f"it ended after {number} of {options.rounds} rounds"
                on_round(_report(plans, findings, run, ended))
        if options.memory_limit is not None and options.url is None:
            for plan, found in zip(plans, findings, strict=True):
                run.find_capacity(plan, options.memory_limit, found)
    except KeyboardInterrupt:
        if not any(found.latency for found in findings):
            raise
        partial_reason = "it was interrupted"
    if not any(found.latency for found in findings):
        raise run.first_error or SparseServeError("nothing could be measured")
    return _report(plans, findings, run, partial_reason)


def _read_entry(name: str, options: ProfileOptions) -> Entry:
    made = options.exported.get(name)
    return read_entry(repository_path(options.repository if made is None else made.repository) / name)


def _steps(plan: _Plan, options: ProfileOptions) -> int:
    a_round = len(plan.workloads) * (
        len(options.arrivals) + (options.url is None and bool(options.concurrencies))
    )
    once = (plan.evaluation is not None) + (options.memory_limit is not None and options.url is None)
    return len(plan.subjects) * (options.rounds * a_round + once)


def _plan(entry: Entry, options: ProfileOptions) -> _Plan:
    longest = entry.manifest.max_length
    for length in options.lengths if options.input_data is options.input_lengths is None else ():
        if length > longest:
            raise OptionError(
                f"length {length} is more than the {longest} tokens '{entry.name}' takes; "
                f"give --lengths up to {longest}"
            )
    config = read_config(entry.graph_path / CONFIG_NAME)
    if options.url is None and device_of(config) == "cuda":
        require_gpu(f"model '{entry.name}'")
    most = config.max_batch_size
    if options.batch_size > most:
        raise OptionError(
            f"batch size {options.batch_size} is more than the {most} rows '{entry.name}' takes; "
            f"give -b up to {most}"
        )
    turns = _turns(entry, options.task_mix)
    subjects, absent = _subjects(entry, options)
    if not subjects:
        raise OptionError(
            f"'{entry.name}' has none of the variants {', '.join(options.variants)}; give others"
        )
    evaluation = _evaluation(entry, turns, options)
    return _Plan(entry, turns, subjects, absent, _workloads(entry, turns, options), evaluation)


def _subjects(entry: Entry, options: ProfileOptions) -> tuple[list[Subject], list[Absent]]:
    if options.url is None:
        fitting = [each for each in options.variants if options.image is None or each != "portable"]
        subjects, absent = find_subjects(entry, fitting)
        if len(fitting) < len(options.variants):
            reason = "the image has the op library: measure it without --docker"
            absent.append(Absent(model=entry.name, variant="portable", reason=reason))
        return subjects, absent
    subjects, _ = find_subjects(entry, ("model",) if entry.takes_text else ("text",))
    # What the server has beside the public model is not known.
    return [replace(subject, variant="model") if entry.takes_text else subject for subject in subjects], []


def _workloads(entry: Entry, turns: Turns, options: ProfileOptions) -> list[Workload]:
    tokens = _tokens(entry)
    if options.input_data is not None:
        columns = entry.manifest.task.member(turns[0]).rows.named(
            options.text_column, options.text_pair_column, options.label_column
        )
        data = read_data(options.input_data, columns, task=None)
        rows = [(row.text, row.text_pair) for row in data.rows]
        return [own_workload(tokens, rows, options.batch_size, str(options.input_data), turns)]
    texts, source = read_texts(options.inputs), str(options.inputs or BUILT_IN)
    if options.input_lengths is not None:
        counts, recorded = read_token_counts(options.input_lengths), str(options.input_lengths)
        return [recorded_workload(tokens, texts, counts, options.batch_size, recorded, turns)]
    return [
        make_workload(tokens, texts, length, options.batch_size, source, turns) for length in options.lengths
    ]


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


class _Run:
    """Measures plans round by round, and keeps on where something fails."""

    def __init__(self, options: ProfileOptions, progress: Progress) -> None:
        self.options = options
        self.first_error: SparseServeError | None = None
        self.server_version = "unknown"
        self._progress = progress
        cores = sorted(os.sched_getaffinity(0))
        kept = options.client_cores
        self._client_cores = frozenset(cores[-kept:]) if kept else None
        server_cores = frozenset(cores[:-kept]) if kept else None
        # Before anything is measured: without Docker nothing can be.
        self.image = None if options.image is None else find_image(options.image)
        self._place = Place(options.session_threads, server_cores, PowerMeter(), options.image)
        self._stopping = Event()

    def measure(self, plan: _Plan, number: int, found: _Findings) -> None:
        """Measure one round of one entry: memory, then latency, and in the first one what does not vary."""
        if self.options.url is None and self.options.concurrencies:
            self._measure_memory(plan, number, found)
        with on_cores(self._client_cores), self._all_serving(plan, number, found) as servers:
            lost: set[Subject] = set()
            for workload, arrivals in product(plan.workloads, self.options.arrivals):
                left = [served for served in servers if served.subject not in lost]
                lost |= self._measure_latency(left, workload, arrivals, number, found)
            for served in servers:
                if served.subject not in lost:
                    self._measure_once(served, plan, number, found)

    def _measure_memory(self, plan: _Plan, number: int, found: _Findings) -> None:
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

    def _memory_of(self, plan: _Plan, subject: Subject, workload: Workload) -> dict[int, MemoryReading]:
        """Return the readings of one fresh server by concurrency."""

        def at_once(concurrency: int) -> None:
            if self._stopping.is_set():
                raise SparseServeError("profile was stopped")
            with ThreadPoolExecutor(concurrency) as senders:
                list(senders.map(TritonLoad.request, served.loads[:concurrency]))

        clients = max(self.options.concurrencies)
        with serving(subject, self._place, clients, for_memory=True) as served:
            served.repeat([workload.heaviest])
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
        servers: Sequence[ServedSubject],
        workload: Workload,
        arrivals: Arrivals,
        number: int,
        found: _Findings,
    ) -> set[Subject]:
        """Measure one point of every server that is left; return whom it lost."""
        by_subject = {served.subject: served for served in servers}
        lost: set[Subject] = set()

        def done(subject: Subject) -> None:
            self._progress.done(
                f"latency  {subject.title} {workload.length} {arrivals.title}, round {number}"
            )

        def failed(subject: Subject, error: SparseServeError) -> None:
            lost.add(subject)
            reason = by_subject[subject].why(error)
            self._failed(found, subject, "latency", number, workload.length, reason, arrivals)

        for served in servers:
            served.repeat(workload.batches)
        count = arrivals.concurrency or _OPEN_SENDERS
        senders = {served.subject: served.loads[:count] for served in servers}
        rule = WindowRule(
            self.options.measurement_interval_ms,
            self.options.rule,
            self.options.request_distribution,
            seed=number,
        )
        readings = measure_latencies(senders, arrivals, rule, done, failed)
        for subject, reading in readings.items():
            found.latency.setdefault((subject, workload.length, arrivals), {})[number] = reading
        return lost

    def _measure_once(self, served: ServedSubject, plan: _Plan, number: int, found: _Findings) -> None:
        """Read what a server holds after its load; where it has not been, its sparsity and quality."""
        subject = served.subject
        self.server_version = served.load.server_version
        try:
            steady = served.steady()
            if steady is not None:
                found.steady.setdefault(subject, {})[number] = steady
            for workload in plan.workloads if subject.variant == "model" else ():
                if (subject, workload.length) not in found.sparsity and served.has_measures:
                    found.sparsity[subject, workload.length] = summary.sparsity(served.load, workload)
            if plan.evaluation is not None and subject not in found.quality:
                found.quality[subject] = summary.quality(served, plan.evaluation)
                self._progress.done(f"quality  {subject.title}")
        except SparseServeError as error:
            self._failed(found, subject, "quality", number, None, served.why(error))

    def find_capacity(self, plan: _Plan, limit: int, found: _Findings) -> None:
        """Find what fits a memory limit, on a fresh server of each variant."""
        tokens = _tokens(plan.entry)
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

        for subject in plan.subjects:
            if subject.variant == "control":
                continue
            try:
                with serving(subject, self._place, 1, for_memory=True) as served:
                    found.capacity.append(measure_capacity(served, limit, bounds, batch))
                self._progress.done(f"capacity {subject.title}")
            except SparseServeError as error:
                self._failed(found, subject, "capacity", self.options.rounds, None, str(error))

    @contextmanager
    def _all_serving(self, plan: _Plan, number: int, found: _Findings) -> Iterator[list[ServedSubject]]:
        """Serve the subjects that can be at the same time, started and stopped in parallel.

        Each round they take their turns in another order.
        """
        first = number % len(plan.subjects)
        subjects = [*plan.subjects[first:], *plan.subjects[:first]]
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
                else attached(subject, options.url, options.clients)
            )
            return stack.enter_context(server), stack.pop_all()

    def _failed(
        self,
        found: _Findings,
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


def _tiny(plan: _Plan) -> Batch:
    """Return the smallest request."""
    word = (plan.workloads[0].batches[0].texts[0].split() or ["a"])[0]
    tokens = _tokens(plan.entry)
    return tokens.batch([word], [word] if tokens.pairs else None, plan.turns)


def _report(
    plans: Sequence[_Plan], findings: Sequence[_Findings], run: _Run, partial_reason: str | None
) -> Report:
    """Return what the findings say, as far as they go."""
    options = run.options
    measurements: list[Measurement] = []
    theory: list[Expected] = []
    held: list[Steady] = []
    for plan, found in zip(plans, findings, strict=True):
        ours = list(_measurements(plan, found, options))
        measurements += ours
        theory += _theory(plan, ours, in_container=run.image is not None)
        held += [summary.steady(subject, readings) for subject, readings in found.steady.items()]
    served = tuple(_served(plan.entry, options.exported.get(plan.entry.name)) for plan in plans)
    quality = tuple(quality for found in findings for quality in found.quality.values())
    found_noise = tuple(noise(measurements))
    settings = _settings(options, plans)
    lightest = options.arrivals[0]
    points = trade_points(
        measurements, served, quality, found_noise, (lightest.concurrency, lightest.request_rate)
    )
    return Report(
        partial=partial_reason,
        environment=_environment(run),
        settings=settings,
        served=served,
        inputs=tuple(
            summary.inputs(plan.entry.name, workload) for plan in plans for workload in plan.workloads
        ),
        measurements=tuple(measurements),
        steady=tuple(held),
        expected=tuple(theory),
        capacity=tuple(each for found in findings for each in found.capacity),
        absent=tuple(absent for plan in plans for absent in plan.absent),
        failures=tuple(failure for found in findings for failure in found.failures),
        quality=quality,
        noise=found_noise,
        savings=tuple(savings(measurements, limits(found_noise))),
        splits=tuple(splits(measurements, served, limits(found_noise))),
        growth=tuple(
            each
            for plan in plans
            for each in growth(measurements, plan.entry.name, graph_shape(plan.entry).heads)
        ),
        trade=tuple(points) if len(points) > 1 else (),
        pick=pick(points, served, options.budget, options.repository) if options.budget.is_set else None,
    )


def _served(entry: Entry, made: FromCheckpoint | None) -> Served:
    served = summary.served(entry)
    if made is None:
        return served
    return served.model_copy(update={"command": made.command, "checkpoint": made.checkpoint})


def _measurements(plan: _Plan, found: _Findings, options: ProfileOptions) -> Iterator[Measurement]:
    subjects = sorted(plan.subjects, key=lambda subject: VARIANTS.index(subject.variant))
    for subject, workload, arrivals in product(subjects, plan.workloads, options.arrivals):
        readings = found.latency.get((subject, workload.length, arrivals))
        if readings is None:
            continue
        memory = found.memory.get((subject, workload.length, arrivals.concurrency or 0), {})
        measurement = summary.measurement(
            subject, workload, arrivals, readings, memory, _held(found.steady.get(subject, {}))
        )
        yield measurement.model_copy(update={"sparsity": found.sparsity.get((subject, workload.length))})


def _held(readings: Mapping[int, SteadyReading]) -> float | None:
    """Return the proportional memory that a variant's servers held as deployed, on average."""
    held = [reading.pss_bytes for reading in readings.values() if reading.pss_bytes is not None]
    return estimate(held).value if held else None


def _theory(plan: _Plan, measurements: Sequence[Measurement], *, in_container: bool) -> Iterator[Expected]:
    """Yield what theory expects of each variant's memory at each length, one request at a time, on a CPU."""
    if plan.entry.manifest.device != "cpu":
        return
    shape = graph_shape(plan.entry)
    weights = {subject.variant: weight_bytes(subject) for subject in plan.subjects}
    by_bytes = plan.entry.takes_text and not in_container and find_triton().kind == "bundled"
    runs = {workload.length: _runs(plan.entry, workload.heaviest, by_bytes) for workload in plan.workloads}
    for measurement in measurements:
        if measurement.concurrency == 1 and measurement.memory_bytes is not None:
            theory = expected(measurement, shape, weights[measurement.variant], runs[measurement.length])
            if theory is not None:
                yield theory


def _runs(entry: Entry, batch: Batch, by_bytes: bool) -> list[Sequence[int]]:
    """Return the lengths of the rows that are computed together, of one request.

    With `by_bytes` the server divides a request before its texts have been read, as the bundled backend does.
    """
    if not by_bytes:
        return runs_of(batch.row_lengths)
    texts = zip(batch.texts, batch.text_pairs or [""] * len(batch.texts), strict=True)
    about = [(len(text.encode()) + len(pair.encode())) // TOKEN_BYTES for text, pair in texts]
    return runs_of(batch.row_lengths, [min(each, entry.manifest.max_length) for each in about])


def _environment(run: _Run) -> Environment:
    if run.options.url is None and run.image is None:
        return read_environment(find_triton(), run.server_version)
    environment = read_environment(None, run.server_version)
    image = None if run.image is None else f"{run.options.image} ({run.image.id})"
    return environment.model_copy(update={"op_library": None, "remote": run.options.url, "image": image})


def _settings(options: ProfileOptions, plans: Sequence[_Plan]) -> Settings:
    lengths = {workload.length for plan in plans for workload in plan.workloads}
    return Settings(
        lengths=tuple(sorted(lengths)),
        variants=tuple(options.variants),
        batch_size=options.batch_size,
        concurrencies=tuple(options.concurrencies),
        request_rates=tuple(options.request_rates),
        request_distribution=options.request_distribution,
        rounds=options.rounds,
        measurement_interval_ms=options.measurement_interval_ms,
        stability_percentage=options.rule.percentage,
        percentile=options.rule.percentile,
        max_trials=options.rule.max_trials,
        intra_op_threads=options.session_threads,
        client_has_own_cores=bool(options.client_cores),
        memory_arena=False,
        malloc_mmap_threshold_bytes=MALLOC_MMAP_THRESHOLD,
        memory=_MEMORY_METHOD if options.url is None else "A running server's memory cannot be seen.",
        latency=_LATENCY_METHOD,
    )
