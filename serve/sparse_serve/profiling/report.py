"""The report of `profile`: its schema, and its files `report.json` and `report.csv`.

`report.schema.json` beside this module is the JSON Schema of `Report`, for readers in other languages.
"""

import csv
import io
import json
from collections.abc import Iterator
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from sparse_serve.environment import Cpu, Gpu, OpLibrary

SCHEMA_NAME = "report.schema.json"

Variant = Literal["model", "packed_dense", "padded_fused", "padded_eager", "portable", "text"]
Baseline = Literal["padded_eager", "padded_fused", "packed_dense"]
Quantity = Literal["memory_bytes", "latency_ms"]

VARIANTS: tuple[Variant, ...] = get_args(Variant)
BASELINES: tuple[Baseline, ...] = get_args(Baseline)
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)

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
    "tokens_per_request",
    "texts_per_second",
    "tokens_per_second",
    "mean_latency_ms",
    "requests",
    "windows",
    "stable",
    "spread",
    "client_cores",
    "peak_memory_bytes",
    "idle_memory_bytes",
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

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Environment(_Record):
    """Where the report was made; None where something is absent or not to be found out."""

    created: datetime
    cpu: Cpu
    gpus: tuple[Gpu, ...] | None
    kernel: str
    transparent_huge_pages: str | None
    triton: str
    onnxruntime: str | None
    op_library: OpLibrary | None
    python: str
    package: str


class Served(_Record):
    """A model as it was exported.

    `task` is the type of what it answers, "several_tasks" of several. `normalizer` makes attention weights:
    "softmax", or "sparsegen" at `lambd`, sparsegen-lin's λ. `pattern` names the pairs that may attend, such
    as "axis+local2" of AAA; None where all may.
    """

    model: str
    version: int = Field(ge=1)
    layers: int = Field(ge=1)
    max_length: int = Field(ge=1)
    dtype: str
    task: str
    normalizer: str
    pattern: str | None
    lambd: float | None


class Settings(_Record):
    """What was asked for, and the settings of the servers.

    `memory` and `latency` say in words how the two were taken. `malloc_mmap_threshold_bytes` is the C
    library's: larger blocks are mapped and given back at once, so that resident memory follows live memory.
    """

    lengths: tuple[int, ...]
    variants: tuple[Variant, ...]
    batch_size: int = Field(ge=1)
    concurrencies: tuple[int, ...]
    measurement_interval_ms: float
    stability_percentage: float
    percentile: int | None
    max_trials: int
    intra_op_threads: int
    memory_arena: bool
    malloc_mmap_threshold_bytes: int
    memory: str
    latency: str


class Inputs(_Record):
    """True lengths in tokens of the rows of a request, and what padding to `length` adds.

    `tasks` has each task's share of the texts, by its name; it is empty on a model of one task.
    """

    model: str
    length: int = Field(ge=1)
    batch: int = Field(ge=1)
    source: str
    requests: int = Field(ge=1)
    row_lengths: tuple[int, ...]
    mean_length: float
    tokens: int = Field(ge=1)
    padding_share: Share
    tasks: dict[str, Share]


