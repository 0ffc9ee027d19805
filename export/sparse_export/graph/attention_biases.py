"""Biases of keys and values, which attention does not have to add.

What is added to every score of a query changes none of its weights, be they of softmax or of sparsegen-lin:
q·(k + b) = q·k + q·b, and the bias of the keys is dropped. Where a query's weights sum to 1, the bias of the
values comes out of attention as it went in, and the linear layer behind adds it: (v + b) W + c = v W + (b W +
c). ONNX Runtime writes a bias on all rows of a product before it multiplies, on one core.
"""

from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from sparse_export.graph.constants import constant
from sparse_export.graph.matching import biased
from sparse_serve.op_library import DOMAIN

# Their weights sum to 1 wherever there is a key.
_OVER_ALL_KEYS = {
    "SoftmaxAttention",
    "SoftmaxCrossAttention",
    "SparsegenAttention",
    "SparsegenCrossAttention",
}
# Without an allowed key a query's output is 0, whatever is added to the values.
_OVER_ALLOWED_KEYS = {"AxisAttention", "AxisCrossAttention"}
_KEY, _VALUE = 1, 2


def fold_attention_biases(model: ir.Model) -> None:
    """Rewrite a traced graph of packed tokens in place; each of its sequences must have a token."""
    graph = model.graph
    for node in list(graph):
        if node.domain != DOMAIN or node.op_type not in _OVER_ALL_KEYS | _OVER_ALLOWED_KEYS:
            continue
        _drop(node, _KEY)
        behind = _layer_behind(node) if node.op_type in _OVER_ALL_KEYS else None
        bias = None if behind is None else _drop(node, _VALUE)
        if behind is not None and bias is not None:
            _add_before(behind, bias, graph)
    RemoveUnusedNodesPass()(model)


def _drop(attention: ir.Node, place: int) -> ir.Value | None:
    """Have attention read keys or values without their bias; return it, or None where none is known."""
    rows = attention.inputs[place]
    for source, bias in biased(rows):
        if rows is not None and rows.shape is not None and [*(bias.shape or ())] == [rows.shape[-1]]:
            source.shape = rows.shape
            attention.replace_input_with(place, source)
            return bias
    return None


class _Layer(NamedTuple):
    """A linear layer: `total` adds a bias `(N,)` to a product by `weight` `(K, N)`."""

    weight: ir.Value
    bias: ir.Value
    total: ir.Node


def _layer_behind(attention: ir.Node) -> _Layer | None:
    """Return the layer that alone reads what attention answers; None where something else does as well."""
    attended = attention.outputs[0]
    reader = _only_reader(attended)
    if reader is not None and reader.op_type == "Reshape":
        reader = _only_reader(reader.outputs[0])
    if reader is None or reader.op_type != "MatMul":
        return None
    weight, total = reader.inputs[1], _only_reader(reader.outputs[0])
    if weight is None or total is None or total.op_type != "Add" or not weight.is_initializer():
        return None
    sizes = [*(weight.shape or ())]
    if attended.shape is None or len(sizes) != 2 or sizes[0] != attended.shape[-1]:
        return None
    for bias in total.inputs:
        if bias is not None and bias.is_initializer() and [*(bias.shape or ())] == sizes[1:]:
            return _Layer(weight, bias, total)
    return None


def _only_reader(value: ir.Value) -> ir.Node | None:
    """Return the one node that reads a value, as its first input or as a term; None for others."""
    uses = value.uses()
    if len(uses) != 1 or value.is_graph_output():
        return None
    ((node, place),) = uses
    return node if not node.domain and (place == 0 or node.op_type == "Add") else None


def _add_before(layer: _Layer, bias: ir.Value, graph: ir.Graph) -> None:
    """Have a layer add what `bias`, added to its input, would come to."""
    weight, own, added = (
        ir.convenience.get_const_tensor(each).numpy()  # type: ignore[union-attr]  # all are initializers
        for each in (layer.weight, layer.bias, bias)
    )
    total = (added.astype(np.float64) @ weight + own).astype(own.dtype)
    # Named by the layer: layers may share a bias.
    folded = constant(graph, f"{layer.total.outputs[0].name}.bias_with_values", total)
    layer.total.replace_input_with(layer.total.inputs.index(layer.bias), folded)
