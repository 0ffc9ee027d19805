"""`report.csv`: a row for each measurement, perf_analyzer's columns first."""

import csv
import io
from collections.abc import Iterator

from sparse_serve.report.document import Report
from sparse_serve.report.estimates import Estimate
from sparse_serve.report.measured import GpuMemory, GpuUse, Measurement

# The header of perf_analyzer's CSV; times in µs.
PERF_ANALYZER_COLUMNS = (
    "Concurrency",
    "Inferences/Second",
    "Client Send",
    "Network+Server Send/Recv",
    "Server Queue",
    "Server Compute Input",
    "Server Compute Infer",
    "Server Compute Output",
    "Client Recv",
    "p50 latency",
    "p90 latency",
    "p95 latency",
    "p99 latency",
)
OWN_COLUMNS = (
    "model",
    "variant",
    "length",
    "batch",
    "request_rate",
    "tokens_per_request",
    "texts_per_second",
    "texts_per_second_low",
    "texts_per_second_high",
    "tokens_per_second",
    "mean_latency_ms",
    "p50_latency_ms_low",
    "p50_latency_ms_high",
    "servers",
    "requests",
    "windows",
    "stable",
    "spread",
    "client_cores",
    "late_share",
    "peak_memory_bytes",
    "peak_memory_bytes_low",
    "peak_memory_bytes_high",
    "idle_memory_bytes",
    "total_memory_bytes",
    "core_seconds_per_1000_texts",
    "mebibyte_seconds_per_1000_texts",
    "joules_per_1000_texts",
    "gpu_utilisation",
    "gpu_sm_clock_mhz",
    "gpu_power_watts",
    "gpu_sm_clock_low_mhz",
    "gpu_sm_clock_high_mhz",
    "gpu_clock_limits",
    "gpu_memory_held_bytes",
    "gpu_memory_taken_bytes",
    "gpu_arena_bytes",
    "rho",
    "rho_per_layer",
    "rows_on",
    "rows_on_per_layer",
    "rows_on_count_per_layer",
    "columns_on",
    "columns_on_per_layer",
    "columns_on_count_per_layer",
    "tasks",
)


def to_csv(report: Report) -> str:
    """Return the measurements as CSV: perf_analyzer's columns (µs), then ours, then the task metrics."""
    names = report.metric_names()
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow((*PERF_ANALYZER_COLUMNS, *OWN_COLUMNS, *names))
    found = {(quality.model, quality.variant): quality.metrics for quality in report.quality}
    for measurement in report.measurements:
        metrics = found.get((measurement.model, measurement.variant), {})
        quality = [f"{metrics[name]:.5f}" if name in metrics else "" for name in names]
        shares = report.task_shares(measurement.model, measurement.length)
        tasks = " ".join(f"{name}={share:.5f}" for name, share in shares.items())
        writer.writerow((*_perf_analyzer_row(measurement), *_own_row(measurement), tasks, *quality))
    return stream.getvalue()


def _perf_analyzer_row(measurement: Measurement) -> Iterator[object]:
    yield _or_empty(measurement.concurrency)
    yield f"{measurement.texts_per_second.value:.3f}"
    parts = measurement.breakdown_us
    if parts is None:
        yield from [""] * 7
    else:
        yield from (
            round(part)
            for part in (
                parts.client_send,
                parts.network,
                parts.server_queue,
                parts.server_compute_input,
                parts.server_compute_infer,
                parts.server_compute_output,
                parts.client_receive,
            )
        )
    latency = measurement.latency_ms
    for each in (latency.p50, latency.p90, latency.p95, latency.p99):
        yield "" if each is None else round(1000 * each.value)


def _own_row(measurement: Measurement) -> Iterator[object]:
    yield from (measurement.model, measurement.variant, measurement.length, measurement.batch)
    yield _or_empty(measurement.request_rate, "g")
    yield f"{measurement.tokens_per_request:g}"
    yield from _with_bounds(measurement.texts_per_second, ".3f")
    yield f"{measurement.tokens_per_second:.1f}"
    yield f"{measurement.latency_ms.mean.value:.3f}"
    yield from _bounds(measurement.latency_ms.p50, ".3f")
    yield len(measurement.rounds)
    yield from (measurement.requests, measurement.windows, str(measurement.stable).lower())
    yield f"{measurement.spread:.4f}"
    yield f"{measurement.client_cores:.3f}"
    yield _or_empty(measurement.late_share, ".4f")
    memory = measurement.memory_bytes
    if memory is None:
        yield from [""] * 5
    else:
        yield from _with_bounds(memory.above_idle, ".0f")
        yield from (memory.idle, round(memory.total.value))
    cost, gpu = measurement.cost, measurement.gpu
    for number in (cost.core_seconds, cost.mebibyte_seconds, cost.joules):
        yield _or_empty(number, ".3f")
    yield from _gpu_use(gpu) if gpu else [""] * 6
    yield from _gpu_memory(memory.gpu) if memory and memory.gpu else [""] * 3
    sparsity = measurement.sparsity
    axes = sparsity.axes if sparsity else None
    yield from _shares(sparsity.rho if sparsity else ())
    yield from _shares(axes.rows_on if axes else ())
    yield _values(axes.rows_on_count if axes else ())
    yield from _shares(axes.columns_on if axes else ())
    yield _values(axes.columns_on_count if axes else ())


def _gpu_use(gpu: GpuUse) -> Iterator[str]:
    clocks = (gpu.sm_clock_low_mhz, gpu.sm_clock_high_mhz)
    for number in (gpu.utilisation, gpu.sm_clock_mhz, gpu.power_watts, *clocks):
        yield _or_empty(number, ".3f")
    yield ", ".join(gpu.clock_limits)


def _gpu_memory(gpu: GpuMemory) -> Iterator[str]:
    for figure in (gpu.held, gpu.taken, gpu.arena):
        yield _or_empty(None if figure is None else figure.value, ".0f")


def _or_empty(value: float | None, form: str = "") -> str:
    return "" if value is None else format(value, form)


def _with_bounds(estimate: Estimate, form: str) -> Iterator[str]:
    yield format(estimate.value, form)
    yield from _bounds(estimate, form)


def _bounds(estimate: Estimate, form: str) -> Iterator[str]:
    yield _or_empty(estimate.low, form)
    yield _or_empty(estimate.high, form)


def _shares(by_layer: tuple[float, ...]) -> Iterator[str]:
    """Yield the mean over layers, and the layers."""
    yield f"{sum(by_layer) / len(by_layer):.5f}" if by_layer else ""
    yield _values(by_layer)


def _values(by_layer: tuple[float, ...]) -> str:
    return " ".join(f"{value:.5f}" for value in by_layer)
