"""The rows of a batch in runs of so many tokens: what a graph holds does not grow with what it is asked.

    rows → Loop: the next rows that have at most `RUN_TOKENS` tokens, or one row → their answers → all answers

Rows are independent, so their answers are the same, to the bit but for a run of one row: ONNX Runtime has a
product of its own for that. All constants stay outside of the loop: of those of a body ONNX Runtime keeps
both what it has packed for its kernels and what it packed it from.
"""

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from sparse_export.graph.around import Middle, Nodes
from sparse_export.graph.inputs import BATCH, BORDERS, SEQUENCE, TOKENS
from sparse_serve.runs import RUN_TOKENS

_CU_SEQLENS, _MASK = "cu_seqlens", "attention_mask"
# The first row of a run.
_ROW = "run.first_row"


def in_runs(core: ModelProto, run_tokens: int = RUN_TOKENS) -> ModelProto:
    """Return a graph that computes a few rows at a time.

    Args:
        core: a graph of packed tokens or of a padded batch, as `export_graph` gives it; its outputs are
            float32. It becomes part of what is returned.
        run_tokens: how many tokens are computed at a time, where a row has not more.

    Returns:
        A graph of the same inputs and outputs, whose nodes are the body of a loop.
    """
    graph = Middle(core)
    around, before, after = Nodes("runs"), Nodes("run"), Nodes("ran")
    borders = _CU_SEQLENS if _CU_SEQLENS in graph.inputs else _borders(around)
    next_row, go_on = _divide(before, graph, borders, around.add("Shape", borders), run_tokens)
    begun = []
    for name, value in graph.outputs.items():
        begun.append(_no_rows(around, value))
        graph.rename(name, _of_run(name))
        after.add("Concat", f"{name}.done", _of_run(name), axis=0, output=f"{name}.then")
    body = helper.make_graph(
        [*before.nodes, *core.graph.node, *after.nodes],
        "run",
        [
            helper.make_tensor_value_info("run.number", TensorProto.INT64, ()),
            helper.make_tensor_value_info("run.is_asked_for", TensorProto.BOOL, ()),
            helper.make_tensor_value_info(_ROW, TensorProto.INT64, (1,)),
            *(_called(value, f"{name}.done", "done") for name, value in graph.outputs.items()),
        ],
        [
            helper.make_tensor_value_info(go_on, TensorProto.BOOL, ()),
            helper.make_tensor_value_info(next_row, TensorProto.INT64, (1,)),
            *(_called(value, f"{name}.then", "then") for name, value in graph.outputs.items()),
        ],
        value_info=core.graph.value_info,  # by which ONNX Runtime fuses nodes
    )
    first_row = around.constant("first_row", np.array([0]))
    loop = helper.make_node("Loop", ["", "", first_row, *begun], ["runs.rows", *graph.outputs], body=body)
    for name in ("node", "value_info"):
        core.graph.ClearField(name)
    core.graph.node.extend([*around.nodes, loop])
    core.graph.initializer.extend([*around.constants, *before.constants])
    return core


def _divide(
    nodes: Nodes, graph: Middle, borders: str, borders_count: str, run_tokens: int
) -> tuple[str, str]:
    """Give a run its part of every input; return where the next one begins, and whether there is one.

    Args:
        nodes: in front of the graph's own.
        graph: whose inputs are divided.
        borders: of all rows, `(B + 1,)` int32.
        borders_count: B + 1, `(1,)` int64.
        run_tokens: of a run of several rows at most.
    """
    one = nodes.constant("one", np.array([1]))
    first_token = nodes.add("Gather", borders, _ROW)
    most = nodes.add("Add", first_token, nodes.constant("most", np.array(run_tokens, np.int32)))
    # The borders up to there are those of all runs before, and of the rows that this one takes.
    are_within = nodes.add("LessOrEqual", borders, most)
    within = nodes.add("ReduceSum", nodes.add("Cast", are_within, to=TensorProto.INT64))
    one_row = nodes.add("Add", _ROW, nodes.constant("two", np.array([2])))
    stop = nodes.add("Max", within, one_row)
    next_row = nodes.add("Sub", stop, one)
    own = nodes.add("Slice", borders, _ROW, stop)
    last_token = nodes.add("Gather", own, nodes.constant("last", np.array([-1])))
    is_more = nodes.add("Less", stop, borders_count)
    for name, value in graph.inputs.items():
        axis = value.type.tensor_type.shape.dim[0].dim_param
        graph.rename(name, _of_run(name))
        if axis == BORDERS:
            nodes.add("Sub", own, first_token, output=_of_run(name))
        else:
            first, last = {TOKENS: (first_token, last_token), BATCH: (_ROW, next_row)}[axis]
            nodes.add("Slice", name, first, last, output=_of_run(name))
    return next_row, nodes.add("Squeeze", is_more)


def _borders(nodes: Nodes) -> str:
    """Return the borders of a padded batch's rows, were they packed: `(B + 1,)` int32."""
    is_token = nodes.add("Cast", _MASK, to=TensorProto.BOOL)
    tokens = nodes.add("Cast", is_token, to=TensorProto.INT32)
    columns = nodes.constant("columns", np.array([1]))
    lengths = nodes.add("ReduceSum", tokens, columns, keepdims=0)
    ends = nodes.add("CumSum", lengths, nodes.constant("rows", np.array(0)))
    return nodes.add("Concat", nodes.constant("start", np.array([0], np.int32)), ends, axis=0)


def _no_rows(nodes: Nodes, value: ValueInfoProto) -> str:
    """Return an output of no rows: `(0, width)`, or by token `(0, L, width)`."""
    axes = value.type.tensor_type.shape.dim[1:]
    if all(axis.HasField("dim_value") for axis in axes):
        return nodes.constant("none", np.zeros((0, *(axis.dim_value for axis in axes)), np.float32))
    length = nodes.add("Shape", _MASK, start=1, end=2)
    sizes = [
        length if axis.dim_param == SEQUENCE else nodes.constant("width", np.array([axis.dim_value]))
        for axis in axes
    ]
    shape = nodes.add("Concat", nodes.constant("no_rows", np.array([0])), *sizes, axis=0)
    return nodes.add("ConstantOfShape", shape)


def _of_run(name: str) -> str:
    return f"{name}.of_run"


def _called(value: ValueInfoProto, name: str, rows: str) -> ValueInfoProto:
    """Return a value's type and shape under another name, with other rows."""
    called: ValueInfoProto = ValueInfoProto.FromString(value.SerializeToString())
    called.name = name
    called.type.tensor_type.shape.dim[0].dim_param = rows
    return called
