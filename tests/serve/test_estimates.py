"""Intervals over few servers: how often they hold what is true."""

from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pytest

from sparse_serve.report.estimates import (
    Estimate,
    estimate,
    estimate_change,
    estimate_difference,
    estimate_ratio,
    least_samples,
)

Servers = npt.NDArray[np.float64]
TRIALS = 2500


def of_mean(one: Servers, other: Servers) -> Estimate | None:
    return estimate(one.tolist())


def of_ratio(one: Servers, other: Servers) -> Estimate | None:
    return estimate_ratio(dict(enumerate(one.tolist())), dict(enumerate(other.tolist())))


def of_difference(one: Servers, other: Servers) -> Estimate | None:
    return estimate_difference(dict(enumerate(one.tolist())), dict(enumerate(other.tolist())))


def of_change(one: Servers, other: Servers) -> Estimate | None:
    return estimate_change(other.tolist(), one.tolist())


@pytest.mark.parametrize("servers", [2, 3, 5, 12])
@pytest.mark.parametrize(
    ("estimated", "truth"), [(of_mean, 1.2), (of_ratio, 0.2), (of_difference, 0.2), (of_change, 0.2)]
)
def test_intervals_of_few_servers_hold_the_truth_95_times_of_100(
    estimated: Callable[[Servers, Servers], Estimate | None], truth: float, servers: int
) -> None:
    """Of servers that lie 5 % apart, those of a round alike as they share the machine's moment."""
    generator = np.random.default_rng(servers)
    moment = generator.normal(0, 0.03, (TRIALS, servers)) if estimated is not of_change else np.zeros(())
    one, other = (mean + moment + generator.normal(0, 0.05, (TRIALS, servers)) for mean in (1.2, 1.0))
    found = [estimated(*pair) for pair in zip(one, other, strict=True)]
    bounds = np.array([(each.low, each.high) for each in found if each is not None], np.float64)
    held = (bounds[:, 0] <= truth) & (bounds[:, 1] >= truth)
    assert len(held) == TRIALS
    assert 0.94 < held.mean() <= (0.96 if estimated is not of_change else 1)


def test_a_change_is_judged_by_both_runs_where_one_has_more_servers() -> None:
    generator = np.random.default_rng(5)
    few, many = generator.normal(1, 0.05, (TRIALS, 2)), generator.normal(1, 0.02, (TRIALS, 12))
    found = [of_change(*pair) for pair in zip(few, many, strict=True)]
    bounds = np.array([(each.low, each.high) for each in found if each is not None], np.float64)
    assert 0.94 < ((bounds[:, 0] <= 0) & (bounds[:, 1] >= 0)).mean() < 1


def test_an_interval_of_many_servers_is_the_normal_distributions() -> None:
    values = np.random.default_rng(1).normal(1, 0.05, 400)
    found = estimate(values.tolist())
    assert found.low is not None
    error = values.std(ddof=1) / 20
    assert (found.value - found.low) / error == pytest.approx(NormalDist().inv_cdf(0.975), rel=0.05)


def test_an_interval_of_what_is_above_0_is_above_0() -> None:
    """However far the servers lie apart; a difference has none such."""
    found = estimate([1, 1, 30])
    assert found.low is not None
    assert found.high is not None
    assert 0 < found.low < 1
    assert found.high > 30
    difference = estimate_difference({1: 2, 2: 3, 3: 9}, {1: 1, 2: 1, 3: 1})
    assert difference is not None
    assert difference.low is not None
    assert difference.low < 0


def test_of_one_server_there_is_no_interval() -> None:
    assert (estimate([3]).low, estimate([3]).high) == (None, None)
    for found in (estimate_ratio({1: 2}, {1: 1}), estimate_difference({1: 2}, {1: 1})):
        assert found is not None
        assert (found.low, found.high) == (None, None)
    for before, after in (([1, 2, 3], [2]), ([2], [1, 2, 3])):
        change = estimate_change(before, after)
        assert change is not None
        assert (change.low, change.high) == (None, None)


def test_what_is_0_now_and_then_can_change_and_what_always_was_has_no_share() -> None:
    found = estimate_change([0, 1, 2], [100, 101, 102])
    assert found is not None
    assert found.value == pytest.approx(100)
    assert found.low is not None
    assert found.low > 0
    assert estimate_change([0, 0, 0], [100, 101, 102]) is None


def test_a_percentile_needs_a_request_above_it() -> None:
    assert [least_samples(percent) for percent in (50, 90, 95, 99)] == [2, 10, 20, 100]
