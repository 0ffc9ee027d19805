"""The trade between quality, memory and latency: which models are dominated, and which one fits a budget."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparse_serve.profiling.report import (
    Load,
    Measurement,
    Noise,
    Pick,
    Quality,
    Quantity,
    Served,
    TradePoint,
)
from sparse_serve.profiling.savings import limits


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
    found: Sequence[Noise],
    lightest: Load,
) -> list[TradePoint]:
    """Return a point for each model, and which others are no worse than it in anything, but better in some.

    Latency, memory and throughput count as different where they are so beyond the noise; quality always.
    """
    of_models = {
        measurement.model: measurement
        for measurement in sorted(measurements, key=lambda each: each.length)
        if measurement.variant == "model" and measurement.load == lightest
    }
    metrics = {
        each.model: (each.metric, each.metrics[each.metric]) for each in quality if each.variant == "model"
    }
    records = {each.model: each for each in served}
    throughputs = {
        model: max(
            each.texts_per_second.value
            for each in measurements
            if (each.model, each.variant, each.length) == (model, "model", measurement.length)
        )
        for model, measurement in of_models.items()
    }
    points = [
        _point(measurement, records[model], metrics.get(model), throughputs[model])
        for model, measurement in of_models.items()
    ]
    noise = limits(found)

    def share(quantity: Quantity) -> float:
        return max((noise.get((each.model, quantity, lightest), 0.0) for each in points), default=0.0)

    shares = {"latency_ms": share("latency_ms"), "total_memory": share("total_memory_bytes")}
    return [
        point.model_copy(
            update={
                "dominated_by": tuple(
                    other.model for other in points if other is not point and _dominates(other, point, shares)
                )
            }
        )
        for point in points
    ]


def _point(
    measurement: Measurement, served: Served, metric: tuple[str, float] | None, throughput: float
) -> TradePoint:
    memory, sparsity = measurement.memory_bytes, measurement.sparsity
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


def _dominates(one: TradePoint, other: TradePoint, shares: dict[str, float]) -> bool:
    """Tell whether one is no worse than the other in anything, and better in something."""
    compared = [
        _compare(one.latency_ms, other.latency_ms, shares["latency_ms"]),
        _compare(one.total_memory, other.total_memory, shares["total_memory"]),
        -_compare(one.quality, other.quality, 0.0),
    ]
    return max(compared) <= 0 and min(compared) < 0


def _compare(one: float | None, other: float | None, share: float) -> int:
    """Return −1, 0 or 1 where one number is less than the other, alike or greater; 0 if unknown."""
    if one is None or other is None or abs(one - other) <= share * abs(other):
        return 0
    return -1 if one < other else 1


def pick(points: Sequence[TradePoint], served: Sequence[Served], budget: Budget, repository: Path) -> Pick:
    """Return the model of the best quality within the budgets; of like ones the fastest, then the smallest.

    Without labelled rows quality is unknown and the fastest is picked.
    """
    fitting = [point for point in points if _fits(point, budget)]
    if not fitting:
        return _picked(budget, "no model that was measured is within the budgets")
    best = min(
        fitting,
        key=lambda point: (-(point.quality or 0.0), point.latency_ms, point.total_memory or 0),
    )
    why = "the fastest"
    if best.quality is not None:
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
