"""Readings as records of the report."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sparse_serve.profiling.evaluation import Evaluation, measure_quality
from sparse_serve.profiling.gpu_memory import GpuReading
from sparse_serve.profiling.load import Answer
from sparse_serve.profiling.measure import PERCENTILE_METHOD, Arrivals, LatencyReading
from sparse_serve.profiling.memory import MemoryReading
from sparse_serve.profiling.subjects import ServedSubject, SteadyReading, Subject
from sparse_serve.profiling.windows import ServerTimes
from sparse_serve.profiling.workload import Batch, Workload
from sparse_serve.report.document import Inputs, Served
from sparse_serve.report.estimates import Estimate, estimate, least_samples
from sparse_serve.report.measured import (
    Axes,
    Breakdown,
    Cost,
    GpuMemory,
    GpuUse,
    Latency,
    Measurement,
    Memory,
    ProcessMemory,
    Quality,
    Sparsity,
    Steady,
)
from sparse_serve.repository.entries import Entry
from sparse_serve.repository.measures import AXES, RHO


def served(entry: Entry) -> Served:
    """Return what an entry is, as its manifest has it."""
    manifest = entry.manifest
    return Served(
        model=entry.name,
        version=manifest.version,
        layers=manifest.layers,
        max_length=manifest.max_length,
        dtype=manifest.dtype,
        task=manifest.task.type,
        normalizer=manifest.attention.normalizer,
        pattern=manifest.attention.pattern,
        lambd=manifest.attention.lambd,
        takes_text=entry.takes_text,
        command=manifest.command,
        checkpoint=None,
    )


def measurement(
    subject: Subject,
    workload: Workload,
    arrivals: Arrivals,
    readings: Mapping[int, LatencyReading],
    memory: Mapping[int, MemoryReading],
    held_bytes: float | None = None,
) -> Measurement:
    """Return what was measured of one variant at one length and load, over the rounds' servers.

    Args:
        subject: the variant.
        workload: its requests.
        arrivals: how they came.
        readings: of each round whose server could be measured, one or more.
        memory: likewise, of the servers that memory was measured on; empty where it was not.
        held_bytes: what a server as deployed holds, for the cost of memory.
    """
    rounds = tuple(sorted(readings))
    of_rounds = [readings[each] for each in rounds]
    rows, tokens = len(workload.batches[0].texts), [_tokens_sent(workload, reading) for reading in of_rounds]
    texts_per_second = estimate([rows * reading.requests_per_second for reading in of_rounds])
    return Measurement(
        model=subject.entry.name,
        variant=subject.variant,
        served_as=subject.served_as,
        length=workload.length,
        batch=rows,
        concurrency=arrivals.concurrency,
        request_rate=arrivals.request_rate,
        rounds=rounds,
        tokens_per_request=statistics.fmean(tokens),
        requests=sum(len(reading.timings) for reading in of_rounds),
        distinct_requests=len({timing.batch for reading in of_rounds for timing in reading.timings}),
        windows=sum(reading.trials for reading in of_rounds),
        stable=all(reading.stable for reading in of_rounds),
        spread=max(reading.spread for reading in of_rounds),
        texts_per_second=texts_per_second,
        tokens_per_second=statistics.fmean(
            reading.requests_per_second * each for reading, each in zip(of_rounds, tokens, strict=True)
        ),
        latency_ms=_latency(of_rounds),
        client_cores=statistics.fmean(reading.client_cores for reading in of_rounds),
        late_share=None
        if arrivals.request_rate is None
        else statistics.fmean(reading.late_share for reading in of_rounds),
        breakdown_us=_breakdown(of_rounds),
        memory_bytes=_memory(memory) if memory else None,
        cost=_cost(of_rounds, rows, texts_per_second.value, held_bytes),
        gpu=_gpu_use(of_rounds),
    )


def _tokens_sent(workload: Workload, reading: LatencyReading) -> float:
    """Return the true tokens of the requests that a server was sent, on average."""
    return statistics.fmean(workload.batches[timing.batch].tokens for timing in reading.timings)


def _latency(readings: Sequence[LatencyReading]) -> Latency:
    values = [np.array([timing.total_ns / 1e6 for timing in reading.timings]) for reading in readings]
    fewest = min(len(each) for each in values)

    def percentile(percent: int) -> Estimate:
        return estimate([float(np.percentile(each, percent, method=PERCENTILE_METHOD)) for each in values])

    p90, p95, p99 = (
        percentile(percent) if fewest >= least_samples(percent) else None for percent in (90, 95, 99)
    )
    mean = estimate([float(each.mean()) for each in values])
    return Latency(mean=mean, p50=percentile(50), p90=p90, p95=p95, p99=p99)


def _memory(readings: Mapping[int, MemoryReading]) -> Memory:
    rounds = tuple(sorted(readings))
    of_rounds = [readings[each] for each in rounds]
    return Memory(
        rounds=rounds,
        at_rest=estimate([reading.idle_bytes for reading in of_rounds]),
        above_idle=estimate([reading.peak_above_idle_bytes for reading in of_rounds]),
        total=estimate([reading.total_bytes for reading in of_rounds]),
        gpu=_gpu_memory([reading.gpu for reading in of_rounds if reading.gpu is not None]),
    )


def _gpu_memory(readings: Sequence[GpuReading]) -> GpuMemory | None:
    if not readings:
        return None
    return GpuMemory(
        held=_estimate_all([reading.held for reading in readings]),
        taken=_estimate_all([reading.taken for reading in readings]),
        arena=_estimate_all([reading.arena for reading in readings]),
    )


def _estimate_all(values: Sequence[int | None]) -> Estimate | None:
    """Return an estimate where every server told its value."""
    known = [value for value in values if value is not None]
    return estimate(known) if known and len(known) == len(values) else None


def _times(readings: Sequence[LatencyReading]) -> ServerTimes:
    return sum((reading.server for reading in readings), ServerTimes())


def _cost(
    readings: Sequence[LatencyReading], rows: int, texts_per_second: float, held_bytes: float | None
) -> Cost:
    server = _times(readings)
    texts = rows * server.requests
    return Cost(
        core_seconds=1000 * server.processor_ns / 1e9 / texts if texts and server.processor_ns else None,
        mebibyte_seconds=None if held_bytes is None else 1000 / texts_per_second * held_bytes / 2**20,
        joules=server.energy_mj / texts if texts and server.energy_mj else None,
    )


def _gpu_use(readings: Sequence[LatencyReading]) -> GpuUse | None:
    samples = [window.gpu for reading in readings for window in reading.windows if window.gpu is not None]
    if not samples:
        return None

    def mean(name: str) -> float | None:
        values = [value for sample in samples if (value := getattr(sample, name)) is not None]
        return statistics.fmean(values) if values else None

    clocks = [sample.sm_clock_mhz for sample in samples if sample.sm_clock_mhz is not None]
    return GpuUse(
        utilisation=mean("utilisation"),
        sm_clock_mhz=mean("sm_clock_mhz"),
        power_watts=mean("power_watts"),
        sm_clock_low_mhz=min(clocks, default=None),
        sm_clock_high_mhz=max(clocks, default=None),
        clock_limits=tuple(dict.fromkeys(limit for sample in samples for limit in sample.clock_limits)),
    )


def _breakdown(readings: Sequence[LatencyReading]) -> Breakdown | None:
    """Return the parts of the mean latency, as means over servers; their sum is the mean over servers."""
    if not all(reading.server.requests for reading in readings):
        return None
    parts = [_server_breakdown(reading) for reading in readings]
    means = {name: statistics.fmean(getattr(each, name) for each in parts) for name in Breakdown.model_fields}
    return Breakdown(**means)


def _server_breakdown(reading: LatencyReading) -> Breakdown:
    server, timings = reading.server, reading.timings
    inside = (
        server.queue_ns,
        server.compute_input_ns,
        server.compute_infer_ns,
        server.compute_output_ns,
    )
    queue, compute_input, compute_infer, compute_output = (ns / server.requests / 1000 for ns in inside)
    waited = sum(timing.wait_ns for timing in timings) / len(timings) / 1000
    return Breakdown(
        client_send=sum(timing.late_ns + timing.send_ns for timing in timings) / len(timings) / 1000,
        network=waited - queue - compute_input - compute_infer - compute_output,
        server_queue=queue,
        server_compute_input=compute_input,
        server_compute_infer=compute_infer,
        server_compute_output=compute_output,
        client_receive=sum(timing.receive_ns for timing in timings) / len(timings) / 1000,
    )


def steady(subject: Subject, readings: Mapping[int, SteadyReading]) -> Steady:
    """Return what the servers of a variant hold after their load, over the rounds, one or more."""
    rounds = tuple(sorted(readings))
    of_rounds = [readings[each] for each in rounds]
    return Steady(
        model=subject.entry.name,
        variant=subject.variant,
        rounds=rounds,
        before=estimate([reading.before_bytes for reading in of_rounds]),
        rss=estimate([sum(each.rss_bytes for each in reading.processes) for reading in of_rounds]),
        pss=_estimate_all([reading.pss_bytes for reading in of_rounds]),
        peak=estimate([sum(each.peak_bytes for each in reading.processes) for reading in of_rounds]),
        cgroup_peak=_estimate_all([reading.group_peak_bytes for reading in of_rounds]),
        gpu=_estimate_all([reading.gpu_bytes for reading in of_rounds]),
        processes=tuple(
            ProcessMemory(name=each.name, pss=each.pss_bytes, rss=each.rss_bytes, peak=each.peak_bytes)
            for each in of_rounds[-1].processes
        ),
    )


class Graph(Protocol):
    """A client of a served graph."""

    outputs: Sequence[str]

    def send(self, batch: Batch, outputs: Sequence[str]) -> Answer:
        """Send one batch, ask for `outputs`, and return them."""


def sparsity(graph: Graph, workload: Workload) -> Sparsity:
    """Ask a served graph for its measures `(batch, layers)` of every request, and average over texts.

    Raises:
        ServerError: the server refused a request, or is gone.
    """
    names = [name for name in (RHO, *AXES) if name in graph.outputs]
    answers = [graph.send(batch, names).tensors for batch in workload.batches]
    shares = {name: np.concatenate([answer[name] for answer in answers]) for name in names}
    tokens = np.concatenate([batch.row_lengths for batch in workload.batches])[:, np.newaxis]
    return Sparsity(
        rho=_by_layer(shares[RHO]),
        keys_kept=_by_layer((1.0 - shares[RHO]) * tokens),
        axes=Axes(
            rows_on=_by_layer(shares["rows_on"]),
            columns_on=_by_layer(shares["columns_on"]),
            rows_on_count=_by_layer(shares["rows_on"] * tokens),
            columns_on_count=_by_layer(shares["columns_on"] * tokens),
        )
        if set(AXES).issubset(names)
        else None,
    )


def _by_layer(values: npt.NDArray[Any]) -> tuple[float, ...]:
    return tuple(values.mean(axis=0, dtype=np.float64).tolist())


def quality(served: ServedSubject, evaluation: Evaluation) -> Quality:
    """Measure the quality of one variant on labelled texts.

    Raises:
        ServerError: the server refused a request, or is gone.
    """
    return Quality(
        model=served.subject.entry.name,
        variant=served.subject.variant,
        file=str(evaluation.path),
        rows=evaluation.rows,
        metric=evaluation.task.metrics[0],
        metrics=measure_quality(served.load, evaluation),
    )


def inputs(model: str, workload: Workload) -> Inputs:
    """Return what the requests of a workload are like."""
    lengths = tuple(length for batch in workload.batches for length in batch.row_lengths)
    padded = sum(len(batch.row_lengths) * max(batch.row_lengths) for batch in workload.batches)
    return Inputs(
        model=model,
        length=workload.length,
        batch=len(workload.batches[0].texts),
        source=workload.source,
        requests=len(workload.batches),
        row_lengths=lengths,
        mean_length=sum(lengths) / len(lengths),
        tokens=workload.tokens_per_request,
        padding_share=1 - sum(lengths) / padded,
        tasks=workload.task_shares,
    )
