"""Attention of a packed batch over all keys of a sequence: the torch reference of the packed ops."""

import torch
from torch import Tensor

from sparse_export.attention.sparsegen import sparsegen_lin
from sparse_export.encoders.packing import HiddenFirst, Sequences
from sparse_export.graph.nodes import (
    HeadSettings,
    hidden_first_node,
    packed_attention_node,
    packed_cross_attention_node,
)


def attend_all(
    qkv: tuple[Tensor, Tensor, Tensor], cu_seqlens: Tensor, hidden: HiddenFirst | None, heads: HeadSettings
) -> tuple[Tensor, Tensor | None]:
    """Attend over all keys: in an exported graph by the ops, elsewhere by their reference.

    Args:
        qkv: queries, keys and values, `(T + R, H·D)` each.
        cu_seqlens: sequence borders, as `Packing` has them.
        hidden: first tokens that are queries and no keys; None where none can be.
        heads: H, scale and λ.

    Returns:
        Outputs `(T + R, H·D)`, and the number of nonzero weights `(T + R, H)` int32; None where it is that of
        all keys, as with softmax in a graph.
    """
    attend, replace = (
        (packed_attention_node, hidden_first_node)
        if torch.onnx.is_in_onnx_export()
        else (packed_attention, attend_hidden_first)
    )
    output, support = attend(*qkv, cu_seqlens, heads)
    return output if hidden is None else replace(output, *qkv, hidden, heads), support


def attend_across(
    query: Tensor, key: Tensor, value: Tensor, sequences: Sequences, heads: HeadSettings
) -> tuple[Tensor, Tensor | None]:
    """Attend from queries beside the keys: in an exported graph by the ops, elsewhere by their reference.

    As `packed_cross_attention`, but that the number of nonzero weights is None where it is that of all keys.
    """
    attend = packed_cross_attention_node if torch.onnx.is_in_onnx_export() else packed_cross_attention
    return attend(query, key, value, sequences, heads)


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    heads: HeadSettings,
) -> tuple[Tensor, Tensor]:
    """Attention within each sequence of a packed batch: the torch reference of the packed ONNX ops.

    Args:
        query: `(T, H·D)`, floating point.
        key: `(T, H·D)`.
        value: `(T, H·D)`.
        cu_seqlens: sequence borders `(B + 1,)` int32, from 0 to T.
        heads: H, scale and λ.

    Returns:
        Outputs `(T, H·D)` and, for every row and head, the number of nonzero weights `(T, H)` int32.
    """
    return packed_cross_attention(query, key, value, Sequences(cu_seqlens, cu_seqlens), heads)


def packed_cross_attention(
    query: Tensor, key: Tensor, value: Tensor, sequences: Sequences, heads: HeadSettings
) -> tuple[Tensor, Tensor]:
    """Attention of each sequence's queries over its keys: the torch reference of cross-attention.

    Args:
        query: `(Q, H·D)`, floating point.
        key: `(T, H·D)`.
        value: `(T, H·D)`.
        sequences: their borders.
        heads: H, scale and λ.

    Returns:
        Outputs `(Q, H·D)` and, for every query and head, the number of nonzero weights `(Q, H)` int32: zeros
        of a sequence without keys.
    """
    width = query.shape[1]
    output = torch.zeros_like(query)
    support = query.new_zeros(query.shape[0], heads.num_heads, dtype=torch.int32)
    for own, keys in sequences.slices():
        if keys.start == keys.stop:
            continue
        split = (-1, heads.num_heads, width // heads.num_heads)
        q, k, v = (
            x[rows].view(split).transpose(0, 1) for x, rows in ((query, own), (key, keys), (value, keys))
        )
        weights = _normalize(q @ k.transpose(1, 2) * heads.scale, heads.lambd)
        output[own] = (weights @ v).transpose(0, 1).reshape(-1, width)
        support[own] = (weights != 0).sum(-1, dtype=torch.int32).T
    return output, support


def attend_hidden_first(
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    hidden: HiddenFirst,
    heads: HeadSettings,
) -> Tensor:
    """Replace the outputs of queries that are no keys by their attention over their sequence's tokens.

    Args:
        output: `(T + R, H·D)`, of which the last R rows are to be replaced.
        query: `(T + R, H·D)`.
        key: `(T + R, H·D)`.
        value: `(T + R, H·D)`.
        hidden: which they are, and their sequences' tokens.
        heads: H, scale and λ.

    Returns:
        `(T + R, H·D)`.
    """
    split = (-1, heads.num_heads, query.shape[1] // heads.num_heads)
    q, k, v = (x.view(split).transpose(0, 1) for x in (query[hidden.rows], key, value))
    scores = (q @ k.transpose(1, 2) * heads.scale).masked_fill(~hidden.own, -torch.inf)
    attended = _normalize(scores, heads.lambd) @ v
    return output.index_copy(0, hidden.rows, attended.transpose(0, 1).reshape(-1, output.shape[1]))


def _normalize(scores: Tensor, lambd: float | None) -> Tensor:
    if lambd is not None:
        return sparsegen_lin(scores, lambd)
    return scores.softmax(-1).masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0)
