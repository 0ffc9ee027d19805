"""What the parts of a report are called, and its figures by quantity."""

from collections.abc import Sequence

from sparse_serve.report.concluded import Change, Quantity, Saving, Split, Step
from sparse_serve.report.document import Report, Served
from sparse_serve.report.measured import Breakdown, Load, Measurement, Variant

TITLES: dict[Variant, str] = {
    "model": "this model",
    "control": "this model again",
    "packed_dense": "packed dense",
    "padded_fused": "padded dense, fused",
    "padded_eager": "padded dense, eager",
    "padded_sparse": "padded sparse, eager",
    "portable": "portable fallback",
    "text": "text to answer",
}
STEP_TITLES = {
    "fusion": "fusing (eager → fused)",
    "packing": "packing (fused → packed dense)",
    "precision": "precision (fp32 → this type)",
    "sparsity": "sparsity (packed dense → this model)",
}
PART_TITLES = {
    "client_send": "client: wait for a sender, tensors made",
    "network": "wire and protocol",
    "server_queue": "queue",
    "server_compute_input": "inputs read",
    "server_compute_infer": "compute",
    "server_compute_output": "outputs written",
    "client_receive": "client: answer decoded",
}
QUANTITY_TITLES: dict[Quantity, str] = {
    "latency_ms": "p50 latency",
    "memory_bytes": "peak memory above idle",
    "total_memory_bytes": "peak memory in total",
}
MIB = 2**20


def load_title(load: Load) -> str:
    """Return a load in words."""
    concurrency, rate = load
    if rate is not None:
        return f"{rate:g} request{'' if rate == 1 else 's'} a second"
    return f"{concurrency} request{'' if concurrency == 1 else 's'} in flight"


def amount(number: float, quantity: Quantity) -> str:
    """Return a latency or memory with its unit."""
    unit, name = (1, "ms") if quantity == "latency_ms" else (MIB, "MiB")
    return f"{round(number / unit, 1) + 0.0:.1f} {name}"  # no -0.0


def value(measurement: Measurement, quantity: Quantity) -> float | None:
    """Return the p50 latency in ms or the peak memory in bytes; None where it was not measured."""
    if quantity == "latency_ms":
        return measurement.latency_ms.p50.value
    memory = measurement.memory_bytes
    if memory is None:
        return None
    return memory.above_idle.value if quantity == "memory_bytes" else memory.total.value


def change_of(saving: Saving, quantity: Quantity) -> Change | None:
    """Return what a saving says of a quantity."""
    if quantity == "latency_ms":
        return saving.latency
    return saving.memory if quantity == "memory_bytes" else saving.total_memory


def attention_title(served: Served) -> str:
    """Return in words what a model attends to, and with which weights."""
    normalizer = "softmax" if served.lambd is None else f"sparsegen-lin at λ = {served.lambd:g}"
    if served.pattern is not None:
        terms = served.pattern.split("+")
        kind = "AAA: " if "axis" in terms else "attention pattern "
        title = f"{kind}{' + '.join(terms)}, {normalizer} over the allowed pairs"
    elif served.lambd is not None:
        title = f"SSAF: {normalizer}"
    else:
        title = "full attention, softmax"
    return title if served.dtype == "fp32" else f"{title}; {served.dtype}"


def quality_title(report: Report) -> str | None:
    """Return the name of what models are judged by, and of how many labelled rows; None of none."""
    found = next((each for each in report.quality if each.variant == "model"), None)
    return None if found is None else f"{found.metric} of {found.rows} rows"


def step_of(split: Split, name: str) -> Step | None:
    """Return one of a split's steps by its name."""
    step: Step | None = getattr(split, name)
    return step


def time_parts(breakdown: Breakdown) -> dict[str, float]:
    """Return where the mean latency goes in ms, by `PART_TITLES`."""
    return {name: getattr(breakdown, name) / 1000 for name in PART_TITLES}


def servers_title(report: Report) -> str:
    """Return of how many servers, or visits to one, the figures are."""
    least, most = report.servers
    one = "fresh server" if report.environment.remote is None else "visit"
    count = f"{most}" if least == most else f"{least} to {most}"
    return f"{count} {one}{'' if most == 1 else 's'}"


def percent(share: float) -> str:
    """Return a share in percent, with a decimal where it is below one."""
    return f"{share:.0%}" if abs(share) >= 0.0095 else f"{share:.1%}"


def listed(items: Sequence[str]) -> str:
    """Return one or more items as a sentence has them."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
