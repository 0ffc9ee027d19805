"""The packed forward pass: `[B, L]` ids and mask in, computation on the real tokens only.

Padding is dropped inside the graph: ids, segment ids and positions are gathered to T tokens, the unchanged
Transformers encoder runs once on `(1, T)`, attention stays within each sequence by its borders `cu_seqlens`,
and the head reads each sequence's first hidden state.

Two details keep the answers Transformers' own for every mask. A head reads column 0 even where the mask
hides it (left padding): that position is no key, but it is a query. Such rows are rare, so their column-0
tokens are appended behind the T real tokens as queries without keys (R of them, normally 0). And what the
embedding of a token takes from beside it, position or neighbours, is read from the padded row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from sparse_export.attention.patterns import LayerPattern
from sparse_export.attention.sparsegen import sparsegen_lin
from sparse_export.encoders.axis import LayerMask, layer_patterns
from sparse_export.encoders.checkpoint import AttentionSpec
from sparse_export.encoders.families import family_of, joins_neighbours, position_ids
from sparse_export.graph.nodes import (
    Axes,
    AxisSettings,
    HeadSettings,
    HiddenFirst,
    axis_attention_node,
    axis_hidden_first_node,
    hidden_first_node,
    packed_attention_node,
)
from sparse_export.graph.packed_axis import attend_axis_hidden_first, packed_axis_attention


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
    tokens, width = query.shape
    output = torch.empty_like(query)
    support = query.new_zeros(tokens, heads.num_heads, dtype=torch.int32)
    borders = cu_seqlens.tolist()
    for start, end in pairwise(borders):
        rows = slice(start, end)
        split = (end - start, heads.num_heads, width // heads.num_heads)
        q, k, v = (x[rows].view(split).transpose(0, 1) for x in (query, key, value))
        weights = _normalize(q @ k.transpose(1, 2) * heads.scale, heads.lambd)
        output[rows] = (weights @ v).transpose(0, 1).reshape(end - start, width)
        support[rows] = (weights != 0).sum(-1, dtype=torch.int32).T
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
    return scores.softmax(-1) if lambd is None else sparsegen_lin(scores, lambd)


@dataclass(frozen=True)
class Packing:
    """How the tokens of a `[B, L]` batch lie in a packed one of T tokens and R hidden first tokens.

    Attributes:
        tokens: `(T + R,)` int64, positions in the flattened `[B · L]` batch.
        borders: `(B + 1,)` int64, borders of the B sequences.
        cu_seqlens: `(B + 1 + R,)` int32, the same with each hidden first token as a sequence of one.
        first: `(B,)` int64, where the head finds each row's first token.
        hidden: the hidden first tokens, which attend as queries and are no keys.
        has_token: `(B, 1)` bool, False where the mask is zero throughout.
    """

    tokens: Tensor
    borders: Tensor
    cu_seqlens: Tensor
    first: Tensor
    hidden: HiddenFirst
    has_token: Tensor

    @classmethod
    def of(cls, attention_mask: Tensor) -> "Packing":
        """Lay out a batch by its mask `(B, L)`, where nonzero marks a token."""
        keep = attention_mask != 0
        batch, length = keep.shape
        sequence_length = keep.sum(1)
        has_token = sequence_length > 0
        # An entirely empty batch keeps its column 0, so that no tensor below is without rows.
        hides_first = ~keep[:, 0] & (has_token | ~has_token.any())

        real = keep.reshape(-1).nonzero().squeeze(1)
        owners = hides_first.nonzero().squeeze(1)
        cumulative = sequence_length.cumsum(0)
        borders = torch.cat([cumulative.new_zeros(1), cumulative])
        position = torch.arange(batch * length, device=keep.device).view(batch, length)[:, 0]
        tokens = torch.cat([real, position[owners]])
        hidden = torch.arange(tokens.shape[0], device=keep.device)[real.shape[0] :]
        nth_hidden = hides_first.to(torch.int64).cumsum(0) - 1
        # Rows without any token have nothing to read; index 0 exists, and the logits are zeroed.
        first = torch.where(hides_first, borders[-1] + nth_hidden, torch.where(has_token, borders[:-1], 0))
        owner_of_token = torch.cat([real // length, torch.full_like(owners, -1)])
        return cls(
            tokens=tokens,
            borders=borders,
            cu_seqlens=torch.cat([borders, hidden + 1]).to(torch.int32),
            first=first,
            hidden=HiddenFirst(
                rows=hidden,
                own=owners[:, None] == owner_of_token[None, :],
                ranks=(keep.to(torch.int64).cumsum(1) - 1).reshape(-1)[tokens],
            ),
            has_token=has_token[:, None],
        )

    def lengths(self) -> Tensor:
        """Return how many tokens each row has, `(B, 1)` float32."""
        return (self.borders[1:] - self.borders[:-1]).to(torch.float32)[:, None]

    def sums(self, layers: Sequence[Tensor]) -> Tensor:
        """Sum numbers of tokens, `(T + R,)` int64 by layer, over each row's tokens: `(B, layers)` float32."""
        running = nn.functional.pad(torch.stack([*layers], 1).cumsum(0), (0, 0, 1, 0))
        return (running[self.borders[1:]] - running[self.borders[:-1]]).to(torch.float32)

    def pack(self, ids: Tensor) -> Tensor:
        """Gather ids, `(B, L)` to `(1, T + R)`."""
        packed = ids.reshape(-1)[self.tokens][None]
        # ONNX's Gather counts negative ids from the end, torch refuses them: make them too large for both.
        return torch.where(packed < 0, torch.iinfo(torch.int32).max, packed)


