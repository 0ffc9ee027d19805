"""Norms of sums and GELU of biased values are one node where they are known to be, and say what they said."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, parser

from graph_session import open_graph
from graphs import GraphTable
from sparse_export.attention.spec import AttentionSpec
from sparse_export.graph.export import GraphKind, GraphTarget
from sparse_export.graph.functions import attach_functions
from sparse_export.graph.fused_rows import fuse_rows
from sparse_export.graph.int8 import quantized_graph
from sparse_serve.op_library import DOMAIN, Device
from tiny_models import LAMBD, LAYERS, ROW_OPS, make_model

NORM = "LayerNormalization <axis = -1, epsilon = 0.001>"
# Name: nodes before, from x and z (1, T, 4) to y; what is added as the bias, and how many additions are left.
FUSED = {
    "a linear layer's bias": (f"h = Add (x, bias) sum = Add (h, z) y = {NORM} (sum, gamma, beta)", "bias", 0),
    "the other way round": (f"h = Add (bias, x) sum = Add (z, h) y = {NORM} (sum, gamma, beta)", "bias", 0),
    "no bias": (f"sum = Add (x, z) y = {NORM} (sum, gamma, beta)", "no_bias_4", 0),
    "a bias on either side": (
        f"h = Add (x, bias) r = Add (z, beta) sum = Add (h, r) y = {NORM} (sum, gamma, beta)",
        "bias",
        1,
    ),
    "a biased value that is read beside": (
        f"h = Add (x, bias) sum = Add (h, z) n = {NORM} (sum, gamma, beta) y = Mul (n, h)",
        "no_bias_4",
        1,
    ),
    "an epsilon that is not named": (
        "sum = Add (x, z) y = LayerNormalization <axis = -1> (sum, gamma, beta)",
        "no_bias_4",
        0,
    ),
    "twice the same": (f"sum = Add (x, x) y = {NORM} (sum, gamma, beta)", "no_bias_4", 0),
}
LEFT = {
    "no sum": f"h = Relu (x) y = {NORM} (h, gamma, beta)",
    "a sum that is read beside": f"sum = Add (x, z) n = {NORM} (sum, gamma, beta) y = Mul (n, sum)",
    "a sum with a vector": f"sum = Add (x, bias) y = {NORM} (sum, gamma, beta)",
    "another axis": "sum = Add (x, z) y = LayerNormalization <axis = 1, epsilon = 0.001> (sum, gamma, beta)",
    "one weight for all": f"sum = Add (x, z) y = {NORM} (sum, one, beta)",
    "without an offset": f"sum = Add (x, z) y = {NORM} (sum, gamma)",
}
GELUS = {
    "a bias": ("h = Add (x, bias) y = Gelu (h)", True),
    "the other way round": ('h = Add (bias, x) y = Gelu <approximate = "none"> (h)', True),
    "an approximation": ('h = Add (x, bias) y = Gelu <approximate = "tanh"> (h)', False),
    "no vector": ("h = Add (x, z) y = Gelu (h)", False),
    "a sum that is read beside": ("h = Add (x, bias) g = Gelu (h) y = Mul (g, h)", False),
    "no sum": ("y = Gelu (x)", False),
}
VECTORS = (
    "float[4] bias = {1, 2, 3, 4}, float[4] gamma = {1, -1, 2, 0.5}, float[4] beta = {0, 1, 0, -3}, "
    "float[1] one = {1}"
)


def graph_of(nodes: str) -> onnx.ModelProto:
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 20]> of_test (float[1, T, 4] x, float[1, T, 4] z)
        => (float[1, T, 4] y) <{VECTORS}> {{ {nodes} }}"""
    )
    return onnx.shape_inference.infer_shapes(model)


def fused(model: onnx.ModelProto) -> onnx.ModelProto:
    rewritten = ir.from_proto(model)
    fuse_rows(rewritten)
    after = ir.to_proto(rewritten)
    attach_functions(after, 20)
    onnx.checker.check_model(after)
    return after


def answer(model: onnx.ModelProto, *, with_library: bool) -> Any:
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal((2, 1, 5, 4)).astype(np.float32)
    session = open_graph(model, op_library=with_library)
    asked = {each.name for each in session.get_inputs()}
    return session.run(None, {name: value for name, value in (("x", x), ("z", z)) if name in asked})[0]


