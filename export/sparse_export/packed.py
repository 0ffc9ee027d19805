"""The packed forward pass: `[B, L]` ids and mask in, computation on the real tokens only.

Padding is dropped inside the graph: ids, segment ids and positions are gathered to T tokens, the unchanged
Transformers encoder runs once on `(1, T)`, attention stays within each sequence by its borders `cu_seqlens`,
and the head reads each sequence's first hidden state.

Two details keep the answers Transformers' own for every mask. A head reads column 0 even where the mask
hides it (left padding): that position is no key, but it is a query. Such rows are rare, so their column-0
tokens are appended behind the T real tokens as queries without keys (R of them, normally 0). And what the
embedding of a token takes from beside it, position or neighbours, is read from the padded row.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from sparse_export.checkpoint import AttentionSpec
from sparse_export.families import family_of, joins_neighbours, position_ids
from sparse_export.sparsegen import sparsegen_lin
from sparse_export.symbolic import HeadSettings, hidden_first_node, packed_attention_node


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
    rows: Tensor,
    allowed: Tensor,
    heads: HeadSettings,
) -> Tensor:
    """Replace the outputs of queries that are no keys by their attention over their sequence's tokens.

    Args:
        output: `(T + R, H·D)`, of which the rows `rows` are to be replaced.
        query: `(T + R, H·D)`.
        key: `(T + R, H·D)`.
        value: `(T + R, H·D)`.
        rows: `(R,)` int64, the positions T … T + R − 1.
        allowed: `(R, T + R)` bool: which tokens each of them attends to.
        heads: H, scale and λ.

    Returns:
        `(T + R, H·D)`.
    """
    split = (-1, heads.num_heads, query.shape[1] // heads.num_heads)
    q, k, v = (x.view(split).transpose(0, 1) for x in (query[rows], key, value))
    scores = (q @ k.transpose(1, 2) * heads.scale).masked_fill(~allowed, -torch.inf)
    attended = _normalize(scores, heads.lambd) @ v
    return output.index_copy(0, rows, attended.transpose(0, 1).reshape(len(rows), output.shape[1]))


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
        hidden: `(R,)` int64, T … T + R − 1.
        allowed: `(R, T + R)` bool, the tokens that each hidden first token attends to.
        has_token: `(B, 1)` bool, False where the mask is zero throughout.
    """

    tokens: Tensor
    borders: Tensor
    cu_seqlens: Tensor
    first: Tensor
    hidden: Tensor
    allowed: Tensor
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
        rank = hides_first.to(torch.int64).cumsum(0) - 1
        # Rows without any token have nothing to read; index 0 exists, and the logits are zeroed.
        first = torch.where(hides_first, borders[-1] + rank, torch.where(has_token, borders[:-1], 0))
        owner_of_token = torch.cat([real // length, torch.full_like(owners, -1)])
        return cls(
            tokens=tokens,
            borders=borders,
            cu_seqlens=torch.cat([borders, hidden + 1]).to(torch.int32),
            first=first,
            hidden=hidden,
            allowed=owners[:, None] == owner_of_token[None, :],
            has_token=has_token[:, None],
        )

    def pack(self, ids: Tensor) -> Tensor:
        """Gather ids, `(B, L)` to `(1, T + R)`."""
        packed = ids.reshape(-1)[self.tokens][None]
        # ONNX's Gather counts negative ids from the end, torch refuses them: make them too large for both.
        return torch.where(packed < 0, torch.iinfo(torch.int32).max, packed)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    packing: Packing,
    supports: list[Tensor],
    **_unused: Any,
) -> tuple[Tensor, None]:
    """`AttentionInterface` signature on `(1, H, T + R, D)`; appends each layer's support to `supports`."""
    _, num_heads, tokens, head_size = query.shape
    heads = HeadSettings(
        num_heads=num_heads,
        scale=head_size**-0.5 if scaling is None else float(scaling),
        lambd=AttentionSpec.from_config(module.config).lambd,
    )
    q, k, v = (x.transpose(1, 2).reshape(-1, num_heads * head_size) for x in (query, key, value))
    tracing = torch.onnx.is_in_onnx_export()
    attend, replace = (
        (packed_attention_node, hidden_first_node) if tracing else (packed_attention, attend_hidden_first)
    )
    output, support = attend(q, k, v, packing.cu_seqlens, heads)
    if support is not None:
        supports.append(support)
    output = replace(output, q, k, v, packing.hidden, packing.allowed, heads)
    return output.view(1, tokens, num_heads, head_size), None


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
        self.attention = AttentionSpec.from_config(model.config)
        self.family = family_of(model.config)
        self.joins_neighbours = joins_neighbours(model.config)
        if self.joins_neighbours:
            # The embeddings are given words joined with their neighbours, and have only to transform them, as
            # they do where the size of a word is not that of a hidden state.
            embeddings = model.base_model.embeddings
            embeddings.trigram_input, embeddings.embedding_size = False, 0

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Classify a padded batch.

        Args:
            input_ids: `(B, L)` int64.
            attention_mask: `(B, L)` int64, nonzero for tokens.
            token_type_ids: `(B, L)` int64, for families with segments.

        Returns:
            Logits `(B, C)` float32 and ρ `(B, layers)` float32: per layer the share of attention weights that
            are exactly zero, over heads and the row's true length (AAA, Eq. 9); 0 for a row without tokens.
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
        supports: list[Tensor] = []
        hidden = self.model.base_model(**inputs, packing=packing, supports=supports).last_hidden_state
        logits = self.family.head(self.model, hidden[0].index_select(0, packing.first)[:, None])
        return torch.where(packing.has_token, logits.float(), 0), self._sparsity(supports, packing)

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

    def _sparsity(self, supports: list[Tensor], packing: Packing) -> Tensor:
        length = (packing.borders[1:] - packing.borders[:-1]).to(torch.float32)[:, None]
        if self.attention.kind == "softmax":
            return torch.zeros_like(length).expand(-1, self.model.config.num_hidden_layers)
        kept = torch.stack([support.sum(1, dtype=torch.int64) for support in supports], 1).cumsum(0)
        kept = nn.functional.pad(kept, (0, 0, 1, 0))
        in_sequence = kept[packing.borders[1:]] - kept[packing.borders[:-1]]
        weights = supports[0].shape[1] * length**2
        return torch.where(weights > 0, 1 - in_sequence.to(torch.float32) / weights.clamp_min(1), 0)