@dataclass(frozen=True)
class PackedPass:
    """What the layers of one packed forward pass share.

    Attributes:
        packing: how the tokens lie.
        patterns: each layer's, as it is served; none where every key is allowed.
        always_on: `(T + R,)` bool, whose row and column are on in every layer.
        supports: what each layer's attention kept, `(T + R, H)` int32; none where it keeps everything.
        axes: each layer's rows and columns that are on, where it has a pattern.
    """

    packing: Packing
    patterns: Sequence[LayerPattern]
    always_on: Tensor
    supports: list[Tensor] = field(default_factory=list)
    axes: list[Axes] = field(default_factory=list)

    @classmethod
    def of(cls, packing: Packing, patterns: Sequence[LayerPattern]) -> "PackedPass":
        """Begin a pass; all patterns have the same global part."""
        pattern = patterns[0] if patterns else LayerPattern()
        return cls(packing, patterns, pattern.is_global(packing.hidden.ranks))

    def next_pattern(self, mask: LayerMask) -> tuple[LayerPattern, Axes]:
        """Return what the next layer may attend to, and note its rows and columns."""
        pattern = self.patterns[len(self.axes)]
        rows, columns = (self._on(learned, pattern) for learned in (mask.rows, mask.columns))
        self.axes.append(Axes(rows, columns))
        return pattern, self.axes[-1]

    def _on(self, learned: Tensor | None, pattern: LayerPattern) -> Tensor:
        if learned is None:
            return self.always_on
        learned = learned.reshape(-1)
        return learned | self.always_on if pattern.global_size else learned


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    packed: PackedPass,
    axis: LayerMask | None = None,
    **_unused: Any,
) -> tuple[Tensor, None]:
    """`AttentionInterface` signature on `(1, H, T + R, D)`; notes in `packed` what the layer attends to."""
    _, num_heads, tokens, head_size = query.shape
    heads = HeadSettings(
        num_heads=num_heads,
        scale=head_size**-0.5 if scaling is None else float(scaling),
        lambd=AttentionSpec.from_config(module.config).lambd,
    )
    q, k, v = (x.transpose(1, 2).reshape(-1, num_heads * head_size) for x in (query, key, value))
    attended = (
        _attend_allowed((q, k, v), packed, axis, heads)
        if packed.patterns and axis is not None
        else _attend_all((q, k, v), packed, heads)
    )
    return attended.view(1, tokens, num_heads, head_size), None


def _attend_all(qkv: tuple[Tensor, Tensor, Tensor], packed: PackedPass, heads: HeadSettings) -> Tensor:
    attend, replace = (
        (packed_attention_node, hidden_first_node)
        if torch.onnx.is_in_onnx_export()
        else (packed_attention, attend_hidden_first)
    )
    output, support = attend(*qkv, packed.packing.cu_seqlens, heads)
    if support is not None:
        packed.supports.append(support)
    return replace(output, *qkv, packed.packing.hidden, heads)


def _attend_allowed(
    qkv: tuple[Tensor, Tensor, Tensor], packed: PackedPass, mask: LayerMask, heads: HeadSettings
) -> Tensor:
    pattern, axes = packed.next_pattern(mask)
    settings = AxisSettings(heads, pattern)
    attend, replace = (
        (axis_attention_node, axis_hidden_first_node)
        if torch.onnx.is_in_onnx_export()
        else (packed_axis_attention, attend_axis_hidden_first)
    )
    output, support = attend(*qkv, axes, packed.packing.cu_seqlens, settings)
    packed.supports.append(support)
    return replace(output, *qkv, packed.packing.hidden, axes, settings)