@pytest.mark.parametrize("case", FUSED)
def test_a_sum_is_fused(case: str) -> None:
    nodes, bias, additions = FUSED[case]
    before = graph_of(nodes)
    after = fused(before)
    counts = Counter(node.op_type for node in after.graph.node)
    assert (counts["LayerNormalization"], counts["Add"]) == (0, additions)
    (norm,) = (node for node in after.graph.node if node.op_type == "SkipLayerNormalization")
    assert (norm.domain, norm.input[4]) == (DOMAIN, bias)
    wanted = answer(before, with_library=False)
    for with_library in (True, False):
        np.testing.assert_allclose(answer(after, with_library=with_library), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", LEFT)
def test_what_is_no_such_sum_is_left(case: str) -> None:
    before = graph_of(LEFT[case])
    after = fused(before)
    assert [node.op_type for node in after.graph.node] == [node.op_type for node in before.graph.node]


@pytest.mark.parametrize("case", GELUS)
def test_gelu_of_a_biased_value_is_fused(case: str) -> None:
    nodes, is_fused = GELUS[case]
    before = graph_of(nodes)
    after = fused(before)
    counts = Counter(node.op_type for node in after.graph.node)
    assert (counts["BiasGelu"], counts["Gelu"]) == (is_fused, not is_fused)
    wanted = answer(before, with_library=False)
    for with_library in (True, False):
        np.testing.assert_allclose(answer(after, with_library=with_library), wanted, rtol=0, atol=1e-5)


def test_sums_of_unknown_shape_are_left() -> None:
    model = graph_of(FUSED["no bias"][0])
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[1].ClearField("dim_param")
    assert "SkipLayerNormalization" not in {node.op_type for node in fused(model).graph.node}


def test_sums_of_other_types_are_left() -> None:
    nodes = f"sum = Add (x, z) y = {NORM} (sum, gamma, beta)"
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 20]>
        of_test (double[1, T, 4] x, double[1, T, 4] z, double[4] gamma, double[4] beta)
        => (double[1, T, 4] y) {{ {nodes} }}"""
    )
    after = fused(onnx.shape_inference.infer_shapes(model))
    assert [node.op_type for node in after.graph.node] == ["Add", "LayerNormalization"]


@pytest.mark.parametrize(
    ("kind", "device", "ours"),
    [
        ("tokens", "cpu", True),
        ("tokens_dense", "cpu", True),
        ("packed", "cpu", True),
        ("packed_dense", "cpu", True),
        ("padded_fused", "cpu", False),
        ("tokens", "cuda", False),
    ],
)
def test_graphs_have_them_for_a_processor_alone(
    graphs: GraphTable, kind: GraphKind, device: Device, ours: bool
) -> None:
    """A GPU has ONNX Runtime's own, and so does what we are compared with."""
    path: Path = graphs.path(make_model(AttentionSpec(LAMBD)).eval(), kind, GraphTarget(device=device))
    counts = Counter(node.op_type for node in onnx.load(path).graph.node)
    norms_and_gelus = tuple(ROW_OPS.values())
    assert tuple(counts[name] for name in ROW_OPS) == (norms_and_gelus if ours else (0, 0))
    assert (counts["LayerNormalization"], counts["Gelu"]) == ((0, 0) if ours else norms_and_gelus)


def test_integers_take_the_gelu_of_their_layer(graphs: GraphTable) -> None:
    """And leave one that others read too."""
    path: Path = graphs.path(make_model(AttentionSpec(LAMBD)).eval(), "tokens", GraphTarget())
    traced = onnx.load(path)
    first = next(node for node in traced.graph.node if node.op_type == "BiasGelu")
    traced.graph.node.append(helper.make_node("Identity", [first.output[0]], ["beside"]))
    beside = helper.make_tensor_value_info("beside", onnx.TensorProto.FLOAT, [None] * 3)
    traced.graph.output.append(beside)
    counts = Counter(node.op_type for node in quantized_graph(traced, "any").graph.node)
    assert (counts["BiasGelu"], counts["RequantizeGelu"]) == (1, LAYERS - 1)
