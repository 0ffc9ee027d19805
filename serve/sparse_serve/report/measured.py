"""What was measured: the records of a report that hold figures as they were read."""

from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

from sparse_serve.report.estimates import Estimate

Variant = Literal[
    "model", "control", "packed_dense", "padded_fused", "padded_eager", "padded_sparse", "portable", "text"
]
Stage = Literal["start", "memory", "latency", "steady", "sparsity", "quality", "capacity"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Load = tuple[int | None, float | None]


class Record(BaseModel):
    """A part of a report."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        """Take a file's name that is no UTF-8 as near as text can have it: a report is JSON."""
        return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


class Latency(Record):
    """Latency of a request in ms, each figure over servers.

    A percentile is None where a server has too few requests for it: p99 needs 100 of each, p95 20, p90 10.
    """

    mean: Estimate
    p50: Estimate
    p90: Estimate | None
    p95: Estimate | None
    p99: Estimate | None


class Breakdown(Record):
    """Where the mean latency goes, in µs.

    `client_send` makes the tensors, and at a request rate waits for a free sender before; `client_receive`
    decodes the answer; the server's parts are its own statistics; `network` is the rest of the mean latency,
    so that all add up to it. A backend writes outputs until after the answer has left: where others then take
    the processor, `network` is so much too small, below 0 even. Where the tokenizer is in the graph,
    `server_compute_infer` has it.
    """

    client_send: float
    network: float
    server_queue: float
    server_compute_input: float
    server_compute_infer: float
    server_compute_output: float
    client_receive: float


class GpuMemory(Record):
    """Memory on GPUs in bytes, each over servers; None where the driver or the server does not tell it.

    `held` is by the server's processes after the requests. `taken` is what the devices had free less before
    the server, at most while requests were answered: all that is on them, others' too. `arena` is what ONNX
    Runtime's CUDA arenas had at most, weights included.
    """

    held: Estimate | None
    taken: Estimate | None
    arena: Estimate | None


class Memory(Record):
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


class Axes(Record):
    """Per layer: how many of a text's tokens have their row on and how many their column, over texts.

    Shares of the text's true length, and counts; a row or column is on where it was learned to be, or is
    global.
    """

    rows_on: tuple[Share, ...]
    columns_on: tuple[Share, ...]
    rows_on_count: tuple[float, ...]
    columns_on_count: tuple[float, ...]


class Sparsity(Record):
    """Per layer: ρ, the share of attention weights that are exactly zero, and keys kept per query.

    ρ is Eq. 9 of the AAA paper, over heads, the queries that are computed and the keys of a text's true
    length, averaged over texts. `axes` None where the model's attention has no axes.
    """

    rho: tuple[float, ...]
    keys_kept: tuple[float, ...]
    axes: Axes | None = None


class GpuUse(Record):
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


class Cost(Record):
    """What 1,000 texts cost: processor time of the server in core-seconds, memory held, and energy in joules.

    `mebibyte_seconds` is the server's memory as deployed times the time that 1,000 texts take. `joules` are
    those of the whole processor package and GPU, whoever used them. None where it cannot be read.
    """

    core_seconds: float | None
    mebibyte_seconds: float | None
    joules: float | None


class Measurement(Record):
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


class ProcessMemory(Record):
    """One process of a server, in bytes: proportional, resident, and its peak since it started."""

    name: str
    pss: Count | None
    rss: Count
    peak: Count


class Steady(Record):
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


class Capacity(Record):
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


class Absent(Record):
    """A variant that was asked for and could not be measured."""

    model: str
    variant: Variant
    reason: str


class Failure(Record):
    """What went wrong with one server, which the rest was measured without."""

    model: str
    variant: Variant
    stage: Stage
    round: int
    length: int | None
    concurrency: int | None = None
    request_rate: float | None = None
    reason: str


class Quality(Record):
    """Task metrics of one variant, by name, on the labelled rows of `file`; `metric` names the headline."""

    model: str
    variant: Variant
    file: str
    rows: int = Field(ge=1)
    metric: str
    metrics: dict[str, float]