AttentionInterface.register("sparse_serve_packed", _attend)
AttentionMaskInterface.register("sparse_serve_packed", lambda *_, **__: None)


class PackedClassifier(nn.Module):
    """A Transformers classifier of a supported family, computed on packed tokens.

    The answers equal the wrapped model's own on every mask, padded on either side or with holes; a row whose
    mask is zero throughout gets logits 0.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.model.set_attn_implementation("sparse_serve_packed")
        has_pattern = AttentionSpec.from_config(model.config).pattern is not None
        self.patterns = layer_patterns(model) if has_pattern else []
        self.family = family_of(model.config)
        self.joins_neighbours = joins_neighbours(model.config)
        if self.joins_neighbours:
            # The embeddings are given words joined with their neighbours, and have only to transform them, as
            # they do where the size of a word is not that of a hidden state.
            embeddings = model.base_model.embeddings
            embeddings.trigram_input, embeddings.embedding_size = False, 0

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Classify a padded batch.

        Args:
            input_ids: `(B, L)` int64.
            attention_mask: `(B, L)` int64, nonzero for tokens.
            token_type_ids: `(B, L)` int64, for families with segments.

        Returns:
            Logits `(B, C)` float32 and, by layer, `(B, layers)` float32 each: ρ, the share of attention
            weights that are exactly zero, over heads and the row's true length (AAA, Eq. 9): of pairs that
            are not allowed, and those that sparsegen-lin leaves out; then, with a pattern, the shares of the
            row's tokens whose rows are on and whose columns are. All are 0 for a row without tokens.
        """
        packing = Packing.of(attention_mask)
        positions = position_ids(self.model.config, input_ids)
        inputs = {"position_ids": packing.pack(positions)}
        if token_type_ids is not None:
            inputs["token_type_ids"] = packing.pack(token_type_ids)
        if self.joins_neighbours:
            inputs["inputs_embeds"] = self._joined_embeddings(input_ids, packing)
        else:
            inputs["input_ids"] = packing.pack(input_ids)
        packed = PackedPass.of(packing, self.patterns)
        hidden = self.model.base_model(**inputs, packed=packed).last_hidden_state
        logits = self.family.head(self.model, hidden[0].index_select(0, packing.first)[:, None])
        logits = torch.where(packing.has_token, logits.float(), 0)
        return logits, self._sparsity(packed), *_shares_on(packed)

    def _joined_embeddings(self, input_ids: Tensor, packing: Packing) -> Tensor:
        """Return `(1, T + R, 3·E)`: the embeddings of each token's right neighbour, itself and its left one.

        Neighbours are those of the padded row, hidden ones too. Beyond its ends there is padding, whose
        embedding is zero (see `families.silence_padding`).
        """
        pad_id = self.model.config.pad_token_id
        embed = self.model.get_input_embeddings()
        # Where the mask hides it, a client may have sent any number: one that is no id counts as padding.
        is_id = (input_ids >= 0) & (input_ids < self.model.config.vocab_size)
        ids = torch.where(is_id, input_ids, pad_id)
        right = nn.functional.pad(ids[:, 1:], (0, 1), value=pad_id)
        left = nn.functional.pad(ids[:, :-1], (1, 0), value=pad_id)
        return torch.cat([embed(packing.pack(each)) for each in (right, input_ids, left)], dim=-1)

    def _sparsity(self, packed: PackedPass) -> Tensor:
        if not packed.supports:
            layers = int(self.model.config.num_hidden_layers)
            return torch.zeros_like(packed.packing.has_token, dtype=torch.float32).expand(-1, layers)
        kept = packed.packing.sums([support.sum(1, dtype=torch.int64) for support in packed.supports])
        weights = packed.supports[0].shape[1] * packed.packing.lengths() ** 2
        return torch.where(weights > 0, 1 - kept / weights.clamp_min(1), 0)


def _shares_on(packed: PackedPass) -> tuple[Tensor, ...]:
    """Return the shares of tokens whose rows and whose columns are on, `(B, layers)` each, if any can be."""
    if not packed.axes:
        return ()
    lengths = packed.packing.lengths().clamp_min(1)
    rows, columns = (
        packed.packing.sums([on.to(torch.int64) for on in each])
        for each in ([axes.rows for axes in packed.axes], [axes.columns for axes in packed.axes])
    )
    return rows / lengths, columns / lengths
