"""Which pairs of a text's tokens a pattern lets attend, and through what."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparse_export.attention.masks import LayerMask
from sparse_export.attention.measures import rho

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class AllowedPairs:
    """The allowed pairs of one text of L tokens, layer by layer; the heads of a layer share them.

    Attributes:
        pairs: `(layers, L, L)` bool, `[layer, query, key]`.
        learned: `(layers, L, L)` bool, the pairs that the learned rows, columns and diagonals allow by
            themselves, without the fixed part (the "band"); None where nothing is learned.
        rows: `(layers, L)` bool, tokens whose row is on, learned or global: they read every token.
        columns: `(layers, L)` bool, tokens whose column is on, learned or global: every token reads them.
        diagonals: per layer the distances below L that are on, learned or fixed.
    """

    pairs: Flags
    learned: Flags | None
    rows: Flags
    columns: Flags
    diagonals: tuple[tuple[int, ...], ...]

    @property
    def rho(self) -> list[float]:
        """Per layer the share of pairs that are not allowed: ρ (AAA, Eq. 9) of softmax."""
        return _shares_off(self.pairs)

    @property
    def rho_without_band(self) -> list[float] | None:
        """Per layer the share of pairs that the learned part by itself does not allow."""
        return None if self.learned is None else _shares_off(self.learned)


def allowed_pairs(masks: Sequence[LayerMask], length: int) -> AllowedPairs:
    """Read the masks that every layer made of one text of `length` tokens without padding.

    Args:
        masks: as `encoders.patterned.recorded` collects them in evaluation, of a batch of one.
        length: L.
    """
    learns = any(each is not None for mask in masks for each in (mask.rows, mask.diagonals))
    without_band = [mask.without_fixed() for mask in masks]
    return AllowedPairs(
        pairs=_pairs(masks, length),
        learned=_pairs(without_band, length) if learns else None,
        rows=_on(masks, [mask.rows for mask in masks], length),
        columns=_on(masks, [mask.columns for mask in masks], length),
        diagonals=tuple(tuple(_diagonals(mask, length)) for mask in masks),
    )


def _pairs(masks: Sequence[LayerMask], length: int) -> Flags:
    ranks, lengths = torch.arange(length)[None], torch.tensor([length])
    pairs: Flags = torch.cat([mask.pairs(ranks, lengths) for mask in masks]).numpy()
    return pairs


def _on(masks: Sequence[LayerMask], learned: Sequence[Tensor | None], length: int) -> Flags:
    ranks = torch.arange(length)[None]
    layers = zip(masks, learned, strict=True)
    on: Flags = torch.cat([mask.pattern.on(ranks, each) for mask, each in layers]).numpy()
    return on


def _diagonals(mask: LayerMask, length: int) -> list[int]:
    learned = [] if mask.diagonals is None else mask.diagonals.nonzero().flatten().tolist()
    return sorted(offset for offset in {*mask.pattern.diagonals, *learned} if offset < length)


def _shares_off(pairs: Flags) -> list[float]:
    kept, length = torch.from_numpy(pairs).sum((1, 2)), torch.tensor(pairs.shape[-1])
    shares: list[float] = rho(kept, length).tolist()
    return shares
