"""What is measured of attention: ρ, the support, and the rows and columns that are on.

Everything that says ρ says it by `rho`, whether its pairs come from weights, from a pattern's mask or from
the support that a graph counts.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from sparse_export.attention.masks import LayerMask


def rho(kept: Tensor, lengths: Tensor, heads: int = 1) -> Tensor:
    """Return the share of pairs that attention leaves out: ρ = 1 − |B| / N² (AAA, Eq. 9).

    Args:
        kept: |B|, pairs of tokens that are kept, summed over the heads.
        lengths: N, tokens of each sequence, of a shape that broadcasts with `kept`.
        heads: H, over how many heads `kept` was summed.

    Returns:
        float32, of the shape of both; 0 for a sequence without tokens.
    """
    pairs = heads * lengths.to(torch.float32) ** 2
    return torch.where(pairs > 0, 1 - kept / pairs.clamp_min(1), 0)


def zero_share(weights: Tensor, attention_mask: Tensor, *, of_first: bool = False) -> Tensor:
    """Return ρ `(B,)` float32 of weights: the share that is exactly zero within each row's true length.

    Args:
        weights: `(B, H, L, L)`, attention weights, or a mask of allowed pairs.
        attention_mask: `(B, L)`, 1 for tokens and 0 for padding.
        of_first: whether only the first column's query counts, which a head reads, masked or not.
    """
    tokens = attention_mask.bool()
    if of_first:
        kept = ((weights[:, :, 0] != 0) & tokens[:, None]).sum((1, 2))
        return rho(kept * tokens.sum(1), tokens.sum(1), weights.shape[1])
    pairs = (tokens[:, :, None] & tokens[:, None, :])[:, None]
    kept = ((weights != 0) & pairs).sum((1, 2, 3)).to(torch.float32)
    return rho(kept, tokens.sum(1), weights.shape[1])


def zero_shares(layers: Sequence[Tensor], attention_mask: Tensor, *, last_of_first: bool = False) -> Tensor:
    """Return ρ of every layer `(B, layers)` float32: `zero_share` of each layer's weights `(B, H, L, L)`.

    With `last_of_first` the last layer's is that of the first column's query.
    """
    last = len(layers) - 1
    shares = [
        zero_share(weights, attention_mask, of_first=last_of_first and index == last)
        for index, weights in enumerate(layers)
    ]
    return torch.stack(shares, dim=1)


def pairs_of_batch(mask: LayerMask, attention_mask: Tensor) -> Tensor:
    """Return what one layer's mask allows, `(B, 1, L, L)` bool in evaluation.

    Args:
        mask: of a forward pass.
        attention_mask: `(B, L)` of the same pass, 1 for tokens and 0 for padding.
    """
    tokens = attention_mask.bool()
    return mask.pairs(tokens.cumsum(1) - 1, tokens.sum(1))[:, None]


def mask_shares(mask: LayerMask, attention_mask: Tensor) -> Tensor:
    """Measure one layer's mask, as it is served.

    Args:
        mask: of a forward pass in evaluation.
        attention_mask: `(B, L)` of the same pass, 1 for tokens and 0 for padding.

    Returns:
        `(B, 4)` float32: ρ, the share of pairs of tokens that is not allowed (AAA, Eq. 9); ρ of the learned
        part alone, without fixed rows, columns, diagonals and random keys; the shares of tokens whose row is
        on, and whose column is on, learned or not. A row without tokens gets zeros.
    """
    tokens = attention_mask.bool()
    lengths = tokens.sum(1)
    ranks = tokens.cumsum(1) - 1
    shares = [zero_share(pairs_of_batch(each, tokens), tokens) for each in (mask, mask.without_fixed())]
    for learned in (mask.rows, mask.columns):
        on = mask.pattern.on(ranks, learned) & tokens
        shares.append(on.sum(1) / lengths.clamp_min(1))
    return torch.stack(shares, dim=1)
