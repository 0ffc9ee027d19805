"""Figures over several fresh servers: their mean, and an interval by bootstrap over the servers.

A server is the unit that repeats: requests of one server share its memory layout and what else ran meanwhile,
so that an interval within one server is too narrow. Servers of one round ran side by side; they are compared
with each other, round by round, and the rounds are what is drawn anew.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

LEVEL = 0.95
_RESAMPLES = 2000
_BOUNDS = (100 * (1 - LEVEL) / 2, 100 * (1 + LEVEL) / 2)

Floats = npt.NDArray[np.float64]
Compare = Callable[[Floats, Floats], Floats]


class Estimate(BaseModel):
    """A figure of several fresh servers: the mean, its 95 % interval by bootstrap over them, and each one's.

    Of a single server there is no interval: `low` and `high` are None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float
    low: float | None
    high: float | None
    servers: tuple[float, ...]


def estimate(servers: Sequence[float]) -> Estimate:
    """Return the mean of the servers' figures, one or more, and its interval."""
    values = np.array(servers, np.float64)
    bounds = _interval(values[_drawn(len(values))].mean(axis=1)) if len(values) > 1 else (None, None)
    value = float(values.mean())
    return Estimate(value=value, low=bounds[0], high=bounds[1], servers=tuple(values.tolist()))


def estimate_ratio(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """Return the ratio of two means less 1, over the rounds that both have; None where there is none.

    `servers` has each round's own ratio, less 1.
    """
    return _paired(ours, theirs, lambda a, b: a / b - 1, needs_divisor=True)


def estimate_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """Return the difference of two means, over the rounds that both have; None where there is none."""
    return _paired(ours, theirs, lambda a, b: a - b, needs_divisor=False)


def estimate_change(before: Sequence[float], after: Sequence[float]) -> Estimate | None:
    """Return by how much a mean has changed, as a share of `before`: servers of two runs, not of one round.

    None where `before` is 0. `servers` has each later server's distance from the mean before.
    """
    old, new = np.array(before, np.float64), np.array(after, np.float64)
    if not old.mean() or not (old > 0).all():
        return None
    ratio = new[_drawn(len(new))].mean(axis=1) / old[_drawn(len(old), seed=1)].mean(axis=1) - 1
    bounds = _interval(ratio) if len(old) > 1 and len(new) > 1 else (None, None)
    return Estimate(
        value=float(new.mean() / old.mean() - 1),
        low=bounds[0],
        high=bounds[1],
        servers=tuple((new / old.mean() - 1).tolist()),
    )


def least_samples(percent: float) -> int:
    """Return how many requests a percentile needs behind it, so that one at least lies above: 100 for p99."""
    return max(2, round(100 / (100 - percent)))


def _paired(
    ours: Mapping[int, float], theirs: Mapping[int, float], compare: Compare, *, needs_divisor: bool
) -> Estimate | None:
    rounds = sorted(set(ours) & set(theirs))
    if not rounds:
        return None
    a = np.array([ours[each] for each in rounds], np.float64)
    b = np.array([theirs[each] for each in rounds], np.float64)
    if needs_divisor and not (b > 0).all():
        return None
    drawn = _drawn(len(rounds))
    means = compare(a[drawn].mean(axis=1), b[drawn].mean(axis=1))
    bounds = _interval(means) if len(rounds) > 1 else (None, None)
    return Estimate(
        value=float(compare(a.mean(keepdims=True), b.mean(keepdims=True))[0]),
        low=bounds[0],
        high=bounds[1],
        servers=tuple(compare(a, b).tolist()),
    )


def _drawn(number: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Return `(resamples, number)` places of servers, drawn with replacement; the same each time."""
    return np.random.default_rng(seed).integers(0, number, (_RESAMPLES, number))


def _interval(values: Floats) -> tuple[float, float]:
    low, high = np.percentile(values, _BOUNDS).tolist()
    return low, high
