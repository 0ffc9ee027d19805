"""How a pattern is trained over the steps of a run: in two stages, everything a function of the step alone.

In the dense stage the model attends to everything. In the sparse stage it attends by its pattern, whose
learned part is drawn with less and less noise, towards a ρ that rises to its target; when both have arrived,
training sees the very mask that is served, and only epochs that end there may become the best. Shares below
are of the sparse stage.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from sparse_export.attention.patterns import Pattern
from sparse_export.encoders.axis import Sampling
from sparse_export.training.options import PatternOptions, TrainingOptions

Stage = Literal["dense", "annealing", "final"]

# Until when the noise falls from 1 to 0, and the effective target rises from 0 to what is asked for.
_NOISE_ENDS = 0.7
_TARGET_ARRIVES = 0.5
# Until when alpha rises, where it does (Eq. 10).
_ALPHA_ARRIVES = 0.5
# The pattern's learning rate rises, stays, and falls to 0 at the end.
_RATE_ARRIVES = 0.05
_RATE_FALLS = 0.5
# How often ρ is measured, and the default target, as a share of the ρ that the fixed part leaves.
_MEASUREMENTS = 20
_DEFAULT_TARGET = 0.9


def stage_of(options: TrainingOptions, epoch: int) -> Stage:
    """Return the stage in which an epoch, from 1, ends."""
    if epoch <= options.dense_stage:
        return "dense"
    share = (epoch - options.dense_stage) / (options.epochs - options.dense_stage)
    return "final" if not options.learns or _is_settled(share) else "annealing"


def _is_settled(share: float) -> bool:
    return share >= max(_NOISE_ENDS, _TARGET_ARRIVES)


def fixed_rho(pattern: Pattern, lengths: Sequence[int], layers: int) -> float:
    """Return the ρ (AAA, Eq. 9) of a pattern's fixed part alone: the most that its learned part can reach.

    Args:
        pattern: of the model.
        lengths: tokens of each row.
        layers: of the encoder.
    """
    fixed = [pattern.layer(index) for index in range(layers)]
    shares = {n: sum(1 - layer.size(n) / n**2 for layer in fixed) / layers for n in set(lengths)}
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
        dense_steps: first optimiser steps, which attend to everything.
        steps: all of them.
        options: how it is learned.
    """

    rho_target: float
    dense_steps: int
    steps: int
    options: PatternOptions = field(default_factory=PatternOptions)

    @classmethod
    def of(cls, options: TrainingOptions, steps_per_epoch: int, reachable: float) -> "PatternSchedule":
        """Return the schedule of a run; `reachable` is what `fixed_rho` says of its rows."""
        learning = options.learning or PatternOptions()
        target = learning.rho_target
        return cls(
            rho_target=round(_DEFAULT_TARGET * reachable, 3) if target is None else target,
            dense_steps=options.dense_stage * steps_per_epoch,
            steps=options.epochs * steps_per_epoch,
            options=learning,
        )

    def is_settled(self, step: int) -> bool:
        """Return whether, after so many steps, training sees the mask as it is served, at its target."""
        return _is_settled((step - self.dense_steps) / (self.steps - self.dense_steps))

    def at(self, step: int) -> Moment:
        """Return what holds at an optimiser step, counted from 0."""
        options = self.options
        since, sparse_steps = step - self.dense_steps, self.steps - self.dense_steps
        share = max(0, since) / sparse_steps
        ratio = 1.0 if options.final_temperature is None else options.final_temperature / options.temperature
        sampling = Sampling(
            temperature=options.temperature * ratio**share,
            noise=max(0.0, 1 - share / _NOISE_ENDS),
            dense=step < self.dense_steps,
        )
        rises = options.alpha_schedule == "linear"
        rate = min(1.0, share / _RATE_ARRIVES, (1 - share) / (1 - _RATE_FALLS))
        return Moment(
            sampling,
            rho_target=self.rho_target * min(1.0, share / _TARGET_ARRIVES),
            alpha=options.alpha * (min(1.0, share / _ALPHA_ARRIVES) if rises else 1),
            learning_rate=options.pattern_learning_rate * rate,
            settles=self.is_settled(step) and not self.is_settled(step - 1),
            measures=since >= 0 and since % math.ceil(sparse_steps / _MEASUREMENTS) == 0,
        )
