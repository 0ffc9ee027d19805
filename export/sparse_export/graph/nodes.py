"""The ONNX nodes that stand for attention while a model is traced for export."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparse_export.attention.patterns import LayerPattern
from sparse_export.encoders.packing import Axes, HiddenFirst, Sequences
from sparse_export.graph.functions import GRAPH_DOMAIN
from sparse_serve.op_library import DOMAIN, OPSET_VERSION


@dataclass(frozen=True)
class HeadSettings:
    """Attributes of one attention node.

    Attributes:
        num_heads: H.
        scale: factor on QKᵀ.
        lambd: λ of sparsegen-lin (SSAF, Eq. 4); None for softmax.
    """

    num_heads: int
    scale: float
    lambd: float | None

    def attributes(self) -> dict[str, Any]:
        """Return the node attributes; softmax nodes have no `lambd`."""
        common: dict[str, Any] = {"num_heads": self.num_heads, "scale": self.scale}
        return common if self.lambd is None else common | {"lambd": self.lambd}


@dataclass(frozen=True)
class AxisSettings:
    """Attributes of one node of attention over allowed pairs.

    Attributes:
        heads: H, scale and λ; without λ the normaliser over the allowed keys is softmax.
        pattern: the layer's diagonals and random keys; its global rows and columns are inputs of the node.
    """

    heads: HeadSettings
    pattern: LayerPattern

    def attributes(self) -> dict[str, Any]:
        """Return the node attributes; those whose absence says the same are left out."""
        return {
            **self.heads.attributes(),
            "normalizer": "softmax" if self.heads.lambd is None else "sparsegen",
            **({"diagonals": list(self.pattern.diagonals)} if self.pattern.diagonals else {}),
            **(
                {"random_keys": self.pattern.random_keys, "seed": self.pattern.seed}
                if self.pattern.random_keys
                else {}
            ),
        }


def packed_attention_node(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, heads: HeadSettings
) -> tuple[Tensor, Tensor | None]:
    """Emit `SparsegenAttention`, or `SoftmaxAttention` which has no support; tensors as in `packed`."""
    return _attention_node("Attention", (query, key, value, cu_seqlens), heads)


def packed_cross_attention_node(
    query: Tensor, key: Tensor, value: Tensor, sequences: Sequences, heads: HeadSettings
) -> tuple[Tensor, Tensor | None]:
    """Emit `SparsegenCrossAttention` or `SoftmaxCrossAttention`; tensors as in `packed_attention`."""
    borders = sequences.cu_seqlens_q, sequences.cu_seqlens_k
    return _attention_node("CrossAttention", (query, key, value, *borders), heads)


def _attention_node(
    kind: str, inputs: tuple[Tensor, ...], heads: HeadSettings
) -> tuple[Tensor, Tensor | None]:
    query = inputs[0]
    outputs = torch.onnx.ops.symbolic_multi_out(
        f"{DOMAIN}::{'Softmax' if heads.lambd is None else 'Sparsegen'}{kind}",
        inputs,
        heads.attributes(),
        dtypes=(query.dtype, torch.int32)[: 1 if heads.lambd is None else 2],
        shapes=(query.shape, (query.shape[0], heads.num_heads))[: 1 if heads.lambd is None else 2],
        version=OPSET_VERSION,
    )
    return outputs[0], None if heads.lambd is None else outputs[1]


def axis_attention_node(
    query: Tensor, key: Tensor, value: Tensor, axes: Axes, cu_seqlens: Tensor, settings: AxisSettings
) -> tuple[Tensor, Tensor]:
    """Emit `AxisAttention`; tensors as in `packed_axis`."""
    output, support = torch.onnx.ops.symbolic_multi_out(
        f"{DOMAIN}::AxisAttention",
        (query, key, value, axes.rows, axes.columns, cu_seqlens),
        settings.attributes(),
        dtypes=(query.dtype, torch.int32),
        shapes=(query.shape, (query.shape[0], settings.heads.num_heads)),
        version=OPSET_VERSION,
    )
    return output, support


def axis_cross_attention_node(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_tokens: Tensor,
    axes: Axes,
    sequences: Sequences,
    settings: AxisSettings,
) -> tuple[Tensor, Tensor]:
    """Emit `AxisCrossAttention`; tensors as in `packed_axis`."""
    borders = sequences.cu_seqlens_q, sequences.cu_seqlens_k
    output, support = torch.onnx.ops.symbolic_multi_out(
        f"{DOMAIN}::AxisCrossAttention",
        (query, key, value, query_tokens, axes.rows, axes.columns, *borders),
        settings.attributes(),
        dtypes=(query.dtype, torch.int32),
        shapes=(query.shape, (query.shape[0], settings.heads.num_heads)),
        version=OPSET_VERSION,
    )
    return output, support


def hidden_first_node(
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    hidden: HiddenFirst,
    heads: HeadSettings,
) -> Tensor:
    """Emit the model-local function that attends from hidden first tokens; tensors as in `packed`."""
    name = "SoftmaxHiddenFirst" if heads.lambd is None else "SparsegenHiddenFirst"
    replaced: Tensor = torch.onnx.ops.symbolic(
        f"{GRAPH_DOMAIN}::{name}",
        (output, query, key, value, hidden.rows, hidden.own),
        heads.attributes(),
        dtype=output.dtype,
        shape=output.shape,
        version=OPSET_VERSION,
    )
    return replaced


def axis_hidden_first_node(
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    hidden: HiddenFirst,
    axes: Axes,
    settings: AxisSettings,
) -> Tensor:
    """Emit the model-local function that attends from hidden first tokens; tensors as in `packed_axis`."""
    replaced: Tensor = torch.onnx.ops.symbolic(
        f"{GRAPH_DOMAIN}::AxisHiddenFirst",
        (output, query, key, value, hidden.rows, hidden.own, axes.rows, axes.columns, hidden.ranks),
        settings.attributes(),
        dtype=output.dtype,
        shape=output.shape,
        version=OPSET_VERSION,
    )
    return replaced


def sparsegen_lin_node(scores: Tensor, lambd: float) -> Tensor:
    """Emit `SparsegenLin` over the last axis of `scores`, any shape."""
    weights: Tensor = torch.onnx.ops.symbolic(
        f"{DOMAIN}::SparsegenLin",
        (scores,),
        {"lambd": lambd, "axis": -1},
        dtype=scores.dtype,
        shape=scores.shape,
        version=OPSET_VERSION,
    )
    return weights


def multi_head_attention_node(
    query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor, num_heads: int, scale: float
) -> Tensor:
    """Emit ONNX Runtime's fused dense attention, query, key, value `(B, L, H·D)`, mask `(B, L)` int32."""
    output: Tensor = torch.onnx.ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        (query, key, value, None, key_padding_mask),
        {"num_heads": num_heads, "scale": scale},
        dtype=query.dtype,
        shape=query.shape,
        version=1,
    )
    return output
