"""Figures over several fresh servers: their mean, and an interval by bootstrap over the servers.

A server is the unit that repeats: requests of one server share its memory layout and what else ran meanwhile,
so that an interval within one server is too narrow. Servers of one round ran side by side; they are compared
with each other, round by round, and the rounds are what is drawn anew.

Few servers say little of how far others may lie: percentiles of a bootstrap over three hold the true mean 75
times of 100. Here the bootstrap gives the standard error, which is too small by √((n − 1) / n) and set right,
and Student's t says how many of them an interval reaches to either side. It holds the mean 95 times of 100,
of two servers too (T. Hesterberg, What Teachers Should Know About the Bootstrap, 2015, sections 4 and 5).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

_RESAMPLES = 10_000
# The 97.5 % quantile of the normal distribution, and of Student's t with 1, 2, 3 … degrees of freedom.
NORMAL = 1.960
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)

Floats = npt.NDArray[np.float64]
Compare = Callable[[Any, Any], Any]
Bounds = tuple[float, float] | tuple[None, None]


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
    value, is_ratio = float(values.mean()), bool((values > 0).all())
    error = _error(_means(values), len(values), is_ratio=is_ratio)
    low, high = _interval(value, error, len(values) - 1, is_ratio=is_ratio)
    return Estimate(value=value, low=low, high=high, servers=tuple(values.tolist()))


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

    None where `before` is 0. `servers` has each later server's distance from the mean before. The two runs
    vary each by itself: their errors add up, and the fewer servers say how far an interval reaches, so that
    it holds the truth at least 95 times of 100, however differently the runs vary.
    """
    old, new = np.array(before, np.float64), np.array(after, np.float64)
    start, value = float(old.mean()), float(new.mean())
    if start <= 0:
        return None
    is_ratio = bool((old > 0).all() and (new > 0).all())
    error = math.hypot(*(_error(_means(each), len(each), is_ratio=is_ratio) for each in (old, new)))
    freedom = min(len(old), len(new)) - 1
    low, high = _interval(value / start, error if is_ratio else error / start, freedom, is_ratio=is_ratio)
    servers = tuple((new / start).tolist())
    return _shifted(Estimate(value=value / start, low=low, high=high, servers=servers), -1)


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
    value = float(compare(a.mean(), b.mean()))
    error = _error(compare(_means(a), _means(b)), len(a), is_ratio=is_ratio)
    low, high = _interval(value, error, len(a) - 1, is_ratio=is_ratio)
    return Estimate(value=value, low=low, high=high, servers=tuple(compare(a, b).tolist()))


def _shifted(found: Estimate, by: float) -> Estimate:
    low, high = (None if bound is None else bound + by for bound in (found.low, found.high))
    servers = tuple(each + by for each in found.servers)
    return Estimate(value=found.value + by, low=low, high=high, servers=servers)


def _means(values: Floats) -> Floats:
    """Return `(resamples,)` means of servers drawn with replacement, the same places each time."""
    return _weights(len(values)) @ values


@cache
def _weights(number: int) -> Floats:
    """Return `(resamples, number)` shares of a mean that each server has where they are drawn anew."""
    return np.random.default_rng(0).multinomial(number, [1 / number] * number, _RESAMPLES) / number


def _error(means: Floats, number: int, *, is_ratio: bool) -> float:
    """Return the standard error that means over so many servers, drawn anew, give; 0 of a single one.

    Of what cannot be below 0, `is_ratio`, that of its logarithm.
    """
    found = np.log(means) if is_ratio else means
    return float(found.std()) * math.sqrt(number / (number - 1)) if number > 1 else 0.0


def _interval(value: float, error: float, freedom: int, *, is_ratio: bool) -> Bounds:
    """Return the interval around a value of this error, None without a degree of freedom."""
    if freedom < 1:
        return None, None
    reach = _student(freedom) * error
    if is_ratio:
        return value * math.exp(-reach), value * math.exp(reach)
    return value - reach, value + reach


def _student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t; beyond those that are known, by the inverse of `freedom`."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    return NORMAL + (_STUDENT[-1] - NORMAL) * len(_STUDENT) / freedom
