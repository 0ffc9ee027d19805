"""The report of `profile`: its schema, and the file `report.json`.

`report.schema.json` beside this module is the JSON Schema of `Report`, for readers in other languages. What
is drawn, written and said comes from this record alone.
"""

import json
from collections.abc import Iterator
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sparse_serve.environment import Cpu, Gpu, OpLibrary
from sparse_serve.errors import DataError, first_fault, in_brief
from sparse_serve.profiling.estimates import Estimate

SCHEMA_NAME = "report.schema.json"
SCHEMA_VERSION: Literal[8] = 8

Variant = Literal["model", "control", "packed_dense", "padded_fused", "padded_eager", "portable", "text"]
Baseline = Literal["padded_eager", "padded_fused", "packed_dense"]
Quantity = Literal["latency_ms", "memory_bytes", "total_memory_bytes"]
Stage = Literal["start", "memory", "latency", "quality", "capacity"]

VARIANTS: tuple[Variant, ...] = get_args(Variant)
BASELINES: tuple[Baseline, ...] = get_args(Baseline)
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Environment(_Record):
    """Where the report was made; None where something is absent or not to be found out.

    `remote` is the address of a running server that was measured, of which nothing else can be seen. `image`
    is what containers were measured of, and its id; what is in it is its own.
    """

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
    remote: str | None = None
    image: str | None = None


