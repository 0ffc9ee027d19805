"""Sparse attention behind Transformers' own door: the attention and mask interfaces.

Importing this module registers the implementations "sparsegen" (SSAF) and "axis" (patterns, AAA). A model
then selects one by `attn_implementation="sparsegen"` and tells λ in its config (see `spec`): no modelling
code is copied.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from sparse_export.attention.masks import LayerMask
from sparse_export.attention.measures import rho
from sparse_export.attention.sparsegen import sparsegen_lin
from sparse_export.attention.spec import attention_of
from sparse_export.attention.straight_through import straight_through


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
    weights = sparsegen_lin(_scores(query, key, scale), lambd, mask=mask)
    return weights @ value, weights


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
    lambd = attention_of(module.config).lambd
    if lambd is None:
        raise ValueError("the config of this model records no lambda, and its attention is to be sparsegen")
    scores = _scores(query, key, scaling)
    weights = sparsegen_lin(scores, lambd, mask=attention_mask)
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
    lambd = attention_of(module.config).lambd
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
            axis.rho = rho((pairs * tokens[:, :, None]).sum((1, 2)), lengths)
            weights = straight_through(scores, pairs[:, None], lambd)
    kept = nn.functional.dropout(weights, dropout, module.training)
    return (kept @ value).transpose(1, 2).contiguous(), weights


AttentionInterface.register("axis", _attend_axis)
# The attention needs each token's number within its sequence, so it gets the mask as the caller gave it.
AttentionMaskInterface.register("axis", lambda *_, attention_mask, **__: attention_mask)
