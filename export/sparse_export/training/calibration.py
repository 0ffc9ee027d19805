"""Setting the threshold of a learned pattern so that it is as sparse as was asked for."""

import random
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel

from sparse_export.encoders.patterned import pattern_modules
from sparse_serve.errors import DataError

# How far thresholds may move, and how near to the target is near enough.
_REACH = 8.0
_NEAR = 0.003
_HALVINGS = 12

# Rows that are set aside to measure ρ on: one in twenty of the training rows, at most 256, and 16 where that
# is no more than an eighth of them.
_SHARE, _MOST = 0.05, 256
_SHARE_OF_FEW, _FEW = 0.125, 16

Row = TypeVar("Row", bound=Mapping[str, Any])


def set_aside(rows: Sequence[Row], judged: Sequence[Row], seed: int) -> tuple[list[Row], list[Row]]:
    """Split off training rows to measure ρ on: the rest, and those that `rows_aside` chooses.

    Args:
        rows: encoded, with `input_ids`.
        judged: encoded evaluation rows.
        seed: chooses among rows of one length.

    Raises:
        DataError: there is one training row alone.
    """
    lengths, wanted = ([len(row["input_ids"]) for row in each] for each in (rows, judged))
    numbers = rows_aside(lengths, wanted, seed)
    chosen = set(numbers)
    return [row for number, row in enumerate(rows) if number not in chosen], [rows[each] for each in numbers]


def rows_aside(lengths: Sequence[int], judged: Sequence[int], seed: int) -> list[int]:
    """Return numbers of training rows to measure ρ on, ascending: of rows about as long as the judged ones.

    ρ is reported on the evaluation rows; a threshold that was fitted on these would make it look as if it
    kept to its target on texts never seen. But ρ depends on the length: the longer a text, the less of it a
    band is. Training rows may have other lengths, so those of the evaluation rows are looked at, and no more.

    Args:
        lengths: tokens of each training row.
        judged: those of each evaluation row.
        seed: chooses among rows of one length.

    Raises:
        DataError: there is one training row alone.
    """
    if len(lengths) < 2:
        raise DataError(
            "there is one training row; a learned pattern needs two or more, of which one is set aside to "
            "measure rho on"
        )
    few = min(_FEW, max(1, int(len(lengths) * _SHARE_OF_FEW)))
    size = min(_MOST, max(few, round(len(lengths) * _SHARE)))
    wanted = np.quantile(judged, (np.arange(size) + 0.5) / size)
    shuffled = random.Random(f"calibration {seed}").sample(range(len(lengths)), len(lengths))
    by_length = sorted(shuffled, key=lengths.__getitem__)
    left = [lengths[number] for number in by_length]
    chosen = []
    for length in wanted.tolist():
        above = bisect_left(left, length)
        below = max(0, above - 1)
        is_above = above < len(left) and left[above] - length < length - left[below]
        nearest = above if is_above or above == 0 else below
        chosen.append(by_length.pop(nearest))
        del left[nearest]
    return sorted(chosen)


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
