"""What follows from what was measured: savings, expectations, trades."""

from typing import Literal, get_args

from sparse_serve.report.measured import Count, Record, Variant

Baseline = Literal["padded_eager", "padded_fused", "packed_dense"]
Quantity = Literal["latency_ms", "memory_bytes", "total_memory_bytes"]
BASELINES: tuple[Baseline, ...] = get_args(Baseline)
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)


class Expected(Record):
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


class Noise(Record):
    """How far the model lay from itself, of a second set of fresh servers, as a share; over all lengths."""

    model: str
    quantity: Quantity
    concurrency: int | None
    request_rate: float | None
    share: float


class Change(Record):
    """A share that is saved, negative where it is a cost, and its 95 % interval over servers.

    `is_noise` where the interval has 0 in it or is not known, or the share is no greater than the noise of
    this run.
    """

    saved: float
    low: float | None
    high: float | None
    is_noise: bool


class Saving(Record):
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


class Step(Record):
    """What one step saves, in the quantity's unit, and its 95 % interval; negative where it loses."""

    saved: float
    low: float | None
    high: float | None
    is_noise: bool


class Split(Record):
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


class Growth(Record):
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


class TradePoint(Record):
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


class Pick(Record):
    """The model that was picked within budgets, None where none fits, and the commands that give it."""

    memory_budget: Count | None
    latency_budget_ms: float | None
    min_throughput: float | None
    model: str | None
    reason: str
    export: str | None
    serve: str | None
