"""What makes a value of a traced graph, as rewrites recognise it."""

from collections.abc import Iterator

import onnx_ir as ir

Terms = tuple[ir.Value, ir.Value]


def terms(value: ir.Value | None) -> Terms | None:
    """Return the terms of a sum that one node alone reads; None of anything else."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.op_type != "Add" or node.domain:
        return None
    if len(value.uses()) > 1 or value.is_graph_output():
        return None
    left, right = node.inputs
    return None if left is None or right is None else (left, right)


def biased(value: ir.Value | None) -> Iterator[Terms]:
    """Yield what a value may be the sum of and its bias, a constant of one axis; nothing of anything else."""
    found = terms(value)
    for source, bias in () if found is None else (found, found[::-1]):
        if bias.is_initializer() and bias.shape is not None and len(bias.shape) == 1:
            yield source, bias
