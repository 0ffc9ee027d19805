"""On which task's rows each step is trained: in sequence, in turn, or drawn with annealed probabilities."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from sparse_export.training.batches import BatchPlan

Sampling = Literal["annealed", "round-robin", "sequential"]

# By how much the exponent of a set's size falls over the epochs (PAL, section 4.1).
_FALL = 0.8


def annealed_probabilities(
    sizes: Sequence[int], factors: Sequence[float], epoch: int, epochs: int
) -> npt.NDArray[np.float64]:
    """Return the probability that a step is on each data set's rows, p_i ∝ f_i · N_i^α, `(sets,)`.

    α = 1 − 0.8 (e − 1)/(E − 1): from shares like the sizes to nearly equal ones (PAL, section 4.1; Stickland
    and Murray, 2019). With one epoch α is 1.

    Args:
        sizes: N, the rows of each set.
        factors: f, 1 where nothing is said.
        epoch: e, from 1.
        epochs: E.
    """
    alpha = 1 - _FALL * ((epoch - 1) / (epochs - 1) if epochs > 1 else 0)
    weights = np.array(factors) * np.array(sizes, dtype=np.float64) ** alpha
    shares: npt.NDArray[np.float64] = weights / weights.sum()
    return shares


@dataclass(frozen=True)
class DataSet:
    """Rows of one task, one after another among the rows of a run.

    Attributes:
        task: its name.
        start: number of the first.
        lengths: tokens of each.
        factor: on its probability.
    """

    task: str
    start: int
    lengths: Sequence[int]
    factor: float = 1.0


@dataclass(frozen=True)
class TasksPlan:
    """Which rows each optimiser step is computed on: those of one data set; a function of seed and epoch.

    Attributes:
        sets: the data sets; all rows of each are visited before any is a second time, over the epochs.
        batch_size: rows of a step.
        seed: seeds all orders and draws.
        sampling: how the set of a step is chosen. In turn are the tasks, until the one of the fewest steps is
            through; a task's turns go through its sets one after another, over the epochs.
        epochs: of the run.
        steps_per_epoch: of annealed sampling; None for as many as one pass over all sets takes.
        max_steps: of the run, whatever `epochs` says; None for all steps of these.
    """

    sets: Sequence[DataSet]
    batch_size: int
    seed: int
    sampling: Sampling
    epochs: int
    steps_per_epoch: int | None = None
    max_steps: int | None = None
    _known: dict[int, list[int]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def _plans(self) -> list[BatchPlan]:
        seeds = np.random.SeedSequence(self.seed).generate_state(len(self.sets))
        return [
            BatchPlan(each.lengths, self.batch_size, int(seed))
            for each, seed in zip(self.sets, seeds, strict=True)
        ]

    @cached_property
    def _passes(self) -> list[list[int]]:
        """The data set of each step of one pass over all rows of a task, for each task."""
        passes: dict[str, list[int]] = {}
        for number, (each, plan) in enumerate(zip(self.sets, self._plans, strict=True)):
            passes.setdefault(each.task, []).extend([number] * plan.steps)
        return list(passes.values())

    @property
    def steps(self) -> int:
        """Optimiser steps of an epoch."""
        counts = [len(own) for own in self._passes]
        if self.sampling == "round-robin":
            return min(counts) * len(counts)
        if self.sampling == "annealed" and self.steps_per_epoch is not None:
            return self.steps_per_epoch
        return sum(counts)

    def drawn(self, epoch: int) -> list[int]:
        """Return the data set of each step of an epoch, counted from 0."""
        if epoch not in self._known:
            self._known[epoch] = self._draw(epoch)
        return self._known[epoch]

    def _draw(self, epoch: int) -> list[int]:
        if self.sampling == "sequential":
            return [number for number, plan in enumerate(self._plans) for _ in range(plan.steps)]
        if self.sampling == "round-robin":
            turns = self.steps // len(self._passes)  # of each task
            first = epoch * turns
            return [own[turn % len(own)] for turn in range(first, first + turns) for own in self._passes]
        sizes, factors = [len(each.lengths) for each in self.sets], [each.factor for each in self.sets]
        epochs = self.epochs if self.max_steps is None else math.ceil(self.max_steps / self.steps)
        probabilities = annealed_probabilities(sizes, factors, epoch + 1, epochs)
        generator = np.random.default_rng((self.seed, epoch))
        drawn: list[int] = generator.choice(len(sizes), size=self.steps, p=probabilities).tolist()
        return drawn

    def doing(self, epoch: int, step: int) -> str:
        """Name the task of a step of an epoch, both counted from 0."""
        return self.sets[self.drawn(epoch)[step]].task

    def rows(self, epoch: int) -> list[int]:
        """Return the row numbers of an epoch, from 0, in batches of exactly `batch_size` of one data set."""
        done = Counter(number for earlier in range(epoch) for number in self.drawn(earlier))
        passes: dict[tuple[int, int], list[int]] = {}
        rows = []
        for number in self.drawn(epoch):
            plan, start = self._plans[number], self.sets[number].start
            nth_pass, batch = divmod(done[number], plan.steps)
            if (number, nth_pass) not in passes:
                passes[number, nth_pass] = plan.rows(nth_pass)
            first = batch * self.batch_size
            rows += [start + row for row in passes[number, nth_pass][first : first + self.batch_size]]
            done[number] += 1
        return rows
