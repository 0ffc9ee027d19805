"""Adaptive diagonals: the distances at which tokens attend are learned, for the task or for each layer.

The AAA paper's generalisation of SparseBERT (its Table 3).
"""

from typing import TYPE_CHECKING, Literal, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sparse_export.attention.masks import LayerMask
from sparse_export.encoders.extension import Extension
from sparse_export.encoders.families import layers_of, max_tokens
from sparse_export.encoders.patterned import Decide, PatternModule

if TYPE_CHECKING:
    from sparse_export.encoders.spec import ModelSpec


class AdaptiveDiagonals(PatternModule):
    """Learned offsets: a logit for each distance."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Begin at 0: drawn on as often as off, and off for good where no text is long enough to tell."""
        nn.init.zeros_(self.logits)

    def mark(self, mask: LayerMask, hidden: Tensor, decide: Decide) -> None:
        """Say which distances are on."""
        mask.diagonals = decide(self.logits)

    def offsets(self) -> tuple[int, ...]:
        """Return the distances that are on when served."""
        return tuple((self.logits > 0).nonzero().flatten().tolist())

    def thresholds(self) -> tuple[nn.Parameter, Tensor]:
        """Return the logits; a shift leaves those at exactly 0, which no text was long enough to train."""
        return self.logits, (self.logits != 0).float()


class DiagonalsExtension(Extension):
    """Logits in every layer, `….layer.3.diagonals`, or once for all, `….diagonals`."""

    def __init__(self, scope: Literal["task", "layer"]) -> None:
        self._scope = scope

    @classmethod
    def of(cls, spec: "ModelSpec") -> Self | None:
        """Return it where the model's pattern learns diagonals."""
        pattern = spec.attention.pattern
        return cls(pattern.diagonal) if pattern is not None and pattern.diagonal is not None else None

    def attach(self, model: PreTrainedModel) -> None:
        """Give every layer its own, or the encoder one that all share."""
        owners = layers_of(model) if self._scope == "layer" else [model.base_model]
        for owner in owners:
            owner.diagonals = AdaptiveDiagonals(max_tokens(model.config))


def learned_offsets(model: PreTrainedModel) -> list[tuple[int, ...]]:
    """Return the learned distances that are on: one set, one for each layer, or none that are learned."""
    return [module.offsets() for module in model.modules() if isinstance(module, AdaptiveDiagonals)]
