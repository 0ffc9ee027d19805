"""What was found, as the report that says it."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from sparse_serve.profiling import summary
from sparse_serve.profiling.measure import STABLE_WINDOWS
from sparse_serve.profiling.memory import MEMORY_REPEATS
from sparse_serve.profiling.options import FromCheckpoint, ProfileOptions
from sparse_serve.profiling.plan import Plan
from sparse_serve.profiling.provenance import read_environment
from sparse_serve.profiling.run import Findings, Run
from sparse_serve.profiling.subjects import MALLOC_MMAP_THRESHOLD, SteadyReading, graph_shape, weight_bytes
from sparse_serve.profiling.theory import expected, growth, runs_of
from sparse_serve.profiling.workload import Batch
from sparse_serve.report.concluded import Expected
from sparse_serve.report.document import Environment, Report, Served, Settings
from sparse_serve.report.estimates import estimate
from sparse_serve.report.measured import VARIANTS, Measurement, Steady
from sparse_serve.report.savings import limits, noise, savings, splits
from sparse_serve.report.trade import pick, trade, trade_points
from sparse_serve.repository.entries import Entry
from sparse_serve.runs import TOKEN_BYTES
from sparse_serve.triton.installation import find_triton

_MEMORY_METHOD = (
    "A fresh server per round, variant and length, loading only what the variant needs, with ONNX Runtime's "
    "CPU arena off. At rest is VmRSS of all server processes after one tiny request. Then, for each "
    f"concurrency, {MEMORY_REPEATS} times: VmHWM is reset (/proc/PID/clear_refs), the longest request is "
    "sent so many times at once, and it is read again; the median is the server's peak. Where a server has "
    "several processes, as with a server-side tokenizer, pages that they share (tensors in /dev/shm among "
    "them) count in each, and their peaks are added although they need not fall together; proportional "
    "memory (PSS) counts pages that a server's processes share once, whoever else has them. As deployed, "
    "with the arena as the entry has it, memory is read of the servers that latency was measured on, after "
    "all of their load. On a GPU servers are measured one at "
    "a time, warmed up with a short row alone: what processes hold is the driver's (NVML), what was taken is "
    "the devices' free memory before the server less the least that was free during requests (sampled), and "
    "the arenas' mark is from the server's log."
)
CLIENT_TIME = (
    "Sending and receiving takes this client, which is Python's, longer than perf_analyzer: where both asked "
    "one server in turns, by 0.3 to 0.6 ms with 1 request in flight and by 0.2 to 0.9 ms with 4 "
    "(benchmarks/serving/perf_analyzer.csv)."
)
_LOOPS = (
    "In a closed loop N requests in flight are N threads of this client, each of which waits for its answer "
    "before it sends again; in an open one requests arrive at a rate, and a latency begins when its request "
    "was due."
)
_LATENCY_METHOD = (
    "In every round a fresh server per variant of every model, all running, with the entry's own settings "
    "but for a session's threads, which are as many in all; one is asked at a time over gRPC: one window of "
    "each, in an order drawn anew each time, until the last "
    f"{STABLE_WINDOWS} windows of a server agree in throughput and latency (perf_analyzer's rule); its "
    "figures are over those, and the report's are means over the servers. Requests are sent in an order that "
    "is drawn for the round, the same for all. "
    f"{_LOOPS} Other work on the machine shows as spread. {CLIENT_TIME}"
)
_REMOTE_LATENCY_METHOD = (
    "A server that was running, with the settings that it has, was visited once for each round, and asked "
    "over gRPC in windows until the last "
    f"{STABLE_WINDOWS} agreed in throughput and latency (perf_analyzer's rule); a visit's figures are over "
    "those, and the report's are means over the visits. Requests are sent in an order that is drawn for the "
    "round. "
    f"{_LOOPS} Whatever else the server was asked meanwhile is in the figures. {CLIENT_TIME}"
)


def report_of(plans: Sequence[Plan], found: Findings, run: Run, partial_reason: str | None) -> Report:
    """Return what the findings say, as far as they go."""
    options = run.options
    measurements: list[Measurement] = []
    theory: list[Expected] = []
    held: list[Steady] = []
    for plan in plans:
        ours = list(_measurements(plan, found, options))
        measurements += ours
        theory += _theory(plan, ours, in_container=run.image is not None)
        held += [
            summary.steady(subject, found.steady[subject])
            for subject in plan.subjects
            if subject in found.steady
        ]
    served = tuple(_served(plan.entry, options.exported.get(plan.entry.name)) for plan in plans)
    quality = tuple(found.quality.values())
    found_noise = tuple(noise(measurements))
    settings = _settings(options, plans)
    lightest = options.arrivals[0].concurrency, options.arrivals[0].request_rate
    inputs = tuple(summary.inputs(plan.entry.name, workload) for plan in plans for workload in plan.workloads)
    points = trade_points(measurements, served, quality, lightest, inputs)
    return Report(
        partial=partial_reason,
        environment=_environment(run),
        settings=settings,
        served=served,
        inputs=inputs,
        measurements=tuple(measurements),
        steady=tuple(held),
        expected=tuple(theory),
        capacity=tuple(found.capacity),
        absent=tuple(absent for plan in plans for absent in plan.absent),
        failures=tuple(found.failures),
        quality=quality,
        noise=found_noise,
        savings=tuple(savings(measurements, limits(found_noise))),
        splits=tuple(splits(measurements, served, limits(found_noise))),
        growth=tuple(
            each
            for plan in plans
            for each in growth(measurements, plan.entry.name, graph_shape(plan.entry).heads)
        ),
        trade=tuple(trade(points, served, quality, found_noise, lightest)),
        pick=pick(points, served, options.budget, options.repository) if options.budget.is_set else None,
    )


def _served(entry: Entry, made: FromCheckpoint | None) -> Served:
    served = summary.served(entry)
    if made is None:
        return served
    return Served.model_validate(
        served.model_dump() | {"command": made.command, "checkpoint": made.checkpoint}
    )


def _measurements(plan: Plan, found: Findings, options: ProfileOptions) -> Iterator[Measurement]:
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


def _theory(plan: Plan, measurements: Sequence[Measurement], *, in_container: bool) -> Iterator[Expected]:
    """Yield what theory expects of variants' memory that was measured, one request at a time, on a CPU."""
    compared = [each for each in measurements if each.concurrency == 1 and each.memory_bytes is not None]
    if not compared or plan.entry.manifest.device != "cpu":
        return
    shape = graph_shape(plan.entry)
    weights = {subject.variant: weight_bytes(subject) for subject in plan.subjects}
    by_bytes = plan.entry.takes_text and not in_container and not find_triton().has_onnxruntime
    runs = {workload.length: _runs(plan.entry, workload.heaviest, by_bytes) for workload in plan.workloads}
    for measurement in compared:
        theory = expected(measurement, shape, weights[measurement.variant], runs[measurement.length])
        if theory is not None:
            yield theory


def _runs(entry: Entry, batch: Batch, by_bytes: bool) -> list[Sequence[int]]:
    """Return the lengths of the rows that are computed together, of one request.

    With `by_bytes` the server divides a request before its texts have been read, as this package's backend
    does.
    """
    if not by_bytes:
        return runs_of(batch.row_lengths)
    texts = zip(batch.texts, batch.text_pairs or [""] * len(batch.texts), strict=True)
    about = [(len(text.encode()) + len(pair.encode())) // TOKEN_BYTES for text, pair in texts]
    return runs_of(batch.row_lengths, [min(each, entry.manifest.max_length) for each in about])


def _environment(run: Run) -> Environment:
    if run.options.url is None and run.image is None:
        return read_environment(find_triton(), run.server_version)
    environment = read_environment(None, run.server_version)
    image = None if run.image is None else f"{run.options.image} ({run.image.id})"
    return environment.model_copy(update={"op_library": None, "remote": run.options.url, "image": image})


def _settings(options: ProfileOptions, plans: Sequence[Plan]) -> Settings:
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
        latency=_LATENCY_METHOD if options.url is None else _REMOTE_LATENCY_METHOD,
    )
