"""Sparse attention behind Transformers' own door: the attention and mask interfaces.

Importing this module registers the implementation "sparsegen". A model then selects it by
`attn_implementation="sparsegen"` and tells λ in its config (see `checkpoint`): no modelling code is copied.
"""

import math
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.masking_utils import sdpa_mask

from sparse_export.sparsegen import sparsegen_lin


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
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    return sparsegen_lin(query @ key.transpose(-1, -2) * scale, lambd, dim=-1, mask=mask)


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
