"""Setting the threshold of a learned pattern so that it is as sparse as was asked for."""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from transformers import PreTrainedModel

from sparse_export.encoders.patterned import pattern_modules
from sparse_serve.errors import DataError

# How far thresholds may move, and how near to the target is near enough.
_REACH = 8.0
_NEAR = 0.003
_HALVINGS = 12

# Rows that are set aside to measure ρ on: a tenth of the training rows, and at most so many.
_SHARE = 0.1
_MOST = 256

Row = TypeVar("Row")


def set_aside(rows: Sequence[Row], seed: int) -> tuple[list[Row], list[Row]]:
    """Split off a random sample of training rows, to measure ρ on: the rest, and the sample.

    ρ is reported on the evaluation rows; a threshold that was fitted on these would make it look as if it
    kept to its target on texts never seen.

    Raises:
        DataError: there is one row alone.
    """
    if len(rows) < 2:
        raise DataError(
            "there is one training row; a learned pattern needs two or more, of which one is set aside to "
            "measure rho on"
        )
    size = min(_MOST, max(1, round(len(rows) * _SHARE)))
    chosen = set(random.Random(f"calibration {seed}").sample(range(len(rows)), size))
    kept = [row for number, row in enumerate(rows) if number not in chosen]
    return kept, [rows[number] for number in sorted(chosen)]


def calibrate(model: PreTrainedModel, measure: Callable[[], float], target: float) -> float:
    """Move all thresholds of a learned pattern alike, to where ρ is nearest to `target`.

    Training brings ρ near; it cannot bring it there, as whole tokens' rows and columns change at once. Which
    rows and columns come before which others stays as it was learned.

    Args:
        model: whose weights are changed: the biases of its axis layers, and the logits of its adaptive
            diagonals but for those that are exactly 0, which no text was long enough to train.
        measure: returns ρ of the model as it is.
        target: the ρ wanted.

    Returns:
        What was added to every logit.
    """
    starts = [
        (weights, weights.detach().clone(), moves)
        for weights, moves in (module.thresholds() for module in pattern_modules(model))
    ]

    def move(shift: float) -> None:
        with torch.no_grad():
            for weights, start, moves in starts:
                weights.copy_(start + shift * moves)

    low, high, shift = -_REACH, _REACH, 0.0
    tried = []
    for _ in range(_HALVINGS):
        move(shift)
        rho = measure()
        tried.append((abs(rho - target), abs(shift), shift))
        if tried[-1][0] <= _NEAR:
            break
        low, high = (low, shift) if rho < target else (shift, high)
        shift = (low + high) / 2
    best = min(tried)[2]
    move(best)
    return best
