"""The order in which rows are trained on: the same for every number of processes and of accumulated parts."""

import math
from collections.abc import Iterator, Sequence

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


class FullBatches(Sampler[int]):
    """Row numbers of an epoch in batches of like lengths, each of exactly `batch_size` rows.

    Consecutive `batch_size` numbers are one optimiser step; processes and accumulated parts take equal slices
    of it, so a mean of their means is the batch's. The last batch is therefore filled up with rows drawn at
    random. The order depends on the seed and the epoch alone: Transformers' own sampler takes it from the
    global generator, which processes advance at different rates by dropout on batches of different lengths,
    and then some rows are trained on twice in an epoch and others never.

    Attributes:
        lengths: tokens of each row.
        epoch: the epoch, from 0, whose order the next iteration gives.

    Args:
        lengths: tokens of each row; at least one row.
        batch_size: rows of a step.
        seed: seeds all orders.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self.epoch = 0
        self.lengths = lengths
        self._batch_size = batch_size
        self._seed = seed

    @property
    def steps(self) -> int:
        """Optimiser steps of an epoch."""
        return math.ceil(len(self.lengths) / self._batch_size)

    def __len__(self) -> int:
        return self.steps * self._batch_size

    def __iter__(self) -> Iterator[int]:
        (seed,) = np.random.SeedSequence((self._seed, self.epoch)).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(seed))
        count = len(self.lengths)
        shuffled = torch.randperm(count, generator=generator).tolist()
        rows = [*range(count), *(shuffled[extra % count] for extra in range(len(self) - count))]
        lengths = [self.lengths[row] for row in rows]
        grouped = get_length_grouped_indices(lengths, self._batch_size, generator=generator)
        return iter([rows[position] for position in grouped])
