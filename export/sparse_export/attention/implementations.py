"""Sparse attention behind Transformers' own door: the attention and mask interfaces.

Importing this module registers the implementations "sparsegen" (SSAF) and "axis" (patterns, AAA). A model
then selects one by `attn_implementation="sparsegen"` and tells λ in its config (see `checkpoint`): no
modelling code is copied.
"""

import math
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.masking_utils import sdpa_mask

from sparse_export.attention.sparsegen import sparsegen_lin
from sparse_export.encoders.axis import LayerMask

# How far a score that is not allowed may count above the largest allowed one, in training.
_MOST_ABOVE = 2.0


def sparsegen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lambd: float,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention with sparsegen-lin in softmax's place (SSAF, Eq. 1-2 with ρ = sparsegen-lin).

    Args:
        query: `(..., L_q, D)`, floating point.
        key: `(..., L_k, D)`.
        value: `(..., L_k, D)`.
        lambd: λ, finite and below 1.
        scale: factor on QKᵀ; 1/√D when None.
        mask: bool, broadcastable to `(..., L_q, L_k)`, True = may be attended. A query without
            a key gets zeros.

    Returns:
        The outputs `(..., L_q, D)` and the attention weights `(..., L_q, L_k)`.
    """
    weights = _weights(query, key, lambd, scale, mask)
    return weights @ value, weights


def _weights(query: Tensor, key: Tensor, lambd: float, scale: float | None, mask: Tensor | None) -> Tensor:
    return sparsegen_lin(_scores(query, key, scale), lambd, dim=-1, mask=mask)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """`AttentionInterface` signature: query, key, value `(B, H, L, D)` to `(B, L, H, D)` and weights."""
    lambd = cast(PreTrainedConfig, module.config).sparse_attention["lambd"]
    weights = _weights(query, key, lambd, scaling, attention_mask)
    kept = nn.functional.dropout(weights, dropout, module.training)
    return (kept @ value).transpose(1, 2).contiguous(), weights


AttentionInterface.register("sparsegen", _attend)
# Without a mask function of the same name Transformers silently passes no mask at all.
AttentionMaskInterface.register("sparsegen", sdpa_mask)


def axis_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pairs: Tensor,
    lambd: float | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention on exactly the allowed pairs: the specification of the op `AxisAttention`.

    Args:
        query: `(..., L_q, D)`, floating point.
        key: `(..., L_k, D)`.
        value: `(..., L_k, D)`.
        pairs: bool, broadcastable to `(..., L_q, L_k)`, True = allowed. A query without a key gets zeros.
        lambd: λ of sparsegen-lin; None for softmax.
        scale: factor on QKᵀ; 1/√D when None.

    Returns:
        The outputs `(..., L_q, D)` and the attention weights `(..., L_q, L_k)`, 0 where not allowed.
    """
    weights = _over_allowed(_scores(query, key, scale), pairs, lambd)
    return weights @ value, weights


def _scores(query: Tensor, key: Tensor, scale: float | None) -> Tensor:
    return query @ key.transpose(-1, -2) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)


def _over_allowed(scores: Tensor, pairs: Tensor, lambd: float | None) -> Tensor:
    if lambd is not None:
        return sparsegen_lin(scores, lambd, mask=pairs)
    weights = scores.masked_fill(~pairs, -torch.inf).softmax(-1)
    return torch.where(pairs, weights, 0)


def _straight_through(scores: Tensor, pairs: Tensor, lambd: float | None) -> Tensor:
    """Weights over the allowed keys, with a gradient for `pairs`, 0.0 or 1.0, that are not allowed too.

    A pair that is not allowed weighs 0 and counts backwards as the weight it would have had, which is kept
    from growing beyond what the largest allowed one has: its score may be far above theirs.
    """
    allowed = pairs > 0.5
    if lambd is None:
        peak = scores.masked_fill(~allowed, -torch.inf).amax(-1, keepdim=True).detach()
        above = scores - peak.clamp_min(torch.finfo(peak.dtype).min)
        exponentials = above.clamp_max(_MOST_ABOVE).exp() * pairs
        # The peak alone counts 1. A query that is padding may have no key, and must not divide by nothing.
        return exponentials / exponentials.sum(-1, keepdim=True).clamp_min(0.5)
    weights = sparsegen_lin(scores, lambd, mask=allowed)
    best = weights.detach().max(-1, keepdim=True)
    threshold = scores.detach().gather(-1, best.indices) / (1 - lambd) - best.values
    would_be = (scores.detach() / (1 - lambd) - threshold).clamp(0, 1)
    return torch.where(allowed, weights, would_be) * pairs


def _attend_axis(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    axis: LayerMask | None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """`AttentionInterface` signature; `attention_mask` is the model's `(B, L)`, `axis` the layer's mask."""
    batch, _heads, length, _size = query.shape
    if attention_mask is None:
        attention_mask = torch.ones(batch, length, dtype=torch.bool, device=query.device)
    tokens = attention_mask != 0
    lambd = cast(PreTrainedConfig, module.config).sparse_attention["lambd"]
    scores = _scores(query, key, scaling)
    if axis is None:
        weights = _over_allowed(scores, tokens[:, None, None, :], lambd)
    else:
        lengths = tokens.sum(1)
        pairs = axis.pairs(tokens.cumsum(1) - 1, lengths)
        if pairs.dtype == torch.bool:
            weights = _over_allowed(scores, (pairs & tokens[:, None, :])[:, None], lambd)
        else:
            pairs = pairs * tokens[:, None, :]
            axis.rho = 1 - (pairs * tokens[:, :, None]).sum((1, 2)) / lengths.clamp_min(1) ** 2
            weights = _straight_through(scores, pairs[:, None], lambd)
    kept = nn.functional.dropout(weights, dropout, module.training)
    return (kept @ value).transpose(1, 2).contiguous(), weights


AttentionInterface.register("axis", _attend_axis)
# The attention needs each token's number within its sequence, so it gets the mask as the caller gave it.
AttentionMaskInterface.register("axis", lambda *_, attention_mask, **__: attention_mask)


def zero_share(weights: Tensor, attention_mask: Tensor) -> Tensor:
    """Share of attention weights that are exactly zero within each row's true length (AAA, Eq. 9).

    Args:
        weights: `(B, H, L, L)`, attention weights.
        attention_mask: `(B, L)`, 1 for tokens and 0 for padding.

    Returns:
        ρ per row `(B,)` float32: 1 − (nonzero weights between tokens) / (H · N²); 0 for a row without tokens.
    """
    tokens = attention_mask.bool()
    pairs = (tokens[:, :, None] & tokens[:, None, :])[:, None]
    kept = ((weights != 0) & pairs).sum((1, 2, 3)).to(torch.float32)
    total = weights.shape[1] * tokens.sum(1).to(torch.float32) ** 2
    return torch.where(total > 0, 1 - kept / total.clamp_min(1), 0)


def zero_shares(layers: Iterable[Tensor], attention_mask: Tensor) -> Tensor:
    """ρ of every layer `(B, layers)` float32: `zero_share` of each layer's weights `(B, H, L, L)`."""
    return torch.stack([zero_share(weights, attention_mask) for weights in layers], dim=1)
