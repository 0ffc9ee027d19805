"""What the measurements say together: noise, savings and their split."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from sparse_serve.report.concluded import BASELINES, QUANTITIES, Change, Noise, Quantity, Saving, Split, Step
from sparse_serve.report.document import Served
from sparse_serve.report.estimates import Estimate, estimate_difference, estimate_ratio
from sparse_serve.report.measured import Load, Measurement, Variant

_SPLIT_QUANTITIES: tuple[Quantity, ...] = ("memory_bytes", "latency_ms")


def by_round(measurement: Measurement, quantity: Quantity) -> dict[int, float]:
    """Return each server's figure by its round; empty where it was not measured."""
    if quantity == "latency_ms":
        return dict(zip(measurement.rounds, measurement.latency_ms.p50.servers, strict=True))
    memory = measurement.memory_bytes
    if memory is None:
        return {}
    found = memory.above_idle if quantity == "memory_bytes" else memory.total
    return dict(zip(memory.rounds, found.servers, strict=True))


def noise(measurements: Sequence[Measurement]) -> Iterator[Noise]:
    """Compare the model with itself, measured again: the farthest that it lies apart in any round, by load.

    Of rounds, not of their mean: where servers happen to agree on average, they need not next time.
    """
    found: dict[tuple[str, Quantity, Load], list[float]] = {}
    for again, quantity in product(_of(measurements, "control"), QUANTITIES):
        first = _same_point(measurements, again, "model")
        if first is None:
            continue
        ratio = estimate_ratio(by_round(again, quantity), by_round(first, quantity))
        if ratio is not None and len(ratio.servers) > 1:
            key = (again.model, quantity, again.load)
            found.setdefault(key, []).append(max(map(abs, ratio.servers)))
    for (model, quantity, (concurrency, rate)), shares in found.items():
        yield Noise(
            model=model, quantity=quantity, concurrency=concurrency, request_rate=rate, share=max(shares)
        )


Limits = Mapping[tuple[str, Quantity, Load], float]


def limits(found: Sequence[Noise]) -> Limits:
    """Return the noise by model, quantity and load."""
    return {(each.model, each.quantity, (each.concurrency, each.request_rate)): each.share for each in found}


def savings(measurements: Sequence[Measurement], found: Limits) -> Iterator[Saving]:
    """Compare each measurement of `model` with the dense baselines measured at the same point."""
    for ours, baseline in product(_of(measurements, "model"), BASELINES):
        theirs = _same_point(measurements, ours, baseline)
        latency = None if theirs is None else change(ours, theirs, "latency_ms", found)
        if theirs is not None and latency is not None:
            yield Saving(
                model=ours.model,
                length=ours.length,
                batch=ours.batch,
                concurrency=ours.concurrency,
                request_rate=ours.request_rate,
                baseline=baseline,
                latency=latency,
                memory=change(ours, theirs, "memory_bytes", found),
                total_memory=change(ours, theirs, "total_memory_bytes", found),
            )


def change(ours: Measurement, theirs: Measurement, quantity: Quantity, found: Limits) -> Change | None:
    """Return what is saved of a quantity, as a share of theirs; None where it was not measured of both."""
    ratio = estimate_ratio(by_round(ours, quantity), by_round(theirs, quantity))
    if ratio is None:
        return None
    limit = found.get((ours.model, quantity, ours.load))
    return Change(
        saved=-ratio.value,
        low=None if ratio.high is None else -ratio.high,
        high=None if ratio.low is None else -ratio.low,
        is_noise=_is_noise(ratio) or (limit is not None and abs(ratio.value) <= limit),
    )


def splits(measurements: Sequence[Measurement], served: Sequence[Served], found: Limits) -> Iterator[Split]:
    """Split the way from padded eager attention to `model` into fusion, packing, precision and sparsity."""
    references = {each.model: reference_of(each, served) for each in served}
    for ours, quantity in product(_of(measurements, "model"), _SPLIT_QUANTITIES):
        reference = references.get(ours.model, ours.model)
        eager, fused, packed = (
            _same_point(measurements, ours, baseline, reference) for baseline in BASELINES
        )
        own_packed = _same_point(measurements, ours, "packed_dense")
        steps = {
            "fusion": _step(eager, fused, quantity, found),
            "packing": _step(fused, packed, quantity, found),
            "precision": None if reference == ours.model else _step(packed, own_packed, quantity, found),
            "sparsity": _step(own_packed, ours, quantity, found),
        }
        if any(steps.values()):
            yield Split(
                model=ours.model,
                reference=reference,
                length=ours.length,
                batch=ours.batch,
                concurrency=ours.concurrency,
                request_rate=ours.request_rate,
                quantity=quantity,
                **steps,
            )


def reference_of(model: Served, served: Sequence[Served]) -> str:
    """Return the same model in fp32 where it was measured too, else the model itself."""
    if model.dtype == "fp32":
        return model.model
    kind = (model.task, model.layers, model.normalizer, model.pattern, model.lambd)
    same = (
        each.model
        for each in served
        if each.dtype == "fp32"
        and (each.task, each.layers, each.normalizer, each.pattern, each.lambd) == kind
    )
    return next(same, model.model)


def _step(
    before: Measurement | None, after: Measurement | None, quantity: Quantity, found: Limits
) -> Step | None:
    if before is None or after is None:
        return None
    saved = estimate_difference(by_round(before, quantity), by_round(after, quantity))
    if saved is None:
        return None
    limit = found.get((after.model, quantity, after.load), 0.0)
    values = by_round(before, quantity).values()
    scale = sum(values) / len(values)
    return Step(
        saved=saved.value,
        low=saved.low,
        high=saved.high,
        is_noise=_is_noise(saved) or abs(saved.value) <= limit * scale,
    )


def _is_noise(estimate: Estimate) -> bool:
    """Tell whether servers do not agree on which side of 0 a difference lies, or there is but one."""
    return estimate.low is None or estimate.high is None or estimate.low <= 0 <= estimate.high


def _of(measurements: Sequence[Measurement], variant: Variant) -> list[Measurement]:
    return [measurement for measurement in measurements if measurement.variant == variant]


def _same_point(
    measurements: Sequence[Measurement], ours: Measurement, variant: Variant, model: str | None = None
) -> Measurement | None:
    point = (model or ours.model, ours.length, ours.batch, ours.load)
    for other in _of(measurements, variant):
        if (other.model, other.length, other.batch, other.load) == point:
            return other
    return None
