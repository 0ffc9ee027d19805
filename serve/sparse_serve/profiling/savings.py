"""What the measurements say together: savings, their split, and the growth of eager attention's memory."""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from sparse_serve.profiling.report import (
    BASELINES,
    QUANTITIES,
    Growth,
    Measurement,
    Quantity,
    Saving,
    Split,
    Variant,
)

# ONNX Runtime cannot prove that QKᵀ and its sum with the broadcast mask have the same shape while lengths are
# free, so the Add gets an output of its own: two score tensors are live there. Softmax then works in place,
# and a graph runs one layer at a time.
LIVE_SCORE_COPIES = 2
FLOAT_BYTES = 4


def savings(measurements: Sequence[Measurement]) -> Iterator[Saving]:
    """Compare each measurement of `model` with the dense baselines measured at the same point."""
    for ours, baseline in product(_of(measurements, "model"), BASELINES):
        theirs = _same_point(measurements, ours, baseline)
        if theirs is not None:
            yield Saving(
                model=ours.model,
                length=ours.length,
                batch=ours.batch,
                concurrency=ours.concurrency,
                baseline=baseline,
                memory=_saved(ours.memory_bytes.peak_above_idle, theirs.memory_bytes.peak_above_idle),
                latency=1 - ours.latency_ms.p50 / theirs.latency_ms.p50,
            )


def splits(measurements: Sequence[Measurement]) -> Iterator[Split]:
    """Split the way from padded eager attention to `model` into fusion, padding removal and sparsity."""
    for ours, quantity in product(_of(measurements, "model"), QUANTITIES):
        eager, fused, packed = (_same_point(measurements, ours, baseline) for baseline in BASELINES)
        split = Split(
            model=ours.model,
            length=ours.length,
            batch=ours.batch,
            concurrency=ours.concurrency,
            quantity=quantity,
            fusion=_difference(eager, fused, quantity),
            padding_removal=_difference(fused, packed, quantity),
            sparsity=_difference(packed, ours, quantity),
        )
        if (split.fusion, split.padding_removal, split.sparsity) != (None, None, None):
            yield split


def growth(measurements: Sequence[Measurement], model: str, heads: int | None) -> Iterator[Growth]:
    """Fit the peak memory of padded eager attention at its three longest lengths; nothing if it has fewer.

    At shorter lengths the feed-forward layers set the peak, and theory speaks of the scores, of one request
    at a time. Without the number of `heads` there is no theory.
    """
    if heads is None:
        return
    eager = [m for m in _of(measurements, "padded_eager") if (m.model, m.concurrency) == (model, 1)]
    for batch in dict.fromkeys(measurement.batch for measurement in eager):
        points = sorted((m for m in eager if m.batch == batch), key=lambda m: m.length)[-3:]
        if len(points) < 3:
            continue
        lengths = [point.length for point in points]
        peaks = [point.memory_bytes.peak_above_idle for point in points]
        quadratic = float(np.polyfit(lengths, peaks, deg=2)[0])
        theory = float(LIVE_SCORE_COPIES * batch * heads * FLOAT_BYTES)
        yield Growth(
            model=model,
            batch=batch,
            heads=heads,
            live_copies=LIVE_SCORE_COPIES,
            lengths=tuple(lengths),
            measured=quadratic,
            theory=theory,
            ratio=quadratic / theory,
        )


def _of(measurements: Sequence[Measurement], variant: Variant) -> list[Measurement]:
    return [measurement for measurement in measurements if measurement.variant == variant]


def _same_point(
    measurements: Sequence[Measurement], ours: Measurement, variant: Variant
) -> Measurement | None:
    point = (ours.model, ours.length, ours.batch, ours.concurrency)
    for other in _of(measurements, variant):
        if (other.model, other.length, other.batch, other.concurrency) == point:
            return other
    return None


def _saved(ours: int, theirs: int) -> float | None:
    return 1 - ours / theirs if theirs else None


def _difference(before: Measurement | None, after: Measurement | None, quantity: Quantity) -> float | None:
    if before is None or after is None:
        return None
    return _value(before, quantity) - _value(after, quantity)


def _value(measurement: Measurement, quantity: Quantity) -> float:
    if quantity == "memory_bytes":
        return float(measurement.memory_bytes.peak_above_idle)
    return measurement.latency_ms.p50
