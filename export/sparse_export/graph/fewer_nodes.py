"""The same graph in fewer nodes: where one short text is answered, much of the time goes between them.

Encoders are traced on one row of all tokens, `(1, T, M)`, and our attention takes rows, `(T, M)`. Laid out as
rows before queries, keys and values are made of them, they are reshaped once a layer, and ONNX Runtime makes
one kernel of a product and its bias. Each rewrite computes the same numbers; what it does not know it leaves.
"""

from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from sparse_export.graph.constants import constant
from sparse_export.graph.matching import biased
from sparse_serve.op_library import DOMAIN


def rewrite_in_fewer_nodes(model: ir.Model) -> None:
    """Rewrite a traced graph of packed tokens, in place."""
    graph = model.graph
    laid_out: dict[ir.Value, ir.Value] = {}
    for node in graph:
        if node.op_type == "Reshape":
            _reshape_at_once(node)
        elif node.op_type == "Gather":
            _reshape_only_row(node, graph)
    RemoveUnusedNodesPass()(model)
    for node in list(graph):
        if node.op_type == "Reshape":
            _lay_out_before(node, graph, laid_out)
        elif node.op_type == "Concat":
            _count_at_once(node, graph)
        elif node.op_type == "GatherND":
            _gather_rows(node)
        elif node.op_type == "Gather":
            _take_only_column(node)
    for node in list(graph):
        if node.op_type == "Identity":
            _do_without(node, graph)
    RemoveUnusedNodesPass()(model)


def _do_without(identity: ir.Node, graph: ir.Graph) -> None:
    """Take the value that a node hands on for its output.

    An output of the graph stays a node where the value has a name already: it may be two outputs, as the rows
    and columns of global tokens are, of which onnx_ir's own pass makes one name.
    """
    source, output = identity.inputs[0], identity.outputs[0]
    if source is None:
        return
    is_answer = output.is_graph_output()
    if is_answer:
        if source.is_graph_output() or source.is_graph_input() or source.is_initializer():
            return
        source.shape, source.type = output.shape or source.shape, output.type or source.type
    ir.convenience.replace_all_uses_with(output, source, replace_graph_outputs=True)
    if is_answer:
        source.name = output.name
    graph.remove(identity, safe=True)


def _reshape_at_once(reshape: ir.Node) -> None:
    """Reshape what an earlier reshape was given; a shape without zeros does not ask for that of its input."""
    shape = _numbers(reshape.inputs[1])
    if shape is None or 0 in shape:
        return
    while (given := _given_to("Reshape", reshape.inputs[0])) is not None:
        reshape.replace_input_with(0, given)
    source = reshape.inputs[0]
    if source is not None and _has_shape(source, shape):
        _pass_on(reshape, source)


def _reshape_only_row(gather: ir.Node, graph: ir.Graph) -> None:
    """Take the only one of some matrices by its shape, without copying it."""
    matrices = gather.inputs[0]
    shape = None if matrices is None else matrices.shape
    width = None if shape is None or len(shape) != 3 or shape[0] != 1 else shape[2]
    if not isinstance(width, int) or _attribute(gather, "axis") != 0 or not _is_zero(gather.inputs[1]):
        return
    gather.op_type = "Reshape"
    gather.attributes.clear()
    gather.replace_input_with(1, _as_rows(graph, width))


def _as_rows(graph: ir.Graph, width: int) -> ir.Value:
    """Return the shape of rows of a width, of which a graph has one."""
    return constant(graph, f"rows_of_{width}", np.array([-1, width]))


class _Linear(NamedTuple):
    """A linear layer: `output` is the product of `source` and `weight` `(K, N)`, plus a bias `(N,)`."""

    product: ir.Node
    output: ir.Value
    source: ir.Value
    weight: ir.Value


def _lay_out_before(reshape: ir.Node, graph: ir.Graph, laid_out: dict[ir.Value, ir.Value]) -> None:
    """Lay rows out before a linear layer instead of behind it.

    Args:
        reshape: asks for rows `(-1, N)`.
        graph: of the node.
        laid_out: values and themselves as rows, of which there are more after the call.
    """
    layer = _linear(reshape.inputs[0])
    if layer is None or _numbers(reshape.inputs[1]) != [-1, *_sizes(layer.weight)[1:]]:
        return
    maker = layer.source.producer()
    if maker is None:
        return
    if layer.source not in laid_out:
        width = _sizes(layer.weight)[0]
        # Of all tokens, or of those that are read: ONNX Runtime gives memory on by what sizes are called.
        axes = layer.source.shape
        count = axes[1] if axes is not None and len(axes) == 3 and axes[0] == 1 else None
        shape = ir.Shape([count, width])
        rows = ir.Value(name=f"{layer.source.name}.rows", shape=shape, type=layer.source.type)
        reshaped = ir.node("Reshape", [layer.source, _as_rows(graph, width)], outputs=[rows])
        graph.insert_after(maker, reshaped)
        laid_out[layer.source] = rows
    layer.product.replace_input_with(0, laid_out[layer.source])
    for value in (layer.product.outputs[0], layer.output):
        value.shape = reshape.outputs[0].shape
    _pass_on(reshape, layer.output)