class Served(_Record):
    """A model as it was exported, by `command`, and from `checkpoint` for this report where that is not None.

    `task` is the type of what it answers, "several_tasks" of several. `normalizer` makes attention weights:
    "softmax", or "sparsegen" at `lambd`, sparsegen-lin's λ. `pattern` names the pairs that may attend, such
    as "axis+local2" of AAA; None where all may. `takes_text` where the tokenizer is in the graph.
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
    takes_text: bool
    command: str
    checkpoint: str | None


class Settings(_Record):
    """What was asked for, and the settings of the servers.

    `rounds` is how many fresh servers each variant had. `memory` and `latency` say in words how the two were
    taken. `malloc_mmap_threshold_bytes` is the C library's: larger blocks are mapped and given back at once,
    so that resident memory follows live memory. `client_has_own_cores` tells whether the client was kept off
    the servers' cores.
    """

    lengths: tuple[int, ...]
    variants: tuple[Variant, ...]
    batch_size: int = Field(ge=1)
    concurrencies: tuple[int, ...]
    request_rates: tuple[float, ...]
    request_distribution: str
    rounds: int = Field(ge=1)
    measurement_interval_ms: float
    stability_percentage: float
    percentile: int | None
    max_trials: int
    intra_op_threads: int
    client_has_own_cores: bool
    memory_arena: bool
    malloc_mmap_threshold_bytes: int
    memory: str
    latency: str


class Inputs(_Record):
    """True lengths in tokens of the rows of all requests, and what padding to their longest adds.

    `tasks` has each task's share of the texts, by its name; it is empty on a model of one task.
    """

    model: str
    length: int = Field(ge=1)
    batch: int = Field(ge=1)
    source: str
    requests: int = Field(ge=1)
    row_lengths: tuple[int, ...]
    mean_length: float
    tokens: float
    padding_share: Share
    tasks: dict[str, Share]


class Latency(_Record):
    """Latency of a request in ms, each figure over servers.

    A percentile is None where a server has too few requests for it: p99 needs 100 of each, p95 20, p90 10.
    """

    mean: Estimate
    p50: Estimate
    p90: Estimate | None
    p95: Estimate | None
    p99: Estimate | None


class Breakdown(_Record):
    """Where the mean latency goes, in µs.

    `client_send` makes the tensors and `client_receive` decodes the answer; the server's parts are its own
    statistics; `network` is the rest of the mean latency, so that all add up to it. A backend writes outputs
    until after the answer has left: where others then take the processor, `network` is so much too small,
    below 0 even. Where the tokenizer is in the graph, `server_compute_infer` has it.
    """

    client_send: float
    network: float
    server_queue: float
    server_compute_input: float
    server_compute_infer: float
    server_compute_output: float
    client_receive: float


class GpuMemory(_Record):
    """Memory on GPUs in bytes, each over servers; None where the driver or the server does not tell it.

    `held` is by the server's processes after the requests. `taken` is what the devices had free less before
    the server, at most while requests were answered: all that is on them, others' too. `arena` is what ONNX
    Runtime's CUDA arenas had at most, weights included.
    """

    held: Estimate | None
    taken: Estimate | None
    arena: Estimate | None


class Memory(_Record):
    """Resident memory of all server processes in bytes, ONNX Runtime's arena off, each over servers.

    `at_rest` is VmRSS after one tiny request, `total` the peak (VmHWM) during the requests, and `above_idle`
    what lies between; pages that processes share count in each. `rounds` are those that the servers were of.
    `gpu` is None where the model computes on none.
    """

    rounds: tuple[int, ...]
    at_rest: Estimate
    above_idle: Estimate
    total: Estimate
    gpu: GpuMemory | None = None

    @property
    def idle(self) -> int:
        """Bytes at rest."""
        return round(self.at_rest.value)

    @property
    def peak_above_idle(self) -> int:
        """Bytes that requests take at their peak above what is held at rest."""
        return round(self.above_idle.value)


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


class GpuUse(_Record):
    """The GPU while requests ran: busy share, SM clock and power on average; None what it does not tell.

    `sm_clock_low_mhz` and `sm_clock_high_mhz` are the least and the greatest clock seen, alike where clocks
    are locked and nothing lowers them; `clock_limits` what kept them below the highest at any time.
    """

    utilisation: Share | None
    sm_clock_mhz: float | None
    power_watts: float | None
    sm_clock_low_mhz: float | None = None
    sm_clock_high_mhz: float | None = None
    clock_limits: tuple[str, ...] = ()


class Cost(_Record):
    """What 1,000 texts cost: processor time of the server in core-seconds, memory held, and energy in joules.

    `mebibyte_seconds` is the server's memory as deployed times the time that 1,000 texts take. `joules` are
    those of the whole processor package and GPU, whoever used them. None where it cannot be read.
    """

    core_seconds: float | None
    mebibyte_seconds: float | None
    joules: float | None


class Measurement(_Record):
    """One variant at one length, batch and load: requests in flight, or requests that arrive in a second.

    `rounds` are those whose fresh server was measured. `stable` is whether all of them were. `client_cores`
    is the processor time that the measuring client took beside the server, in cores; `late_share` the share
    of an open loop's requests that this client could not send in time. `distinct_requests` of the inputs' are
    among the `requests` that count, whose tokens `tokens_per_request` and `tokens_per_second` are of.
    """

    model: str
    variant: Variant
    served_as: str
    length: int = Field(ge=1)
    batch: int = Field(ge=1)
    concurrency: int | None = Field(default=None, ge=1)
    request_rate: float | None = None
    rounds: tuple[int, ...]
    tokens_per_request: float
    requests: Count
    distinct_requests: Count
    windows: Count
    stable: bool
    spread: float
    texts_per_second: Estimate
    tokens_per_second: float
    latency_ms: Latency
    client_cores: float
    late_share: Share | None = None
    breakdown_us: Breakdown | None
    memory_bytes: Memory | None
    cost: Cost
    gpu: GpuUse | None = None
    sparsity: Sparsity | None = None

    @property
    def load(self) -> "Load":
        """Requests in flight and requests a second, one of them None."""
        return self.concurrency, self.request_rate


Load = tuple[int | None, float | None]


class ProcessMemory(_Record):
    """One process of a server, in bytes: proportional, resident, and its peak since it started."""

    name: str
    pss: Count | None
    rss: Count
    peak: Count


class Steady(_Record):
    """Memory of a server as deployed, arena and all, in bytes: before load, and after all of a round's load.

    `pss` counts pages that the server's processes share once, whoever else on the machine has them, `rss` in
    each process; `peak` adds the processes' own peaks (VmHWM).
    `cgroup_peak` is the most that the kernel charged to the server's own control group, page cache included,
    which is what Kubernetes ends a container on; files that others had read before are not in it. `gpu` is
    memory on the device that is the processes' own.
    """

    model: str
    variant: Variant
    rounds: tuple[int, ...]
    before: Estimate
    rss: Estimate
    pss: Estimate | None
    peak: Estimate
    cgroup_peak: Estimate | None
    gpu: Estimate | None
    processes: tuple[ProcessMemory, ...]


class Expected(_Record):
    """Memory as theory expects it, in bytes; `scores` are those of attention that forms them.

    `weights` lie in the server at rest. `activations` are the buffers that ONNX Runtime holds for the layers
    at the peak, and `scores` what attention adds to them; the peak above idle is expected to be both.
    """

    model: str
    variant: Variant
    length: int
    batch: int
    weights: Count
    activations: Count
    scores: Count


class Capacity(_Record):
    """The longest text and the largest batch whose peak stayed within a limit, found by sending them.

    `total` is the peak of all server processes, in bytes, at what was found; None of both where even the
    smallest did not fit.
    """

    model: str
    variant: Variant
    limit: Count
    longest_text: int | None
    longest_total: Count | None
    batch_length: int
    largest_batch: int | None
    batch_total: Count | None
    is_all: bool


class Absent(_Record):
    """A variant that was asked for and could not be measured."""

    model: str
    variant: Variant
    reason: str


class Failure(_Record):
    """What went wrong with one server, which the rest was measured without."""

    model: str
    variant: Variant
    stage: Stage
    round: int
    length: int | None
    concurrency: int | None = None
    request_rate: float | None = None
    reason: str


class Quality(_Record):
    """Task metrics of one variant, by name, on the labelled rows of `file`; `metric` names the headline."""

    model: str
    variant: Variant
    file: str
    rows: int = Field(ge=1)
    metric: str
    metrics: dict[str, float]


class Noise(_Record):
    """How far the model lay from itself, of a second set of fresh servers, as a share; over all lengths."""

    model: str
    quantity: Quantity
    concurrency: int | None
    request_rate: float | None
    share: float


class Change(_Record):
    """A share that is saved, negative where it is a cost, and its 95 % interval over servers.

    `is_noise` where the interval has 0 in it or is not known, or the share is no greater than the noise of
    this run.
    """

    saved: float
    low: float | None
    high: float | None
    is_noise: bool


class Saving(_Record):
    """What the model saves against a dense baseline at one point, as shares of the baseline."""

    model: str
    length: int
    batch: int
    concurrency: int | None
    request_rate: float | None
    baseline: Baseline
    latency: Change
    memory: Change | None
    total_memory: Change | None


class Step(_Record):
    """What one step saves, in the quantity's unit, and its 95 % interval; negative where it loses."""

    saved: float
    low: float | None
    high: float | None
    is_noise: bool