class Latency(_Record):
    """Latency of a request in ms."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


class Breakdown(_Record):
    """Where the mean latency goes, in µs.

    `client_send` makes the tensors and `client_receive` decodes the answer; the server's parts are its own
    statistics; `network` is the rest.
    """

    client_send: float
    network: float
    server_queue: float
    server_compute_input: float
    server_compute_infer: float
    server_compute_output: float
    client_receive: float


class Memory(_Record):
    """Resident memory of all server processes, in bytes: at rest, and the peak above that.

    `peak_above_idle` is the median of `rounds`.
    """

    idle: Count
    peak_above_idle: Count
    rounds: tuple[Count, ...]


class Axes(_Record):
    """Per layer: how many of a text's tokens have their row on and how many their column, over texts.

    Shares of the text's true length, and counts; a row or column is on where it was learned to be, or is
    global.
    """

    rows_on: tuple[Share, ...]
    columns_on: tuple[Share, ...]
    rows_on_count: tuple[float, ...]
    columns_on_count: tuple[float, ...]


class Sparsity(_Record):
    """Per layer: ρ, the share of attention weights that are exactly zero, and keys kept per query.

    ρ is Eq. 9 of the AAA paper, over heads, the queries that are computed and the keys of a text's true
    length, averaged over texts. `axes` None where the model's attention has no axes.
    """

    rho: tuple[float, ...]
    keys_kept: tuple[float, ...]
    axes: Axes | None = None


class Measurement(_Record):
    """One variant at one length, batch and concurrency, which is the number of requests in flight.

    `client_cores` is the processor time that the measuring client took beside the server, in cores.
    """

    model: str
    variant: Variant
    served_as: str
    length: int = Field(ge=1)
    batch: int = Field(ge=1)
    concurrency: int = Field(ge=1)
    tokens_per_request: int = Field(ge=1)
    requests: Count
    windows: Count
    stable: bool
    spread: float
    texts_per_second: float
    tokens_per_second: float
    latency_ms: Latency
    client_cores: float
    breakdown_us: Breakdown | None
    memory_bytes: Memory
    sparsity: Sparsity | None = None


class Absent(_Record):
    """A variant that was asked for and could not be measured."""

    model: str
    variant: Variant
    reason: str


class Quality(_Record):
    """Task metrics of one variant, by name, on the labelled rows of `file`; `metric` names the headline."""

    model: str
    variant: Variant
    file: str
    rows: int = Field(ge=1)
    metric: str
    metrics: dict[str, float]


class Saving(_Record):
    """What the model saves against a dense baseline, as a share of the baseline; negative where it costs."""

    model: str
    length: int
    batch: int
    concurrency: int
    baseline: Baseline
    memory: float | None
    latency: float


class Split(_Record):
    """From padded eager attention to this model in three steps, each in the quantity's unit.

    `fusion`: padded eager → padded fused; `padding_removal`: padded fused → packed dense, which also changes
    the kernel and leaves out rows of the last layer that no one reads; `sparsity`: packed dense → model. None
    where a variant is absent; negative where a step loses.
    """

    model: str
    length: int
    batch: int
    concurrency: int
    quantity: Quantity
    fusion: float | None
    padding_removal: float | None
    sparsity: float | None


class Growth(_Record):
    """Growth of eager attention's memory with the squared length, measured and by theory, in bytes.

    Of one request at a time: of several, as many rows run at once as happen to be batched.

    Theory: `live_copies` · batch · heads · 4 bytes per squared token. Measured: c of the parabola
    a + b·L + c·L² through the peaks at `lengths`, the three longest.
    """

    model: str
    batch: int
    heads: int
    live_copies: int
    lengths: tuple[int, ...]
    measured: float
    theory: float
    ratio: float


class Report(_Record):
    """Everything `profile` found out."""

    schema_version: Literal[5] = 5
    environment: Environment
    settings: Settings
    served: tuple[Served, ...]
    inputs: tuple[Inputs, ...]
    measurements: tuple[Measurement, ...]
    absent: tuple[Absent, ...]
    quality: tuple[Quality, ...]
    savings: tuple[Saving, ...]
    splits: tuple[Split, ...]
    growth: tuple[Growth, ...]

    def models(self) -> list[str]:
        """The models measured, in order."""
        return list(dict.fromkeys(measurement.model for measurement in self.measurements))

    @property
    def lightest(self) -> int:
        """The lowest concurrency measured, where most is said and drawn: the service without a queue."""
        return min(self.settings.concurrencies)

    def series(self, model: str, variant: Variant) -> list[Measurement]:
        """One variant's measurements at the lowest concurrency, by length; empty where it is absent."""
        chosen = (m for m in self._of(model, variant) if m.concurrency == self.lightest)
        return sorted(chosen, key=lambda measurement: measurement.length)

    def sweep(self, model: str, variant: Variant, length: int) -> list[Measurement]:
        """One variant's measurements at one length, by concurrency; empty where it is absent."""
        chosen = (m for m in self._of(model, variant) if m.length == length)
        return sorted(chosen, key=lambda measurement: measurement.concurrency)

    def _of(self, model: str, variant: Variant) -> list[Measurement]:
        return [m for m in self.measurements if (m.model, m.variant) == (model, variant)]

    def task_shares(self, model: str, length: int) -> dict[str, float]:
        """Each task's share of the texts that a model was sent at one length; empty where it has one task."""
        found = (inputs.tasks for inputs in self.inputs if (inputs.model, inputs.length) == (model, length))
        return next(found, {})

    def metric_names(self) -> list[str]:
        """The task metrics measured, in order."""
        return list(dict.fromkeys(name for quality in self.quality for name in quality.metrics))

    def to_json(self) -> str:
        """Return the report as indented JSON with a final newline."""
        return self.model_dump_json(indent=2) + "\n"


def report_schema() -> str:
    """Return the JSON Schema of `Report` as it lies in the package."""
    return (files("sparse_serve") / "profiling" / SCHEMA_NAME).read_text(encoding="utf-8")


def generate_schema() -> str:
    """Return the JSON Schema made from `Report` itself."""
    schema = Report.model_json_schema(mode="serialization")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2) + "\n"


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
    yield measurement.concurrency
    yield f"{measurement.texts_per_second:.3f}"
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
    yield from (round(1000 * value) for value in (latency.p50, latency.p90, latency.p95, latency.p99))


def _own_row(measurement: Measurement) -> Iterator[object]:
    yield from (measurement.model, measurement.variant, measurement.length, measurement.batch)
    yield measurement.tokens_per_request
    yield f"{measurement.texts_per_second:.3f}"
    yield f"{measurement.tokens_per_second:.1f}"
    yield f"{measurement.latency_ms.mean:.3f}"
    yield from (measurement.requests, measurement.windows, str(measurement.stable).lower())
    yield f"{measurement.spread:.4f}"
    yield f"{measurement.client_cores:.3f}"
    yield from (measurement.memory_bytes.peak_above_idle, measurement.memory_bytes.idle)
    sparsity = measurement.sparsity
    axes = sparsity.axes if sparsity else None
    yield from _shares(sparsity.rho if sparsity else ())
    yield from _shares(axes.rows_on if axes else ())
    yield _values(axes.rows_on_count if axes else ())
    yield from _shares(axes.columns_on if axes else ())
    yield _values(axes.columns_on_count if axes else ())


def _shares(by_layer: tuple[float, ...]) -> Iterator[str]:
    """Yield the mean over layers, and the layers."""
    yield f"{sum(by_layer) / len(by_layer):.5f}" if by_layer else ""
    yield _values(by_layer)


def _values(by_layer: tuple[float, ...]) -> str:
    return " ".join(f"{value:.5f}" for value in by_layer)


def write_text_reports(report: Report, folder: Path) -> None:
    """Write `report.json` and `report.csv` into an existing folder."""
    (folder / "report.json").write_text(report.to_json(), encoding="utf-8")
    (folder / "report.csv").write_text(to_csv(report), encoding="utf-8")