def _linear(value: ir.Value | None) -> _Linear | None:
    """Return the linear layer that makes a value which nothing else reads; None where none does."""
    if value is None:
        return None
    for term, bias in biased(value):
        product = term.producer()
        if product is None or product.op_type != "MatMul" or len(term.uses()) > 1:
            continue
        source, weight = product.inputs
        if source is None or weight is None or not weight.is_initializer() or len(_sizes(weight)) != 2:
            continue
        if _sizes(bias) == _sizes(weight)[1:]:
            return _Linear(product, value, source, weight)
    return None


def _count_at_once(concat: ir.Node, graph: ir.Graph) -> None:
    """Join by layer what the rows' attention kept over all heads, and make int64 of it then, not before.

    What one row keeps over its heads is far below 2³¹.
    """
    totals = [_given_to("Unsqueeze", value) for value in concat.inputs]
    kept = [_given_to("Cast", _given_to("ReduceSum", total)) for total in totals]
    makers = [_maker(value) for value in kept]
    if _attribute(concat, "axis") != 1 or not all(each and each.domain == DOMAIN for each in makers):
        return
    if not all(_sums_heads(value) for value in concat.inputs):
        return
    axes = totals[0].producer().inputs[1]  # type: ignore[union-attr]  # there is one
    for number, value in enumerate(kept):
        total = ir.Value(name=f"{concat.outputs[0].name}.{number}", type=ir.TensorType(ir.DataType.INT32))
        graph.insert_before(concat, ir.node("ReduceSum", [value, axes], {"keepdims": 1}, outputs=[total]))
        concat.replace_input_with(number, total)
    joined = concat.outputs[0]
    counts = ir.Value(name=f"{joined.name}.counts", shape=joined.shape, type=joined.type)
    ir.convenience.replace_all_uses_with(joined, counts)
    joined.type = ir.TensorType(ir.DataType.INT32)
    graph.insert_after(concat, ir.node("Cast", [joined], {"to": ir.DataType.INT64.value}, outputs=[counts]))


def _sums_heads(column: ir.Value | None) -> bool:
    """Tell whether a sum takes the second axis away that it is given back as."""
    unsqueeze, total = _maker(column), _maker(_given_to("Unsqueeze", column))
    if total is None or _axes(unsqueeze) != [1] or _axes(total) != [1]:
        return False
    keepdims = total.attributes.get("keepdims")
    return keepdims is not None and keepdims.as_int() == 0


def _gather_rows(gather: ir.Node) -> None:
    """Gather by numbers, not by indices of one number each."""
    numbers = _given_to("Unsqueeze", gather.inputs[1])
    if (
        numbers is None
        or numbers.shape is None
        or len(numbers.shape) != 1
        or _attribute(gather, "batch_dims")
        or _axes(_maker(gather.inputs[1])) not in [[1], [-1]]
    ):
        return
    gather.op_type = "Gather"
    gather.attributes.clear()
    gather.replace_input_with(1, numbers)


def _take_only_column(gather: ir.Node) -> None:
    """Take a value as it was before it was given the axis that is taken off it."""
    unsqueeze = gather.inputs[0]
    given = _given_to("Unsqueeze", unsqueeze)
    if given is None or unsqueeze is None or not _is_zero(gather.inputs[1]):
        return
    if _numbers(unsqueeze.producer().inputs[1]) == [_attribute(gather, "axis")]:  # type: ignore[union-attr]
        _pass_on(gather, given)


def _pass_on(node: ir.Node, source: ir.Value) -> None:
    """Have a node do nothing; it goes in the end."""
    node.op_type = "Identity"
    node.attributes.clear()
    node.resize_inputs(1)
    node.replace_input_with(0, source)


def _maker(value: ir.Value | None) -> ir.Node | None:
    """Return the node that makes a value; None where there is none."""
    return None if value is None else value.producer()


def _given_to(op_type: str, value: ir.Value | None) -> ir.Value | None:
    """Return what the node was given that makes a value; None where that is of another type."""
    node = _maker(value)
    return node.inputs[0] if node is not None and node.op_type == op_type else None


def _axes(node: ir.Node | None) -> list[int] | None:
    """Return the axes that a node is given as its second input; None where they are not known."""
    return None if node is None or len(node.inputs) < 2 else _numbers(node.inputs[1])


def _numbers(value: ir.Value | None) -> list[int] | None:
    """Return a constant list of whole numbers; None where a value is none."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return tensor.numpy().tolist() if tensor is not None and len(tensor.shape) == 1 else None


def _is_zero(value: ir.Value | None) -> bool:
    """Tell whether a value is the number zero, not a list of it."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return tensor is not None and not tensor.shape and tensor.numpy() == 0


def _sizes(value: ir.Value | None) -> list[int]:
    """Return the sizes of a constant's axes."""
    shape = None if value is None else value.shape
    return [size for size in shape or () if isinstance(size, int)]


def _has_shape(value: ir.Value, asked: list[int]) -> bool:
    """Tell whether a value has the shape that is asked for; what is left over may be of any size."""
    if value.shape is None or len(value.shape) != len(asked):
        return False
    return all(wanted in (-1, size) for size, wanted in zip(value.shape, asked, strict=True))


def _attribute(node: ir.Node, name: str) -> int:
    attribute = node.attributes.get(name)
    return 0 if attribute is None else attribute.as_int()
