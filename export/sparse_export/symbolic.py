"""The ONNX nodes that stand for attention while a model is traced for export."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparse_export.functions import GRAPH_DOMAIN
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


def packed_attention_node(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, heads: HeadSettings
) -> tuple[Tensor, Tensor | None]:
    """Emit `SparsegenAttention`, or `SoftmaxAttention` which has no support; tensors as in `packed`."""
    name = "SoftmaxAttention" if heads.lambd is None else "SparsegenAttention"
    outputs = torch.onnx.ops.symbolic_multi_out(
        f"{DOMAIN}::{name}",
        (query, key, value, cu_seqlens),
        heads.attributes(),
        dtypes=(query.dtype, torch.int32)[: 1 if heads.lambd is None else 2],
        shapes=(query.shape, (query.shape[0], heads.num_heads))[: 1 if heads.lambd is None else 2],
        version=OPSET_VERSION,
    )
    return outputs[0], None if heads.lambd is None else outputs[1]


def hidden_first_node(
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Tensor,
    allowed: Tensor,
    heads: HeadSettings,
) -> Tensor:
    """Emit the model-local function that attends from hidden first tokens; tensors as in `packed`."""
    name = "SoftmaxHiddenFirst" if heads.lambd is None else "SparsegenHiddenFirst"
    replaced: Tensor = torch.onnx.ops.symbolic(
        f"{GRAPH_DOMAIN}::{name}",
        (output, query, key, value, rows, allowed),
        heads.attributes(),
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
