"""Figures over several fresh servers: their mean, and an interval by bootstrap over the servers.

A server is the unit that repeats: requests of one server share its memory layout and what else ran meanwhile,
so that an interval within one server is too narrow. Servers of one round ran side by side; they are compared
with each other, round by round, and the rounds are what is drawn anew.

Few servers say little of how far others may lie. A bootstrap over three draws its 95 % interval between the
least and the greatest of them, which holds the true mean 75 times of 100: here an interval is widened as
Student's t is wider than the normal distribution, and as the standard deviation of so few is too small, to
hold it 95 times (T. Hesterberg, What Teachers Should Know About the Bootstrap, 2015, section 4).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

LEVEL = 0.95
_RESAMPLES = 2000
_BOUNDS = (100 * (1 - LEVEL) / 2, 100 * (1 + LEVEL) / 2)
# The 97.5 % quantile of the normal distribution, and of Student's t with 1, 2, 3 … degrees of freedom.
_NORMAL = 1.960
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)

Floats = npt.NDArray[np.float64]
Compare = Callable[[Any, Any], Any]


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
    value = float(values.mean())
    means = values[_drawn(len(values))].mean(axis=1)
    bounds = _interval(means, value, len(values), is_ratio=bool((values > 0).all()))
    return Estimate(value=value, low=bounds[0], high=bounds[1], servers=tuple(values.tolist()))


def estimate_ratio(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """Return the ratio of two means less 1, over the rounds that both have; None where there is none.

    `servers` has each round's own ratio, less 1.
    """
    rounds = _rounds(ours, theirs)
    if rounds is None or not (rounds[1] > 0).all():
        return None
    return _shifted(_paired(*rounds, np.divide, is_ratio=bool((rounds[0] > 0).all())), -1)


def estimate_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """Return the difference of two means, over the rounds that both have; None where there is none."""
    rounds = _rounds(ours, theirs)
    return None if rounds is None else _paired(*rounds, np.subtract, is_ratio=False)


def estimate_change(before: Sequence[float], after: Sequence[float]) -> Estimate | None:
    """Return by how much a mean has changed, as a share of `before`: servers of two runs, not of one round.

    None where `before` is 0. `servers` has each later server's distance from the mean before.
    """
    old, new = np.array(before, np.float64), np.array(after, np.float64)
    if not old.mean() or not (old > 0).all():
        return None
    ratios = new[_drawn(len(new))].mean(axis=1) / old[_drawn(len(old), seed=1)].mean(axis=1)
    value = float(new.mean() / old.mean())
    low, high = _interval(ratios, value, min(len(old), len(new)), is_ratio=bool((new > 0).all()))
    return _shifted(Estimate(value=value, low=low, high=high, servers=tuple((new / old.mean()).tolist())), -1)


def least_samples(percent: float) -> int:
    """Return how many requests a percentile needs behind it, so that one at least lies above: 100 for p99."""
    return max(2, round(100 / (100 - percent)))


def _rounds(ours: Mapping[int, float], theirs: Mapping[int, float]) -> tuple[Floats, Floats] | None:
    """Return the figures of the rounds that both have; None where there is none."""
    rounds = sorted(set(ours) & set(theirs))
    if not rounds:
        return None
    return np.array([ours[each] for each in rounds]), np.array([theirs[each] for each in rounds])


def _paired(a: Floats, b: Floats, compare: Compare, *, is_ratio: bool) -> Estimate:
    drawn = _drawn(len(a))
    value = float(compare(a.mean(), b.mean()))
    means = compare(a[drawn].mean(axis=1), b[drawn].mean(axis=1))
    low, high = _interval(means, value, len(a), is_ratio=is_ratio)
    return Estimate(value=value, low=low, high=high, servers=tuple(compare(a, b).tolist()))


def _shifted(found: Estimate, by: float) -> Estimate:
    low, high = (None if bound is None else bound + by for bound in (found.low, found.high))
    servers = tuple(each + by for each in found.servers)
    return Estimate(value=found.value + by, low=low, high=high, servers=servers)


def _drawn(number: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Return `(resamples, number)` places of servers, drawn with replacement; the same each time."""
    return np.random.default_rng(seed).integers(0, number, (_RESAMPLES, number))


def _interval(
    means: Floats, value: float, number: int, *, is_ratio: bool
) -> tuple[float, float] | tuple[None, None]:
    """Return the interval around `value` that means over so many servers, drawn anew, give.

    What cannot be below 0, `is_ratio`, is widened as its logarithm.
    """
    if number < 2:
        return None, None
    wider = _STUDENT[min(number - 1, len(_STUDENT)) - 1] / _NORMAL * math.sqrt(number / (number - 1))
    low, high = np.percentile(means, _BOUNDS).tolist()
    if is_ratio:
        return value * (low / value) ** wider, value * (high / value) ** wider
    return value - wider * (value - low), value + wider * (high - value)