class Split(_Record):
    """From padded eager attention to this model in steps that add up, each in the quantity's unit.

    `fusion`: padded eager → padded fused; `packing`: padded fused → packed dense, which also changes the
    kernel and leaves out rows of the last layer that no one reads; `precision`: packed dense of `reference`,
    the same model in fp32, → packed dense in this model's type; `sparsity`: packed dense → model. None where
    a variant is absent; `precision` where the model is fp32 or has no fp32 beside it.
    """

    model: str
    reference: str
    length: int
    batch: int
    concurrency: int | None
    request_rate: float | None
    quantity: Quantity
    fusion: Step | None
    packing: Step | None
    precision: Step | None
    sparsity: Step | None


class Growth(_Record):
    """Growth of eager attention's memory with the squared length, measured and by theory, in bytes.

    Of one request at a time: of several, as many rows run at once as happen to be batched.

    Theory: (`live_copies` · heads + 1 mask) · batch · 4 bytes per squared token. Measured: c of the parabola
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


class TradePoint(_Record):
    """One model at the longest length and lowest load: what it costs, and what it is worth.

    `dominated_by` are those that are no worse in anything, and better in something, beyond noise.
    """

    model: str
    dtype: str
    lambd: float | None
    rho: float | None
    length: int
    latency_ms: float
    total_memory: Count | None
    texts_per_second: float
    metric: str | None
    quality: float | None
    dominated_by: tuple[str, ...]


class Pick(_Record):
    """The model that was picked within budgets, None where none fits, and the commands that give it."""

    memory_budget: Count | None
    latency_budget_ms: float | None
    min_throughput: float | None
    model: str | None
    reason: str
    export: str | None
    serve: str | None


class Report(_Record):
    """Everything `profile` found out. `partial` says why it ended early, None where it did not."""

    schema_version: Literal[8] = SCHEMA_VERSION
    partial: str | None
    environment: Environment
    settings: Settings
    served: tuple[Served, ...]
    inputs: tuple[Inputs, ...]
    measurements: tuple[Measurement, ...]
    steady: tuple[Steady, ...]
    expected: tuple[Expected, ...]
    capacity: tuple[Capacity, ...]
    absent: tuple[Absent, ...]
    failures: tuple[Failure, ...]
    quality: tuple[Quality, ...]
    noise: tuple[Noise, ...]
    savings: tuple[Saving, ...]
    splits: tuple[Split, ...]
    growth: tuple[Growth, ...]
    trade: tuple[TradePoint, ...]
    pick: Pick | None

    def models(self) -> list[str]:
        """The models measured, in order."""
        return list(dict.fromkeys(measurement.model for measurement in self.measurements))

    @property
    def lightest(self) -> Load:
        """The lowest load measured, where most is said and drawn: the service without a queue."""
        if self.settings.concurrencies:
            return min(self.settings.concurrencies), None
        return None, min(self.settings.request_rates)

    def loads(self) -> list[Load]:
        """All loads, closed ones first, each kind from the lowest."""
        closed: list[Load] = [(number, None) for number in self.settings.concurrencies]
        return [*closed, *((None, rate) for rate in self.settings.request_rates)]

    def lengths(self) -> list[int]:
        """All lengths measured, ascending."""
        return sorted({measurement.length for measurement in self.measurements})

    def series(self, model: str, variant: Variant) -> list[Measurement]:
        """One variant's measurements at the lowest load, by length; empty where it is absent."""
        chosen = (m for m in self._of(model, variant) if m.load == self.lightest)
        return sorted(chosen, key=lambda measurement: measurement.length)

    def sweep(self, model: str, variant: Variant, length: int, *, is_open: bool = False) -> list[Measurement]:
        """One variant's measurements at one length along the load, requests in flight or a second."""
        loads = self.loads()
        chosen = (
            m
            for m in self._of(model, variant)
            if m.length == length and (m.request_rate is not None) == is_open
        )
        return sorted(chosen, key=lambda measurement: loads.index(measurement.load))

    def at(self, model: str, variant: Variant, length: int, load: Load) -> Measurement | None:
        """The measurement of a variant at a point, None where there is none."""
        return next((m for m in self._of(model, variant) if (m.length, m.load) == (length, load)), None)

    def _of(self, model: str, variant: Variant) -> Iterator[Measurement]:
        return (m for m in self.measurements if (m.model, m.variant) == (model, variant))

    def noise_of(self, model: str, quantity: Quantity, load: Load) -> float | None:
        """The noise of a quantity at a load, as a share; None where the model was not measured again."""
        found = (
            each.share
            for each in self.noise
            if (each.model, each.quantity, each.concurrency, each.request_rate) == (model, quantity, *load)
        )
        return next(found, None)

    def task_shares(self, model: str, length: int) -> dict[str, float]:
        """Each task's share of the texts that a model was sent at a length; empty on a model of one task."""
        found = (inputs.tasks for inputs in self.inputs if (inputs.model, inputs.length) == (model, length))
        return next(found, {})

    def metric_names(self) -> list[str]:
        """The task metrics measured, in order."""
        return list(dict.fromkeys(name for quality in self.quality for name in quality.metrics))

    def to_json(self) -> str:
        """Return the report as indented JSON with a final newline."""
        return self.model_dump_json(indent=2) + "\n"


def read_report(path: Path) -> Report:
    """Read a `report.json` of this schema.

    Raises:
        DataError: the file cannot be read, or is no report of this schema.
    """
    try:
        record: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"report {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"report {path} is no JSON: give the report.json of sparse-serve profile") from error
    version = record.get("schema_version") if isinstance(record, dict) else None
    if version != SCHEMA_VERSION:
        raise DataError(
            f"report {path} has schema version {in_brief(version)}, this package reads {SCHEMA_VERSION}: "
            "make it again with this version of sparse-serve profile"
        )
    try:
        return Report.model_validate(record)
    except ValidationError as error:
        raise DataError(f"report {path} is no report of profile: {first_fault(error)}") from error


def report_schema() -> str:
    """Return the JSON Schema of `Report` as it lies in the package."""
    return (files("sparse_serve") / "profiling" / SCHEMA_NAME).read_text(encoding="utf-8")


def generate_schema() -> str:
    """Return the JSON Schema made from `Report` itself."""
    schema = Report.model_json_schema(mode="serialization")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2) + "\n"
