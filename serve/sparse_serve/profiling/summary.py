"""Readings as records of the report."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sparse_serve.profiling.evaluation import Evaluation, measure_quality
from sparse_serve.profiling.load import Answer
from sparse_serve.profiling.measure import PERCENTILE_METHOD, LatencyReading
from sparse_serve.profiling.memory import MemoryReading
from sparse_serve.profiling.report import (
    Axes,
    Breakdown,
    Inputs,
    Latency,
    Measurement,
    Memory,
    Quality,
    Served,
    Sparsity,
)
from sparse_serve.profiling.subjects import ServedSubject
from sparse_serve.profiling.workload import Batch, Workload
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
    )


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
        sparsity=sparsity(served.load, workload) if served.subject.variant == "model" else None,
    )


def _latency(reading: LatencyReading) -> Latency:
    values = np.array([timing.total_ns / 1e6 for timing in reading.timings])
    p50, p90, p95, p99 = np.percentile(values, (50, 90, 95, 99), method=PERCENTILE_METHOD).tolist()
    return Latency(mean=float(values.mean()), p50=p50, p90=p90, p95=p95, p99=p99)


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
    tokens = np.array([batch.row_lengths for batch in workload.batches]).reshape(-1, 1)
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
        tasks=workload.task_shares,
    )
