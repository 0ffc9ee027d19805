"""The padded forward passes: what a model's graph looks like without packing.

`eager` is Transformers' own graph, N² scores and softmax; `fused` has ONNX Runtime's `MultiHeadAttention`
in their place; `sparse` is eager sparse attention, N² scores and a `SparsegenLin` node.
"""

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from sparse_export.attention.spec import attention_of
from sparse_export.graph.nodes import multi_head_attention_node, sparsegen_lin_node
from sparse_export.tasks import Head

PaddedKind = Literal["eager", "fused", "sparse"]


class PaddedModel(nn.Module):
    """A Transformers model with the head of a task, computed on padded rows; for export only."""

    def __init__(self, model: PreTrainedModel, head: Head, kind: PaddedKind) -> None:
        super().__init__()
        attention = attention_of(model.config)
        if kind == "sparse" and (attention.pattern is not None or attention.lambd is None):
            raise ValueError(
                f"the padded sparse graph shows sparsegen-lin over all keys, this model's is {attention.name}"
            )
        self.model = model
        self.head = head
        self.model.set_attn_implementation("eager" if kind == "eager" else f"sparse_serve_padded_{kind}")

    @property
    def output_names(self) -> list[str]:
        """The name of what `forward` returns."""
        return [self.head.task.graph_output]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return the head's answer, float32 (`Head.answer_padded`); inputs `(B, L)` int64."""
        segments = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        layers = {"output_hidden_states": True} if self.head.reads_layers else {}
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, **segments, **layers)
        return self.head.answer_padded(outputs, attention_mask)


def _attend_fused(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    """`AttentionInterface` signature; `attention_mask` is the model's own `(B, L)`."""
    batch, num_heads, length, head_size = query.shape
    width = num_heads * head_size
    q, k, v = (x.transpose(1, 2).reshape(batch, length, width) for x in (query, key, value))
    output = multi_head_attention_node(q, k, v, attention_mask.to(torch.int32), num_heads, scaling)
    return output.view(batch, length, num_heads, head_size), None


def _attend_sparse(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """`AttentionInterface` signature; `attention_mask` is bool, broadcastable to the scores."""
    lambd = cast(float, attention_of(module.config).lambd)
    scores = query @ key.transpose(-1, -2) * scaling
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, -torch.inf)
    weights = sparsegen_lin_node(scores, lambd)
    return (weights @ value).transpose(1, 2), weights


AttentionInterface.register("sparse_serve_padded_fused", _attend_fused)
AttentionMaskInterface.register("sparse_serve_padded_fused", lambda *_, attention_mask, **__: attention_mask)
AttentionInterface.register("sparse_serve_padded_sparse", _attend_sparse)
AttentionMaskInterface.register("sparse_serve_padded_sparse", sdpa_mask)
