"""What stands between two products of a layer, row by row, as one node of ours.

`LayerNorm(x W + b + residual)` ends each half of a transformer's layer, `GELU(x W + b)` is the middle of its
second. ONNX Runtime has a kernel for either too, but takes nanoseconds a number for it on a processor: an
eighth of a model's time. Products are left as they are, and so is whatever is known to be neither.
"""

from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from sparse_export.graph.constants import constant
from sparse_export.graph.matching import Terms, biased, terms
from sparse_serve.op_library import DOMAIN

# Of a norm that names none.
_EPSILON = 1e-5


def fuse_rows(model: ir.Model) -> None:
    """Write norms of sums as `SkipLayerNormalization` and GELU of biased values as `BiasGelu`, in place.

    Both in float32 alone, of values whose shapes are known.
    """
    graph = model.graph
    for node in list(graph):
        if node.domain:
            continue
        if node.op_type == "LayerNormalization":
            _fuse_norm(node, graph)
        elif node.op_type == "Gelu":
            _fuse_gelu(node, graph)
    RemoveUnusedNodesPass()(model)


class _Sum(NamedTuple):
    """What is normalized: `input + bias + skip`; the bias `(M,)` is None where there is none."""

    input: ir.Value
    bias: ir.Value | None
    skip: ir.Value


def _fuse_norm(norm: ir.Node, graph: ir.Graph) -> None:
    total, *parameters = norm.inputs
    found = _sum(total)
    axis, epsilon = norm.attributes.get("axis"), norm.attributes.get("epsilon")
    if found is None or len(parameters) != 2 or (axis is not None and axis.as_int() != -1):
        return
    width = _width(found.input)
    if width is None or not all(each is not None and [*(each.shape or ())] == [width] for each in parameters):
        return
    bias = found.bias or constant(graph, f"no_bias_{width}", np.zeros(width, np.float32))
    inputs = [found.input, found.skip, *parameters, bias]
    attributes = {"epsilon": _EPSILON if epsilon is None else epsilon.as_float()}
    _replace(norm, ir.node("SkipLayerNormalization", inputs, attributes, domain=DOMAIN), graph)


def _fuse_gelu(gelu: ir.Node, graph: ir.Graph) -> None:
    found = _biased(gelu.inputs[0])
    approximate = gelu.attributes.get("approximate")
    if found is not None and (approximate is None or approximate.as_string() == "none"):
        _replace(gelu, ir.node("BiasGelu", found, domain=DOMAIN), graph)


def _replace(node: ir.Node, fused: ir.Node, graph: ir.Graph) -> None:
    ir.convenience.replace_nodes_and_values(graph, node, [node], [fused], node.outputs, fused.outputs)


def _sum(value: ir.Value | None) -> _Sum | None:
    """Return what a value is the sum of, if it is one of two values alike and nothing else reads it."""
    both = terms(value)
    if both is None or not _are_alike(*both):
        return None
    for term, skip in (both, both[::-1]):
        found = _biased(term)
        if found is not None:
            return _Sum(*found, skip)
    return _Sum(both[0], None, both[1])


def _biased(value: ir.Value | None) -> Terms | None:
    """Return what a value is the sum of and the bias, if it is that of a constant for its last axis."""
    width = None if value is None else _width(value)
    if value is None or width is None:
        return None
    for source, bias in biased(value):
        if [*(bias.shape or ())] == [width] and _are_alike(source, value):
            return source, bias
    return None


def _are_alike(left: ir.Value, right: ir.Value) -> bool:
    """Tell whether two values are known to be float32 and of one shape."""
    return _width(left) is not None and left.shape == right.shape and left.dtype == right.dtype


def _width(value: ir.Value) -> int | None:
    """Return the size of the last axis of a float32 value whose axes are all known, by number or name."""
    if value.dtype != ir.DataType.FLOAT or value.shape is None or value.shape.has_unknown_dim():
        return None
    return next((size for size in value.shape[-1:] if isinstance(size, int)), None)
