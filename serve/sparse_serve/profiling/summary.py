"""Readings as records of the report."""

import numpy as np

from sparse_serve.metrics import headline
from sparse_serve.profiling.evaluation import Evaluation, measure_quality
from sparse_serve.profiling.measure import LatencyReading, percentile
from sparse_serve.profiling.memory import MemoryReading
from sparse_serve.profiling.report import (
    Breakdown,
    Inputs,
    Latency,
    Measurement,
    Memory,
    Quality,
    Sparsity,
)
from sparse_serve.profiling.subjects import ServedSubject
from sparse_serve.profiling.workload import Workload


def measurement(
    served: ServedSubject,
    workload: Workload,
    concurrency: int,
    memory: MemoryReading,
    reading: LatencyReading,
) -> Measurement:
    """Return what was measured of one variant at one length and concurrency.

    Raises:
        ServerError: the server, asked for the sparsity of its answers, is gone.
    """
    batch = workload.batches[0]
    rows, tokens = len(batch.texts), sum(batch.row_lengths)
    return Measurement(
        model=served.subject.entry.name,
        variant=served.subject.variant,
        served_as=served.subject.served_as,
        length=workload.length,
        batch=rows,
        concurrency=concurrency,
        tokens_per_request=tokens,
        requests=len(reading.timings),
        windows=reading.trials,
        stable=reading.stable,
        spread=reading.spread,
        texts_per_second=rows * reading.requests_per_second,
        tokens_per_second=tokens * reading.requests_per_second,
        latency_ms=_latency(reading),
        client_cores=reading.client_cores,
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


def quality(served: ServedSubject, evaluation: Evaluation) -> Quality:
    """Measure the quality of one variant on labelled texts.

    Raises:
        ServerError: the server refused a request, or is gone.
    """
    return Quality(
        model=served.subject.entry.name,
        variant=served.subject.variant,
        file=str(evaluation.path),
        rows=len(evaluation.targets),
        metric=headline(evaluation.problem_type),
        metrics=measure_quality(served.load, evaluation),
    )


def inputs(model: str, workload: Workload) -> Inputs:
    """Return what the requests of a workload are like."""
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
