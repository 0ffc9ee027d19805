"""Setting the threshold of a learned pattern so that it is as sparse as was asked for."""

from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from sparse_export.encoders.axis import AxisLayer, learned_modules

# How far thresholds may move, and how near to the target is near enough.
_REACH = 8.0
_NEAR = 0.003
_HALVINGS = 12


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
        (weights, weights.detach().clone(), torch.ones_like(weights) if is_bias else (weights != 0).float())
        for weights, is_bias in (
            (module.bias, True) if isinstance(module, AxisLayer) else (module.logits, False)
            for module in learned_modules(model)
        )
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
