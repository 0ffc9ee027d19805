"""The packed forward pass: computation on the real tokens only.

Tokens come packed from a tokenizer, or padded, `[B, L]` ids and mask: then padding is dropped inside the
graph, and ids, segment ids and positions are gathered to T tokens. The unchanged Transformers encoder runs
once on `(1, T)`, attention stays within each sequence by its borders `cu_seqlens`, and the task's head reads
what it needs of the hidden states (see `packing` for the layout).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from sparse_export.attention.masks import LayerMask
from sparse_export.attention.measures import rho
from sparse_export.attention.spec import attention_of
from sparse_export.encoders.families import joins_neighbours, packed_position_ids, position_ids
from sparse_export.encoders.packing import PackedPass, Packing, PaddedPacking, TokenPacking
from sparse_export.encoders.patterned import layer_patterns
from sparse_export.encoders.routing import Partition
from sparse_export.graph.last_layer import compute_first_tokens_alone
from sparse_export.graph.nodes import (
    AxisSettings,
    HeadSettings,
    axis_attention_node,
    axis_hidden_first_node,
)
from sparse_export.graph.packed_attention import attend_across, attend_all
from sparse_export.graph.packed_axis import (
    attend_axis_across,
    attend_axis_hidden_first,
    packed_axis_attention,
)
from sparse_export.graph.routing import routing_of
from sparse_export.tasks import Head
from sparse_export.tasks.several import SeveralHeads
from sparse_serve.repository.measures import AXES, RHO


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
    """`AttentionInterface` signature on `(1, H, T + R, D)`; notes in `packed` what the layer attends to.

    Where first tokens alone attend, `(1, H, B, D)`, keys and values are those of `packed`.
    """
    _, num_heads, queries, head_size = query.shape
    heads = HeadSettings(
        num_heads=num_heads,
        scale=head_size**-0.5 if scaling is None else float(scaling),
        lambd=attention_of(module.config).lambd,
    )
    q, k, v = (x.transpose(1, 2).reshape(-1, num_heads * head_size) for x in (query, key, value))
    if packed.keys_and_values is not None:
        k, v = packed.keys_and_values
    attended = (
        _attend_allowed((q, k, v), packed, axis, heads)
        if packed.patterns and axis is not None
        else _attend_all((q, k, v), packed, heads)
    )
    return attended.view(1, queries, num_heads, head_size), None


def _attend_all(qkv: tuple[Tensor, Tensor, Tensor], packed: PackedPass, heads: HeadSettings) -> Tensor:
    packing = packed.packing
    output, support = (
        attend_all(qkv, packing.cu_seqlens, packing.hidden, heads)
        if packed.keys_and_values is None
        else attend_across(*qkv, packing.first_tokens(), heads)
    )
    if support is not None:
        packed.supports.append(support)
    return output


def _attend_allowed(
    qkv: tuple[Tensor, Tensor, Tensor], packed: PackedPass, mask: LayerMask, heads: HeadSettings
) -> Tensor:
    pattern, axes = packed.next_pattern(mask)
    settings = AxisSettings(heads, pattern)
    if packed.keys_and_values is not None:
        packing = packed.packing
        output, support = attend_axis_across(*qkv, packing.first, axes, packing.first_tokens(), settings)
        packed.supports.append(support)
        return output
    attend, replace = (
        (axis_attention_node, axis_hidden_first_node)
        if torch.onnx.is_in_onnx_export()
        else (packed_axis_attention, attend_axis_hidden_first)
    )
    output, support = attend(*qkv, axes, packed.packing.cu_seqlens, settings)
    packed.supports.append(support)
    hidden = packed.packing.hidden
    return output if hidden is None else replace(output, *qkv, hidden, axes, settings)


AttentionInterface.register("sparse_serve_packed", _attend)
AttentionMaskInterface.register("sparse_serve_packed", lambda *_, **__: None)


@dataclass(frozen=True)
class Tokens:
    """What the embeddings read of packed tokens.

    Attributes:
        words: ids `(1, T + R)` int64, or for families that join neighbours the embeddings of each token's
            right neighbour, itself and its left one, `(1, T + R, 3·E)`.
        positions: `(1, T + R)` int64, as the family counts them.
        segments: token types, `(1, T + R)` int64; None for families without.
    """

    words: Tensor
    positions: Tensor
    segments: Tensor | None


class PackedModel(nn.Module):
    """A Transformers model of a supported family with the head of a task, computed on packed tokens.

    A subclass says how tokens come.
    """

    def __init__(self, model: PreTrainedModel, head: Head) -> None:
        super().__init__()
        self.model = model
        self.head = head
        self.model.set_attn_implementation("sparse_serve_packed")
        has_pattern = attention_of(model.config).pattern is not None
        self.patterns = layer_patterns(model) if has_pattern else []
        self.tasks = tuple(head.heads) if isinstance(head, SeveralHeads) else ()
        if head.reads_first_tokens:
            compute_first_tokens_alone(model)
        self.joins_neighbours = joins_neighbours(model.config)
        if self.joins_neighbours:
            # The embeddings are given words joined with their neighbours, and have only to transform them, as
            # they do where the size of a word is not that of a hidden state.
            embeddings = model.base_model.embeddings
            embeddings.trigram_input, embeddings.embedding_size = False, 0

    @property
    def output_names(self) -> list[str]:
        """The names of what `forward` returns."""
        return [self.head.task.graph_output, RHO, *(AXES if self.patterns else ())]

    def answers(self, tokens: Tokens, packing: Packing, task_ids: Tensor | None) -> tuple[Tensor, ...]:
        """Answer packed tokens.

        Args:
            tokens: what the embeddings read.
            packing: how they lie.
            task_ids: `(B, 1)` int64, of a model of several tasks: each row's number among them. A row with
                another number is answered by −inf.

        Returns:
            The head's answer, float32 (`Head.answer_packed`), and, by layer, `(B, layers)` float32 each: ρ,
            the share of attention weights that are exactly zero, over heads and the row's true length (AAA,
            Eq. 9): of pairs that are not allowed, and those that sparsegen-lin leaves out, in the last layer
            of a head that reads first tokens those of that query; then, with a pattern, the shares of the
            row's tokens whose rows are on and whose columns are. All are 0 for a row without tokens.
        """
        packed = PackedPass.of(packing, self.patterns)
        states = self._states(self._embedded(tokens), packed)
        answer = self.head.answer_packed(self.model, states, packing)
        if task_ids is not None:
            answer = torch.where(_is_task(task_ids, len(self.tasks)), answer, -torch.inf)
        return answer, self._rho(packed), *_shares_on(packed)

    def by_task(self, task_ids: Tensor | None) -> Partition | None:
        """Return the rows by their tasks; None where all are of one."""
        if task_ids is None:
            return None
        # A number that is none must not take another row's answer along: it goes the way of a task.
        return Partition.of(task_ids[:, 0].clamp(0, len(self.tasks) - 1), len(self.tasks))

    def _embedded(self, tokens: Tokens) -> dict[str, Tensor]:
        """Return what the encoder is given."""
        inputs = {"position_ids": tokens.positions}
        if tokens.segments is not None:
            inputs["token_type_ids"] = tokens.segments
        return inputs | {"inputs_embeds" if self.joins_neighbours else "input_ids": tokens.words}

    def _states(self, inputs: dict[str, Tensor], packed: PackedPass) -> Sequence[Tensor]:
        """Run the encoder; return hidden states as `Head.answer_packed` reads them."""
        routed = {"routing": routing_of(packed.packing, self.tasks)} if self.tasks else {}
        if not self.head.reads_layers:
            return [self.model.base_model(**inputs, packed=packed, **routed).last_hidden_state[0]]
        outputs = self.model.base_model(**inputs, packed=packed, output_hidden_states=True, **routed)
        return [state[0] for state in outputs.hidden_states]

    def _rho(self, packed: PackedPass) -> Tensor:
        if not packed.supports:
            layers = int(self.model.config.num_hidden_layers)
            return torch.zeros_like(packed.packing.has_token, dtype=torch.float32).expand(-1, layers)
        lengths, heads = packed.packing.lengths(), packed.supports[0].shape[1]
        kept = [support.sum(1, dtype=torch.int64) for support in packed.supports]
        if not self.head.reads_first_tokens:
            return rho(packed.packing.sums(kept), lengths, heads)
        of_first = kept.pop()[:, None] * lengths  # the only query stands for N of its kind
        return rho(torch.cat([packed.packing.sums(kept), of_first], 1), lengths, heads)


class PaddedTokensModel(PackedModel):
    """Takes a padded batch of token ids, as every client of Transformers models sends it.

    The answers equal the wrapped model's own on every mask, padded on either side or with holes; a row whose
    mask is zero throughout is answered by zeros.
    """

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        task_ids: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Answer a padded batch (see `answers`).

        Args:
            input_ids: `(B, L)` int64.
            attention_mask: `(B, L)` int64, nonzero for tokens.
            token_type_ids: `(B, L)` int64, for families with segments.
            task_ids: `(B, 1)` int64, of a model of several tasks.
        """
        packing = PaddedPacking.of(attention_mask, self.by_task(task_ids))
        positions = packing.pack(position_ids(self.model.config, input_ids))
        segments = None if token_type_ids is None else packing.pack(token_type_ids)
        words = self._joined(input_ids, packing) if self.joins_neighbours else packing.pack(input_ids)
        return self.answers(Tokens(words, positions, segments), packing, task_ids)

    def _joined(self, input_ids: Tensor, packing: PaddedPacking) -> Tensor:
        """Return the embeddings of tokens joined with their neighbours, `(1, T + R, 3·E)`.

        Neighbours are those of the padded row, hidden ones too. Beyond its ends there is padding, whose
        embedding is zero (see `families.silence_padding`).
        """
        pad_id = self.model.config.pad_token_id
        # Where the mask hides it, a client may have sent any number: one that is no id counts as padding.
        is_id = (input_ids >= 0) & (input_ids < self.model.config.vocab_size)
        ids = torch.where(is_id, input_ids, pad_id)
        right = nn.functional.pad(ids[:, 1:], (0, 1), value=pad_id)
        left = nn.functional.pad(ids[:, :-1], (1, 0), value=pad_id)
        embed = self.model.get_input_embeddings()
        return torch.cat([embed(packing.pack(each)) for each in (right, input_ids, left)], dim=-1)


