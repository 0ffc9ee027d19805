"""Attention on the allowed pairs of packed sequences: the torch reference of what a graph's nodes do.

Rows and columns that are on come in as tensors, global ones among them; diagonals and random keys are the
layer's own. `attention.axis_attention`, on padded rows, is the specification of both.
"""

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from sparse_export.attention.implementations import axis_attention
from sparse_export.encoders.packing import Axes, HiddenFirst, Sequences
from sparse_export.graph.nodes import AxisSettings, HeadSettings, axis_cross_attention_node


def packed_axis_attention(
    query: Tensor, key: Tensor, value: Tensor, axes: Axes, cu_seqlens: Tensor, settings: AxisSettings
) -> tuple[Tensor, Tensor]:
    """Attention on the allowed pairs of each sequence of a packed batch: the reference of `AxisAttention`.

    Args:
        query: `(T, H·D)`, floating point.
        key: `(T, H·D)`.
        value: `(T, H·D)`.
        axes: rows and columns that are on, `(T,)` each.
        cu_seqlens: sequence borders `(B + 1,)` int32, from 0 to T.
        settings: H, scale, λ, diagonals and random keys.

    Returns:
        Outputs `(T, H·D)`, zeros where no key is allowed, and for every row and head the number of weights
        that are not zero `(T, H)` int32: with softmax that of the allowed keys, with sparsegen-lin the
        support among them.
    """
    heads = settings.heads
    pattern = replace(settings.pattern, global_size=0)
    output = torch.empty_like(query)
    support = query.new_zeros(query.shape[0], heads.num_heads, dtype=torch.int32)
    borders: list[int] = cu_seqlens.tolist()
    for start, end in pairwise(borders):
        own = slice(start, end)
        ranks = torch.arange(end - start, device=query.device)[None]
        length = torch.tensor([end - start], device=query.device)
        pairs = pattern.allowed(ranks, length, axes.rows[None, own], axes.columns[None, own])[0]
        q, k, v = (_split(x[own], heads) for x in (query, key, value))
        attended, weights = axis_attention(q, k, v, pairs, heads.lambd, heads.scale)
        kept = pairs.expand_as(weights) if heads.lambd is None else weights != 0
        output[own] = attended.transpose(0, 1).reshape(end - start, query.shape[1])
        support[own] = kept.sum(-1, dtype=torch.int32).T
    return output, support


def attend_axis_across(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_tokens: Tensor,
    axes: Axes,
    sequences: Sequences,
    settings: AxisSettings,
) -> tuple[Tensor, Tensor]:
    """Attend from some queries: in an exported graph by the op, elsewhere by its reference."""
    in_graph = torch.onnx.is_in_onnx_export()
    attend = axis_cross_attention_node if in_graph else packed_axis_cross_attention
    return attend(query, key, value, query_tokens, axes, sequences, settings)


def packed_axis_cross_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_tokens: Tensor,
    axes: Axes,
    sequences: Sequences,
    settings: AxisSettings,
) -> tuple[Tensor, Tensor]:
    """Attention of some queries on their allowed pairs: the reference of `AxisCrossAttention`.

    Args:
        query: `(Q, H·D)`, floating point.
        key: `(T, H·D)`.
        value: `(T, H·D)`.
        query_tokens: `(Q,)` int64, which of the T tokens each query is. One that is no key of the query's
            sequence stands before its first: it is number −1 on diagonals and for random keys.
        axes: rows and columns that are on, `(T,)` each.
        sequences: the borders of queries and keys.
        settings: H, scale, λ, diagonals and random keys.

    Returns:
        Outputs `(Q, H·D)` and support `(Q, H)` int32, as `packed_axis_attention`.
    """
    heads = settings.heads
    output = torch.zeros_like(query)
    support = query.new_zeros(query.shape[0], heads.num_heads, dtype=torch.int32)
    for own, keys in sequences.slices():
        if own.start == own.stop or keys.start == keys.stop:
            continue
        tokens = query_tokens[own]
        is_key = (tokens >= keys.start) & (tokens < keys.stop)
        ranks = torch.arange(keys.stop - keys.start, device=query.device)
        lengths = torch.full_like(tokens, len(ranks))
        pairs = axes.rows[tokens][:, None] | axes.columns[keys][None]
        off_axes = settings.pattern.off_axes(torch.where(is_key, tokens - keys.start, -1), ranks, lengths)
        pairs = pairs | off_axes
        q, k, v = (_split(x[rows], heads) for x, rows in ((query, own), (key, keys), (value, keys)))
        attended, weights = axis_attention(q, k, v, pairs, heads.lambd, heads.scale)
        kept = pairs.expand_as(weights) if heads.lambd is None else weights != 0
        output[own] = attended.transpose(0, 1).reshape(-1, query.shape[1])
        support[own] = kept.sum(-1, dtype=torch.int32).T
    return output, support


def attend_axis_hidden_first(
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    hidden: HiddenFirst,
    axes: Axes,
    settings: AxisSettings,
) -> Tensor:
    """Replace the outputs of queries that are no keys by attention over the allowed of their tokens.

    Such a query stands before its sequence's first token: it is number −1 on diagonals and for random keys.

    Args:
        output: `(T + R, H·D)`, of which the last R rows are to be replaced.
        query: `(T + R, H·D)`.
        key: `(T + R, H·D)`.
        value: `(T + R, H·D)`.
        hidden: which they are, and their sequences' tokens.
        axes: rows and columns that are on, `(T + R,)` each.
        settings: H, scale, λ, diagonals and random keys.

    Returns:
        `(T + R, H·D)`.
    """
    heads, pattern = settings.heads, settings.pattern
    rank = hidden.ranks[hidden.rows]
    pairs = axes.rows[hidden.rows][:, None] | axes.columns[None, :]
    pairs = pairs | pattern.off_axes(rank, hidden.ranks, hidden.own.sum(1))
    q, k, v = (_split(x, heads) for x in (query[hidden.rows], key, value))
    attended, _ = axis_attention(q, k, v, pairs & hidden.own, heads.lambd, heads.scale)
    return output.index_copy(0, hidden.rows, attended.transpose(0, 1).reshape(-1, output.shape[1]))


def _split(x: Tensor, heads: HeadSettings) -> Tensor:
    """Return packed `(T, H·D)` as `(H, T, D)`."""
    return x.view(-1, heads.num_heads, x.shape[1] // heads.num_heads).transpose(0, 1)
