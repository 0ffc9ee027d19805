"""A graph in fewer nodes computes what it did; what is not known to be the same is left as it is."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import parser

from graphs import GraphTable
from sparse_export.attention.spec import AttentionSpec
from sparse_export.graph.export import GraphTarget
from sparse_export.graph.fewer_nodes import rewrite_in_fewer_nodes
from tiny_models import LAMBD, LAYERS, make_model

WEIGHTS = (
    "float[4, 6] weight = {"
    + ", ".join(str(n % 7 - 3) for n in range(24))
    + "}, float[6] bias = {1, 2, 3, 4, 5, 6}"
)
# Name: nodes before, from x (1, T, 4) to y; how often which of them is left.
KNOWN = {
    "a linear layer whose rows are laid out": (
        """product = MatMul (x, weight) added = Add (bias, product)
        heads = Reshape (added, by_head) y = Reshape (heads, rows)""",
        {"MatMul": 1, "Add": 1, "Reshape": 1},
    ),
    "two of one value": (
        """h = Relu (x)
        left = MatMul (h, weight) left_added = Add (left, bias) left_rows = Reshape (left_added, rows)
        right = MatMul (h, weight) right_added = Add (right, bias) right_rows = Reshape (right_added, rows)
        y = Mul (left_rows, right_rows)""",
        {"Relu": 1, "MatMul": 2, "Add": 2, "Mul": 1, "Reshape": 1},
    ),
    "an axis that is taken off again": (
        """wide = Unsqueeze (x, second) y = Gather <axis = 1> (wide, zero)""",
        {},
    ),
    "rows of the only matrix": (
        """product = MatMul (x, weight) added = Add (product, bias) y = Gather <axis = 0> (added, zero)""",
        {"MatMul": 1, "Add": 1, "Reshape": 1},
    ),
    "indices of one number": (
        """flat = Reshape (x, fours) listed = Unsqueeze (places, second) y = GatherND (flat, listed)""",
        {"Reshape": 1, "Gather": 1},
    ),
}
UNKNOWN = {
    "sizes that are taken over": (
        """heads = Reshape (x, halves) y = Reshape (heads, taken_over)""",
        {"Reshape": 2},
    ),
    "a linear layer that is read beside": (
        """product = MatMul (x, weight) added = Add (product, bias) laid_out = Reshape (added, rows)
        sum = ReduceSum (added) y = Add (laid_out, sum)""",
        {"MatMul": 1, "Add": 2, "ReduceSum": 1, "Reshape": 1},
    ),
    "rows of another width": (
        """product = MatMul (x, weight) added = Add (product, bias) y = Reshape (added, threes)""",
        {"MatMul": 1, "Add": 1, "Reshape": 1},
    ),
    "one matrix of several": (
        """both = Concat <axis = 0> (x, x) y = Gather <axis = 0> (both, zero)""",
        {"Concat": 1, "Gather": 1},
    ),
    "the first row": (
        """y = Gather <axis = 1> (x, zero)""",
        {"Gather": 1},
    ),
    "indices of several numbers": (
        """flat = Reshape (x, fours) one = Unsqueeze (places, zeroth) y = GatherND (flat, one)""",
        {"Reshape": 1, "Unsqueeze": 1, "GatherND": 1},
    ),
    "another column": (
        """wide = Concat <axis = 1> (x, x) y = Gather <axis = 1> (wide, zero)""",
        {"Concat": 1, "Gather": 1},
    ),
}


def graph_of(nodes: str) -> onnx.ModelProto:
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 20]> of_test (float[1, T, 4] x) => (float y)
        <{WEIGHTS}, int64[2] rows = {{-1, 6}}, int64[2] threes = {{-1, 3}}, int64[2] fours = {{-1, 4}},
        int64[4] by_head = {{1, -1, 2, 3}}, int64[3] halves = {{-1, 2, 2}}, int64[2] taken_over = {{0, -1}},
        int64[1] second = {{1}}, int64[1] zeroth = {{0}}, int64 zero = {{0}}, int64[2] places = {{2, 0}}>
        {{ {nodes} }}"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize("case", [*KNOWN, *UNKNOWN])
def test_the_numbers_are_the_same(case: str) -> None:
    nodes, left = (KNOWN | UNKNOWN)[case]
    before = graph_of(nodes)
    model = ir.from_proto(before)
    rewrite_in_fewer_nodes(model)
    after = ir.to_proto(model)
    onnx.checker.check_model(after)
    counts = Counter(node.op_type for node in after.graph.node)
    counts.pop("Identity", None)  # which names an output
    assert counts == left
    x = np.random.default_rng(0).standard_normal((1, 5, 4)).astype(np.float32)
    wanted, found = (
        onnxruntime.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, {"x": x}
        )[0]
        for each in (before, after)
    )
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_outputs_of_one_value_keep_their_names() -> None:
    """As the rows and columns that are on of global tokens, which are the same."""
    before = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 20]> of_test (float[1, T, 4] x)
        => (float[1, T, 4] rows_on, float[1, T, 4] columns_on, float[1, T, 4] twice)
        { h = Relu (x) rows_on = Identity (h) columns_on = Identity (h)
        also = Identity (h) twice = Add (also, also) }"""
    )
    model = ir.from_proto(before)
    rewrite_in_fewer_nodes(model)
    after = ir.to_proto(model)
    onnx.checker.check_model(after)
    assert [each.name for each in after.graph.output] == ["rows_on", "columns_on", "twice"]
    assert Counter(node.op_type for node in after.graph.node) == {"Relu": 1, "Identity": 1, "Add": 1}


def test_a_layer_reshapes_twice(graphs: GraphTable) -> None:
    """To rows in front of the attention, and back behind it; the last one lays keys and values out besides.

    And the head has the states laid out.
    """
    path: Path = graphs.path(make_model(AttentionSpec(LAMBD)).eval(), "tokens", GraphTarget())
    counts = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert counts["Reshape"] == 2 * LAYERS + 2
    assert counts["ReduceSum"] == LAYERS
    assert counts["GatherND"] == 0


def test_sizes_are_called_what_they_are(graphs: GraphTable) -> None:
    """In the last layer there are fewer rows than tokens; ONNX Runtime warns where they are called alike."""
    path: Path = graphs.path(make_model(AttentionSpec(LAMBD)).eval(), "tokens", GraphTarget())
    graph = onnx.load(path).graph
    sizes = {
        value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in graph.value_info
    }
    laid_out = {node.input[0]: node.output[0] for node in graph.node if node.output[0].endswith(".rows")}
    assert {source: sizes[rows][0] for source, rows in laid_out.items()} == {
        source: sizes[source][1] for source in laid_out
    }
    assert len({sizes[rows][0] for rows in laid_out.values()}) == 2
