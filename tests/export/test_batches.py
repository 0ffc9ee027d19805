"""The order of the rows: complete, in full batches of like lengths, and the same whoever computes them."""

from collections import Counter

import pytest
import torch

from sparse_export.training.batches import BatchPlan, PlannedBatches, evaluation_batches


def lengths_of(rows: int) -> list[int]:
    return [(number * 37) % 101 + 1 for number in range(rows)]


@pytest.mark.parametrize(("rows", "batch_size"), [(64, 8), (61, 8), (5, 8), (1, 8), (3, 64), (17, 1)])
def test_every_row_is_there_and_every_batch_full(rows: int, batch_size: int) -> None:
    plan = BatchPlan(lengths_of(rows), batch_size, seed=3)
    batches = PlannedBatches(plan)
    order = list(batches)
    assert len(order) == len(batches) == plan.steps * batch_size
    assert plan.steps == -(-rows // batch_size)
    counts = Counter(order)
    assert set(counts) == set(range(rows))
    assert max(counts.values()) - min(counts.values()) <= 1  # rows drawn again are spread evenly


def test_rows_are_evaluated_once_each_the_longest_first_and_fewer_of_long_ones() -> None:
    lengths = [5, 2000, 3, 1500, 1500, 7]
    batches = list(evaluation_batches([{"input_ids": [0] * length} for length in lengths], 2))
    assert batches == [[1], [3], [4], [5, 0], [2]]


def test_epochs_and_seeds_have_orders_of_their_own_and_keep_them() -> None:
    orders = {}
    for seed in (0, 1):
        plan = BatchPlan(lengths_of(50), 8, seed)
        for epoch in (2, 0, 1):
            orders[seed, epoch] = tuple(plan.rows(epoch))
            assert tuple(plan.rows(epoch)) == orders[seed, epoch]
            torch.rand(1)  # what else draws has no part in it
    assert len(set(orders.values())) == len(orders)


def test_a_batch_has_texts_of_like_lengths() -> None:
    lengths = lengths_of(800)
    order = BatchPlan(lengths, 8, seed=0).rows(0)
    spreads = []
    for start in range(0, len(order), 8):
        batch = [lengths[row] for row in order[start : start + 8]]
        spreads.append(max(batch) - min(batch))
    assert sum(spreads) / len(spreads) < 10  # of 100; drawn at random it would be about 78
