"""The order in which rows are trained on: the same for every number of processes and of accumulated parts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import Sampler
from transformers.trainer_pt_utils import get_length_grouped_indices

# A layer's scores, of 12 heads in float32, are then 200 MB.
_PAIRS_AT_ONCE = 2**22


def rows_within(most: int, longest: int) -> int:
    """Return how many rows are evaluated at once: 1 to `most`, fewer where the `longest` tokens are many.

    Attention takes memory by pairs of tokens: what holds 64 rows of 256 tokens holds 16 of 512.
    """
    return max(1, min(most, _PAIRS_AT_ONCE // max(1, longest**2)))


def longest_first(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the row numbers in the order in which rows are evaluated: of like lengths together."""
    return sorted(range(len(rows)), key=lambda row: -len(rows[row]["input_ids"]))


def evaluation_batches(rows: Sequence[Mapping[str, Any]], most: int) -> Iterator[list[int]]:
    """Yield the numbers of the rows that are evaluated at once, up to `most`, the longest first."""
    order = longest_first(rows)
    while order:
        size = rows_within(most, len(rows[order[0]]["input_ids"]))
        yield order[:size]
        order = order[size:]


class Plan(Protocol):
    """Which rows each optimiser step of an epoch is computed on: a function of seed and epoch alone."""

    @property
    def batch_size(self) -> int:
        """Rows of a step."""

    @property
    def steps(self) -> int:
        """Optimiser steps of an epoch."""

    def rows(self, epoch: int) -> list[int]:
        """Return the row numbers of an epoch, from 0, in batches of exactly `batch_size`."""

    def doing(self, epoch: int, step: int) -> str:
        """Say what a step of an epoch trains, both counted from 0, in few words."""


@dataclass(frozen=True)
class BatchPlan:
    """Batches of rows of like lengths, every row once an epoch.

    Consecutive `batch_size` numbers are one step; processes and accumulated parts take equal slices of it, so
    a mean of their means is the batch's. The last batch is therefore filled up with rows drawn at random, and
    a batch has rows of like lengths. Transformers' own sampler takes the order from the global generator,
    which processes advance at different rates by dropout on batches of different lengths, and then some rows
    are trained on twice in an epoch and others never.

    Attributes:
        lengths: tokens of each row; at least one row.
        batch_size: rows of a step.
        seed: seeds all orders.
    """

    lengths: Sequence[int]
    batch_size: int
    seed: int

    @property
    def steps(self) -> int:
        """Optimiser steps of an epoch."""
        return math.ceil(len(self.lengths) / self.batch_size)

    def rows(self, epoch: int) -> list[int]:
        """Return the row numbers of an epoch, from 0, in batches of exactly `batch_size`."""
        (seed,) = np.random.SeedSequence((self.seed, epoch)).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(seed))
        count = len(self.lengths)
        shuffled = torch.randperm(count, generator=generator).tolist()
        missing = self.steps * self.batch_size - count
        rows = [*range(count), *(shuffled[extra % count] for extra in range(missing))]
        lengths = [self.lengths[row] for row in rows]
        grouped = get_length_grouped_indices(lengths, self.batch_size, generator=generator)
        return [rows[position] for position in grouped]

    def doing(self, epoch: int, step: int) -> str:
        """Say what every step does."""
        return "training"


class PlannedBatches(Sampler[int]):
    """A plan as a loader follows it.

    Attributes:
        plan: which rows.
        epoch: the epoch, from 0, whose rows the next iteration gives.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.epoch = 0

    def __len__(self) -> int:
        return self.plan.steps * self.plan.batch_size

    def __iter__(self) -> Iterator[int]:
        return iter(self.plan.rows(self.epoch))
