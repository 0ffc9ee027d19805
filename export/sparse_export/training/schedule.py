"""How a pattern is trained over the steps of a run: in two stages, everything a function of the step alone.

In the dense stage the model attends to everything. In the sparse stage it attends by its pattern, whose
learned part is drawn with less and less noise, towards a ρ that rises to its target; when both have arrived,
training sees the very mask that is served, and only epochs that end there may become the best. Shares below
are of the sparse stage.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

import torch

from sparse_export.attention.masks import Sampling
from sparse_export.attention.measures import rho
from sparse_export.attention.patterns import Pattern
from sparse_export.training.options import PatternOptions, TrainingOptions
from sparse_serve.errors import OptionError

Stage = Literal["dense", "annealing", "final"]

# Until when the noise falls from 1 to 0, and the effective target rises from 0 to what is asked for: of the
# epochs of the sparse stage, about half can then become the best.
_NOISE_ENDS = 0.5
_TARGET_ARRIVES = 0.5
# Until when alpha rises, where it does (Eq. 10).
_ALPHA_ARRIVES = 0.5
# The pattern's learning rate rises, stays, and falls to 0 at the end.
_RATE_ARRIVES = 0.05
_RATE_FALLS = 0.5
# How often ρ is measured, and at most how many steps apart: what lies between drives the pattern by an old ρ.
_MEASUREMENTS = 20
_STEPS_BETWEEN = 50
# The default target, as a share of the ρ that the fixed part leaves.
_DEFAULT_TARGET = 0.9


@dataclass(frozen=True)
class Stages:
    """The optimiser steps of a run, and in which stages they are.

    Attributes:
        per_epoch: steps of an epoch.
        dense: first steps, which attend to everything.
        steps: all of them.
        learns: whether a part of the pattern is learned.
    """

    per_epoch: int
    dense: int
    steps: int
    learns: bool

    @classmethod
    def of(cls, options: TrainingOptions, per_epoch: int) -> Self:
        """Return the stages of a run whose epochs have so many steps.

        Raises:
            OptionError: all steps are to be dense ones.
        """
        steps = options.epochs * per_epoch if options.max_steps is None else options.max_steps
        if options.dense_epochs is not None:
            dense = options.dense_epochs * per_epoch
        elif not options.learns:
            dense = 0
        else:
            dense = (options.epochs // 2) * per_epoch if options.max_steps is None else steps // 2
        if dense >= steps:
            raise OptionError(
                f"--dense-epochs {options.dense_epochs} is {dense} steps, and --max-steps {steps}; leave "
                "some steps in which the pattern is trained"
            )
        return cls(per_epoch, dense, steps, options.learns)

    def epoch(self, step: int) -> int | float:
        """Return how many epochs so many steps are: a whole number at an epoch's end."""
        whole, rest = divmod(step, self.per_epoch)
        return whole + rest / self.per_epoch if rest else whole

    def share(self, step: float) -> float:
        """Return how much of the sparse stage lies behind, after so many steps."""
        return (step - self.dense) / (self.steps - self.dense)

    def is_settled(self, step: int) -> bool:
        """Return whether, after so many steps, training sees the mask as it is served, at its target."""
        return self.share(step) >= max(_NOISE_ENDS, _TARGET_ARRIVES)

    def stage(self, step: int) -> Stage:
        """Return the stage that is over after so many steps."""
        if step <= self.dense:
            return "dense"
        return "final" if not self.learns or self.is_settled(step) else "annealing"


def fixed_rho(pattern: Pattern, lengths: Sequence[int], layers: int) -> float:
    """Return the ρ (AAA, Eq. 9) of a pattern's fixed part alone: the most that its learned part can reach.

    Args:
        pattern: of the model.
        lengths: tokens of each row.
        layers: of the encoder.
    """
    fixed = [pattern.layer(index) for index in range(layers)]
    found = sorted(set(lengths))
    pairs = torch.tensor([[layer.size(n) for layer in fixed] for n in found], dtype=torch.float64)
    shares: dict[int, float] = dict(
        zip(found, rho(pairs, torch.tensor(found)[:, None]).mean(1).tolist(), strict=True)
    )
    return sum(shares[n] for n in lengths) / len(lengths)


@dataclass(frozen=True)
class Moment:
    """What holds at one optimiser step.

    Attributes:
        sampling: how indicators are drawn.
        rho_target: the effective one.
        alpha: the effective one.
        learning_rate: of the pattern's own weights.
        settles: whether this is the first step that sees the mask as it is served, at its target.
        measures: whether ρ is to be measured before this step.
    """

    sampling: Sampling
    rho_target: float
    alpha: float
    learning_rate: float
    settles: bool
    measures: bool


@dataclass(frozen=True)
class PatternSchedule:
    """How a pattern is trained.

    Attributes:
        rho_target: ρ to reach at last.
        stages: of the run.
        options: how it is learned.
    """

    rho_target: float
    stages: Stages
    options: PatternOptions = field(default_factory=PatternOptions)

    @classmethod
    def of(cls, options: TrainingOptions, stages: Stages, reachable: float) -> Self:
        """Return the schedule of a run; `reachable` is what `fixed_rho` says of its rows."""
        learning = options.learning or PatternOptions()
        target = learning.rho_target
        return cls(round(_DEFAULT_TARGET * reachable, 3) if target is None else target, stages, learning)

    def at(self, step: int) -> Moment:
        """Return what holds at an optimiser step, counted from 0."""
        options, stages = self.options, self.stages
        since = step - stages.dense
        share = max(0.0, stages.share(step))
        ratio = 1.0 if options.final_temperature is None else options.final_temperature / options.temperature
        sampling = Sampling(
            temperature=options.temperature * ratio**share,
            noise=max(0.0, 1 - share / _NOISE_ENDS),
            dense=since < 0,
        )
        rises = options.alpha_schedule == "linear"
        rate = min(1.0, share / _RATE_ARRIVES, (1 - share) / (1 - _RATE_FALLS))
        between = min(_STEPS_BETWEEN, math.ceil((stages.steps - stages.dense) / _MEASUREMENTS))
        return Moment(
            sampling,
            rho_target=self.rho_target * min(1.0, share / _TARGET_ARRIVES),
            alpha=options.alpha * (min(1.0, share / _ALPHA_ARRIVES) if rises else 1),
            learning_rate=options.pattern_learning_rate * rate,
            settles=stages.is_settled(step) and not stages.is_settled(step - 1),
            measures=since >= 0 and since % between == 0,
        )