class PackedTokensModel(PackedModel):
    """Takes tokens packed, as a tokenizer in the graph gives them."""

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        token_type_ids: Tensor | None = None,
        task_ids: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Answer rows of one or more tokens each (see `answers`).

        Args:
            input_ids: `(T,)` int64.
            positions: `(T,)` int64, each token's number within its row.
            cu_seqlens: `(B + 1,)` int32, the borders of the rows.
            token_type_ids: `(T,)` int64, for families with segments.
            task_ids: `(B, 1)` int64, of a model of several tasks.
        """
        packing = TokenPacking.of(positions, cu_seqlens, self.by_task(task_ids))
        tokens = Tokens(
            words=self._joined(input_ids, positions) if self.joins_neighbours else input_ids[None],
            positions=packed_position_ids(self.model.config, input_ids, positions)[None],
            segments=None if token_type_ids is None else token_type_ids[None],
        )
        return self.answers(tokens, packing, task_ids)

    def _joined(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Return the embeddings of tokens joined with their neighbours in the row, `(1, T, 3·E)`."""
        pad_id = self.model.config.pad_token_id
        is_first = positions == 0
        is_last = nn.functional.pad(is_first[1:], (0, 1), value=True)
        right = nn.functional.pad(input_ids[1:], (0, 1), value=pad_id)
        left = nn.functional.pad(input_ids[:-1], (1, 0), value=pad_id)
        joined = (torch.where(is_last, pad_id, right), input_ids, torch.where(is_first, pad_id, left))
        embed = self.model.get_input_embeddings()
        return torch.cat([embed(each) for each in joined], dim=-1)[None]


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


def _is_task(task_ids: Tensor, count: int) -> Tensor:
    return (task_ids >= 0) & (task_ids < count)
