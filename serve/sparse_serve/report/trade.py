"""The trade between quality, memory and latency: which models are dominated, and which one fits a budget."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparse_serve.report.concluded import Noise, Pick, Quantity, TradePoint
from sparse_serve.report.document import Inputs, Served
from sparse_serve.report.estimates import NORMAL
from sparse_serve.report.measured import Load, Measurement, Quality, Sparsity, Variant
from sparse_serve.report.savings import limits

_NEARLY_1 = 1 - 1e-9
# Metrics that are correlations; others are shares of rows, or much like one.
_CORRELATIONS = ("pearson", "spearman", "matthews")


@dataclass(frozen=True)
class Budget:
    """What a service may take at the longest length; None where it does not matter.

    Bytes of all server processes at their peak and ms of p50 latency at the lowest load, and texts a second
    at the best of all loads.
    """

    memory: int | None = None
    latency_ms: float | None = None
    min_throughput: float | None = None

    @property
    def is_set(self) -> bool:
        """Whether there is any budget."""
        return (self.memory, self.latency_ms, self.min_throughput) != (None, None, None)


def trade_points(
    measurements: Sequence[Measurement],
    served: Sequence[Served],
    quality: Sequence[Quality],
    lightest: Load,
    inputs: Sequence[Inputs],
) -> list[TradePoint]:
    """Return a point for each model at the longest length of its inputs, whether its quality is known or not.

    There is none for a model that was not measured there: at shorter ones it would stand for less than the
    others do. Where its tokenizer is in the server and was measured, the point is of both, as they are
    deployed.
    """
    records = {each.model: each for each in served}
    longest: dict[str, int] = {}
    for each in inputs:
        longest[each.model] = max(each.length, longest.get(each.model, 0))
    variants: dict[str, Variant] = {
        each.model: "text"
        for each in measurements
        if each.variant == "text" and not records[each.model].takes_text
    }
    at_longest = [each for each in measurements if each.length == longest[each.model]]
    deployed = [each for each in at_longest if each.variant == variants.get(each.model, "model")]
    of_models = {each.model: each for each in deployed if each.load == lightest}
    metrics = {
        each.model: (each.metric, each.metrics[each.metric]) for each in quality if each.variant == "model"
    }
    throughputs = {
        model: max(each.texts_per_second.value for each in deployed if each.model == model)
        for model in of_models
    }
    sparsities = {each.model: each.sparsity for each in at_longest if each.sparsity is not None}
    return [
        _point(measurement, records[model], metrics.get(model), throughputs[model], sparsities.get(model))
        for model, measurement in of_models.items()
    ]


def trade(
    points: Sequence[TradePoint],
    served: Sequence[Served],
    quality: Sequence[Quality],
    found: Sequence[Noise],
    lightest: Load,
) -> list[TradePoint]:
    """Return the points that can be held against another, and which others dominate each.

    That is where both answer the same task, and were judged by the same metric on the same rows: without that
    nobody knows what a saving costs. One dominates another if it is no worse in quality, latency and memory,
    and better in one of them: in latency and memory beyond the noise, in quality beyond what so many rows can
    tell. Where the noise is not known, less latency or memory is no worse, but not told to be better.
    Throughput is no part of it; a budget asks for it.
    """
    tasks = {each.model: each.task for each in served}
    judged = {
        each.model: (tasks[each.model], each.metric, each.file, each.rows)
        for each in quality
        if each.variant == "model"
    }
    noise = limits(found)

    def share(one: TradePoint, other: TradePoint, quantity: Quantity) -> float | None:
        first, second = (noise.get((each.model, quantity, lightest)) for each in (one, other))
        return None if first is None or second is None else max(first, second)

    def dominates(one: TradePoint, other: TradePoint, rows: int) -> bool:
        shares = share(one, other, "latency_ms"), share(one, other, "total_memory_bytes")
        return _dominates(one, other, shares, rows)

    compared = []
    for point in points:
        others = [
            other
            for other in points
            if other is not point and point.model in judged and judged[point.model] == judged.get(other.model)
        ]
        if others:
            rows = judged[point.model][-1]
            worse = tuple(other.model for other in others if dominates(other, point, rows))
            compared.append(point.model_copy(update={"dominated_by": worse}))
    return compared


def _point(
    measurement: Measurement,
    served: Served,
    metric: tuple[str, float] | None,
    throughput: float,
    sparsity: Sparsity | None,
) -> TradePoint:
    memory = measurement.memory_bytes
    return TradePoint(
        model=measurement.model,
        dtype=served.dtype,
        lambd=served.lambd,
        rho=sum(sparsity.rho) / len(sparsity.rho) if sparsity else None,
        length=measurement.length,
        latency_ms=measurement.latency_ms.p50.value,
        total_memory=None if memory is None else round(memory.total.value),
        texts_per_second=throughput,
        metric=metric[0] if metric else None,
        quality=metric[1] if metric else None,
        dominated_by=(),
    )


def _dominates(
    one: TradePoint, other: TradePoint, shares: tuple[float | None, float | None], rows: int
) -> bool:
    """Tell whether one is no worse than the other in anything, and better in something."""
    compared = [
        _compare(one.latency_ms, other.latency_ms, shares[0]),
        _compare(one.total_memory, other.total_memory, shares[1]),
        _compare_quality(one, other, rows),
    ]
    return max(compared) <= 0 and min(compared) < 0


def _compare(one: float | None, other: float | None, share: float | None) -> int:
    """Return −1, 0 or 1 where one number is less than the other, alike or greater, or known of but one.

    Without a share that is noise nothing is told to be less.
    """
    if one is None or other is None:
        return 0 if one is other else 1
    if share is None:
        return 0 if one <= other else 1
    if abs(one - other) <= share * abs(other):
        return 0
    return -1 if one < other else 1


def _compare_quality(one: TradePoint, other: TradePoint, rows: int) -> int:
    """Return −1 where one is better by more than rows can tell, 1 where it is worse or unknown, else 0."""
    if one.quality is None or other.quality is None or one.quality < other.quality:
        return 1
    is_share = one.metric not in _CORRELATIONS
    least = (_least_share if is_share else _least_correlation)(one.quality, other.quality, rows)
    return -1 if least > 0 else 0


def _least_share(one: float, other: float, rows: int) -> float:
    """Return the lower end of the 95 % interval of the difference of two shares of so many rows.

    R. Newcombe's, of their Wilson intervals (Statistics in Medicine 17, 1998, method 10).
    """
    return (one - other) - math.hypot(one - _wilson(one, rows)[0], _wilson(other, rows)[1] - other)


def _wilson(share: float, rows: int) -> tuple[float, float]:
    """Return E. Wilson's 95 % interval of a share of rows."""
    middle = (share + NORMAL**2 / (2 * rows)) / (1 + NORMAL**2 / rows)
    half = math.sqrt(share * (1 - share) / rows + (NORMAL / (2 * rows)) ** 2) / (1 + NORMAL**2 / rows)
    return middle - NORMAL * half, middle + NORMAL * half


