"""Which pairs a layer may attend to in a batch, where a part of that may be learned.

Learned indicators are drawn in training and cut at 0 in evaluation (the AAA paper, Eq. 11-12).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sparse_export.attention.patterns import LayerPattern


@dataclass(frozen=True)
class Sampling:
    """How indicators are drawn in training: Gumbel-sigmoid, straight-through (AAA, Eq. 11).

    An indicator is 1 where logit + noise · g > 0 with g logistic, which is a hard Gumbel-sigmoid at any
    temperature; backwards it counts as sigmoid((logit + noise · g) / temperature).

    Attributes:
        temperature: of the sigmoid, above 0: the lower, the steeper.
        noise: scale of the noise; at 0 training sees the mask that is served.
        dense: attend to everything, as if there were no pattern, in evaluation too.
    """

    temperature: float = 0.3
    noise: float = 1.0
    dense: bool = False

    def draw(self, logits: Tensor) -> Tensor:
        """Return indicators of the shape of `logits`: 0 or 1, with a gradient."""
        uniform = torch.rand_like(logits).clamp(1e-6, 1 - 1e-6)
        noisy = logits + self.noise * (uniform.log() - (1 - uniform).log())
        soft = torch.sigmoid(noisy / self.temperature)
        return (noisy > 0).to(soft.dtype) + soft - soft.detach()


@dataclass
class LayerMask:
    """Which pairs one layer may attend to in a batch.

    In training the indicators are 0.0 or 1.0 with gradients, in evaluation they are bool.

    Attributes:
        pattern: the fixed part.
        rows: `(B, L)` indicators of learned rows; None where they are not learned.
        columns: `(B, L)` indicators of learned columns.
        diagonals: `(W,)` indicators of the offsets 0 … W − 1; None where they are not learned.
        rho: `(B,)`, the share of pairs that is not allowed (Eq. 9), which training's attention notes here.
    """

    pattern: LayerPattern
    rows: Tensor | None = None
    columns: Tensor | None = None
    diagonals: Tensor | None = None
    rho: Tensor | None = None

    def pairs(self, ranks: Tensor, lengths: Tensor) -> Tensor:
        """Return the allowed pairs `(B, L, L)`, `[sequence, query, key]` (Eq. 12 and its like for more).

        Args:
            ranks: `(B, L)` int64, each token's number within its sequence.
            lengths: `(B,)` int64, tokens of each sequence.

        Returns:
            bool; in training, where a part is learned, 0.0 and 1.0 with gradients.
        """
        learned = [each for each in (self.rows, self.columns, self.diagonals) if each is not None]
        if all(each.dtype == torch.bool for each in learned):
            pairs = self.pattern.allowed(ranks, lengths, self.rows, self.columns)
            return pairs if self.diagonals is None else pairs | self._on_diagonals(ranks)
        off = (~self.pattern.allowed(ranks, lengths)).to(learned[0].dtype)
        if self.rows is not None and self.columns is not None:
            off = off * (1 - self.rows)[:, :, None] * (1 - self.columns)[:, None, :]
        if self.diagonals is not None:
            off = off * (1 - self._on_diagonals(ranks))
        return 1 - off

    def without_fixed(self) -> "LayerMask":
        """Return what the learned part allows by itself, without the fixed one."""
        return LayerMask(LayerPattern(), self.rows, self.columns, self.diagonals)

    def _on_diagonals(self, ranks: Tensor) -> Tensor:
        assert self.diagonals is not None
        distance = (ranks[:, :, None] - ranks[:, None, :]).abs()
        # Offsets that were never learned are off.
        return nn.functional.pad(self.diagonals, (0, 1))[distance.clamp_max(len(self.diagonals))]
