"""The task of each step: probabilities as the formula has them, draws as the probabilities, rows complete."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from sparse_export.multitask.plan import DataSet, Sampling, TasksPlan, annealed_probabilities

SIZES = (120, 40, 15)
BATCH = 8


def make_plan(sampling: Sampling, steps: int | None = None, epochs: int = 5, seed: int = 3) -> TasksPlan:
    sets, start = [], 0
    for name, size in zip(("long", "mean", "short"), SIZES, strict=True):
        sets.append(DataSet(name, start, [number % 7 + 3 for number in range(size)]))
        start += size
    return TasksPlan(sets, BATCH, seed, sampling, epochs, steps)


def set_of(row: int) -> int:
    return int(np.searchsorted(np.cumsum(SIZES), row, side="right"))


def test_probabilities_are_the_papers() -> None:
    """p_i ∝ N_i^α, α = 1 − 0.8 (e − 1)/(E − 1), worked out by hand for the paper's sets in 3 epochs."""
    sizes, ones = (8544, 283003, 6040), (1.0, 1.0, 1.0)
    for epoch, alpha in ((1, 1.0), (2, 0.6), (3, 0.2)):
        weights = [size**alpha for size in sizes]
        expected = [weight / sum(weights) for weight in weights]
        np.testing.assert_allclose(annealed_probabilities(sizes, ones, epoch, 3), expected, rtol=1e-12)
    assert annealed_probabilities(sizes, ones, 1, 3)[1] == pytest.approx(0.951, abs=5e-4)
    assert annealed_probabilities(sizes, ones, 3, 3)[1] == pytest.approx(0.510, abs=5e-4)
    np.testing.assert_allclose(annealed_probabilities((5, 15), (1, 1), 1, 1), [0.25, 0.75])
    np.testing.assert_allclose(annealed_probabilities((5, 15), (1, 0.1), 1, 1), [5 / 6.5, 1.5 / 6.5])


def test_draws_follow_the_probabilities() -> None:
    steps, epochs = 20_000, 3
    plan = make_plan("annealed", steps, epochs)
    for epoch in range(epochs):
        shares = np.bincount(plan.drawn(epoch), minlength=3) / steps
        expected = annealed_probabilities(SIZES, (1, 1, 1), epoch + 1, epochs)
        # Five standard deviations of a share.
        assert (abs(shares - expected) < 5 * np.sqrt(expected * (1 - expected) / steps)).all()


@pytest.mark.parametrize(("max_steps", "epochs"), [(8, 2), (17, 5)], ids=["fewer", "more"])
def test_shares_are_nearly_equal_at_the_end_of_the_run_wherever_steps_end_it(
    max_steps: int, epochs: int
) -> None:
    """Of 4 steps an epoch: the last epoch that is begun is the formula's last one, whatever `epochs` says."""
    ended = replace(make_plan("annealed", 4, epochs=3), max_steps=max_steps)
    whole = make_plan("annealed", 4, epochs)
    assert [ended.drawn(epoch) for epoch in range(epochs)] == [whole.drawn(epoch) for epoch in range(epochs)]


@pytest.mark.parametrize("sampling", ["annealed", "round-robin", "sequential"])
def test_every_batch_is_of_one_set_and_every_row_comes_before_any_comes_again(sampling: Sampling) -> None:
    plan = make_plan(sampling)
    visits: list[list[int]] = [[] for _ in SIZES]
    for epoch in range(plan.epochs):
        rows = plan.rows(epoch)
        assert len(rows) == plan.steps * BATCH
        for step, first in enumerate(range(0, len(rows), BATCH)):
            sets = {set_of(row) for row in rows[first : first + BATCH]}
            assert sets == {plan.drawn(epoch)[step]}
            assert plan.doing(epoch, step) == plan.sets[min(sets)].task
            visits[min(sets)] += rows[first : first + BATCH]
    for size, own in zip(SIZES, visits, strict=True):
        window = math.ceil(size / BATCH) * BATCH  # a pass is filled up to whole batches
        assert len(own) >= window or sampling == "round-robin"
        for first in range(0, len(own), window):
            of_pass = own[first : first + window]
            assert len(set(of_pass)) >= len(of_pass) - (window - size)


def test_orders() -> None:
    sequential, in_turn = make_plan("sequential"), make_plan("round-robin")
    assert sequential.drawn(0) == [0] * 15 + [1] * 5 + [2] * 2
    assert all(before <= after for before, after in pairwise(sequential.drawn(3)))
    assert in_turn.drawn(1) == [0, 1, 2] * 2  # until the smallest is through
    assert make_plan("annealed").steps == 22
    assert make_plan("annealed", 9).steps == len(make_plan("annealed", 9).drawn(0)) == 9


def test_tasks_take_turns_however_many_sets_they_have() -> None:
    """A task of 5 + 2 steps and one of 5: each has its 5 turns an epoch, the first goes on where it was."""
    sets = [DataSet("films", 0, [5] * 40), DataSet("films", 40, [5] * 15), DataSet("pairs", 55, [5] * 40)]
    plan = TasksPlan(sets, BATCH, 3, "round-robin", epochs=3)
    assert plan.steps == 10
    assert plan.drawn(0) == [0, 2] * 5
    assert plan.drawn(1) == [1, 2, 1, 2, 0, 2, 0, 2, 0, 2]
    assert [plan.doing(2, step) for step in range(plan.steps)] == ["films", "pairs"] * 5
    resumed = TasksPlan(sets, BATCH, 3, "round-robin", epochs=3)
    assert resumed.rows(2) == plan.rows(2)
    rows = plan.rows(0) + plan.rows(1)
    films = [row for first in range(0, len(rows), 2 * BATCH) for row in rows[first : first + BATCH]]
    assert set(films[: 7 * BATCH]) == set(range(55))


def test_a_small_set_more_does_not_cut_the_epoch_short() -> None:
    sets = [DataSet(*each) for each in (("a", 0, [5] * 8544), ("a", 8544, [5] * 50), ("b", 8594, [5] * 8544))]
    assert TasksPlan(sets, 16, 3, "round-robin", epochs=1).steps == 2 * 534
    assert TasksPlan(sets, 16, 3, "sequential", epochs=1).steps == 534 + 4 + 534


def test_it_depends_on_seed_and_epoch_alone() -> None:
    orders = {}
    for seed in (0, 1):
        for epoch in (2, 0, 1):
            orders[seed, epoch] = tuple(make_plan("annealed", seed=seed).rows(epoch))
            assert tuple(make_plan("annealed", seed=seed).rows(epoch)) == orders[seed, epoch]
    assert len(set(orders.values())) == len(orders)