def _least_correlation(one: float, other: float, rows: int) -> float:
    """Return the lower end of the 95 % interval of the difference of two correlations, by R. Fisher's z."""
    if rows < 4:
        return 0.0
    first, second = (math.atanh(min(max(each, -_NEARLY_1), _NEARLY_1)) for each in (one, other))
    return first - second - NORMAL * math.sqrt(2 / (rows - 3))


def pick(points: Sequence[TradePoint], served: Sequence[Served], budget: Budget, repository: Path) -> Pick:
    """Return the model of the best quality within the budgets; of like ones the fastest, then the smallest.

    Where the quality of one of them is unknown, the fastest is picked; of models of several tasks none.
    """
    if len({each.task for each in served}) > 1:
        return _picked(budget, "models of different tasks do not stand in for each other, and none is picked")
    fitting = [point for point in points if _fits(point, budget)]
    if not points:
        return _picked(budget, "no model was measured at the longest length")
    if not fitting:
        return _picked(budget, "no model that was measured is within the budgets")
    is_judged = all(point.quality is not None for point in fitting)
    best = min(
        fitting,
        key=lambda point: (
            -(point.quality or 0.0) if is_judged else 0.0,
            point.latency_ms,
            point.total_memory or 0,
        ),
    )
    why = "the fastest"
    if is_judged:
        why = f"the best {best.metric}, {best.quality:.4f},"
    reason = f"{why} of {len(fitting)} within the budgets, out of {len(points)}, at {best.length} tokens"
    record = next(each for each in served if each.model == best.model)
    return _picked(budget, reason, best.model, record.command or None, f"sparse-serve serve {repository}")


def _fits(point: TradePoint, budget: Budget) -> bool:
    memory = budget.memory is None or (point.total_memory is not None and point.total_memory <= budget.memory)
    latency = budget.latency_ms is None or point.latency_ms <= budget.latency_ms
    return memory and latency and point.texts_per_second >= (budget.min_throughput or 0.0)


def _picked(
    budget: Budget,
    reason: str,
    model: str | None = None,
    export: str | None = None,
    serve: str | None = None,
) -> Pick:
    return Pick(
        memory_budget=budget.memory,
        latency_budget_ms=budget.latency_ms,
        min_throughput=budget.min_throughput,
        model=model,
        reason=reason,
        export=export,
        serve=serve,
    )
