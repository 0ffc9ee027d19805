"""Keys and values go into attention without their biases where that says the same, and only there."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import ModelProto, helper, parser

from graph_session import open_graph
from graphs import GraphTable
from sparse_export.attention.spec import AttentionSpec
from sparse_export.graph.attention_biases import fold_attention_biases
from sparse_export.graph.export import GraphTarget
from sparse_export.graph.functions import attach_functions
from sparse_serve.op_library import DOMAIN
from tiny_models import LAMBD, LAYERS, make_model

SPARSEGEN = "ai.sparse_serve.SparsegenAttention <num_heads = 2, scale = 0.5, lambd = -1.0>"
SOFTMAX = "ai.sparse_serve.SoftmaxAttention <num_heads = 2, scale = 0.5>"
AXIS = (
    'ai.sparse_serve.AxisAttention <num_heads = 2, scale = 0.5, lambd = -1.0, normalizer = "sparsegen", '
    "diagonals = [1]>"
)
KEYS, VALUES = "k = Add (x, of_keys)", "v = Add (x, of_values)"
LAYER = "h = Reshape (a, one_row) p = MatMul (h, weight) y = Add (p, bias)"
# Name: nodes from rows x and z (T, 4) to y; which terms of sums are left.
CASES = {
    "sparsegen": (f"{KEYS} {VALUES} a, s = {SPARSEGEN} (z, k, v, borders) {LAYER}", {"y.bias_with_values"}),
    "softmax": (f"{KEYS} {VALUES} a = {SOFTMAX} (z, k, v, borders) {LAYER}", {"y.bias_with_values"}),
    "without a reshape": (
        f"""{KEYS} {VALUES} a, s = {SPARSEGEN} (z, k, v, borders)
        p = MatMul (a, weight) y = Add (bias, p)""",
        {"y.bias_with_values"},
    ),
    "layers that share a bias": (
        f"""{KEYS} {VALUES} a, s = {SPARSEGEN} (z, k, v, borders) h = Reshape (a, one_row)
        p = MatMul (h, weight) first = Add (p, bias)
        u = Add (z, of_keys) o, t = {SPARSEGEN} (x, z, u, borders) g = Reshape (o, one_row)
        r = MatMul (g, weight) second = Add (r, bias) y = Concat <axis = 0> (first, second)""",
        {"first.bias_with_values", "second.bias_with_values"},
    ),
    "queries keep theirs": (
        f"q = Add (z, of_keys) {VALUES} a, s = {SPARSEGEN} (q, x, v, borders) {LAYER}",
        {"z", "of_keys", "y.bias_with_values"},
    ),
    "no key may be allowed": (
        f"{KEYS} {VALUES} a, s = {AXIS} (z, k, v, none, none, borders) {LAYER}",
        {"of_values", "bias"},
    ),
    "no layer behind": (
        f"{KEYS} {VALUES} a, s = {SPARSEGEN} (z, k, v, borders) y = Relu (a)",
        {"of_values"},
    ),
    "a layer without a bias": (
        f"{KEYS} {VALUES} a, s = {SPARSEGEN} (z, k, v, borders) y = MatMul (a, weight)",
        {"of_values"},
    ),
    "an answer that is read beside": (
        f"""{KEYS} {VALUES} a, s = {SPARSEGEN} (z, k, v, borders) h = Reshape (a, one_row)
        p = MatMul (h, weight) b = Add (p, bias) y = Concat <axis = 2> (b, h)""",
        {"of_values", "bias"},
    ),
    "an answer that is a weight": (
        f"""{KEYS} {VALUES} a, s = {SPARSEGEN} (z, k, v, borders) t = Transpose (z)
        p = MatMul (t, a) y = Add (p, bias_of_four)""",
        {"of_values", "bias_of_four"},
    ),
    "keys that are values": (
        f"{KEYS} a, s = {SPARSEGEN} (z, k, k, borders) {LAYER}",
        {"of_keys", "bias"},
    ),
    "a bias for each token": (
        f"k = Add (x, z) v = Add (x, of_values) a, s = {SPARSEGEN} (z, k, v, borders) {LAYER}",
        {"z", "y.bias_with_values"},
    ),
}
CONSTANTS = """float[4] of_keys = {3, -2, 1, 5}, float[4] of_values = {1, 2, -4, 3},
float[4, 3] weight = {1, -1, 2, 0, 3, 1, -2, 1, 1, 4, 0, -1}, float[3] bias = {1, 2, 3},
float[4] bias_of_four = {1, 2, 3, 4}, int64[3] one_row = {1, -1, 4}, int32[3] borders = {0, 2, 5},
bool[5] none = {0, 0, 0, 0, 0}"""


def graph_of(nodes: str) -> ModelProto:
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 20, "{DOMAIN}" : 1]>
        of_test (float[5, 4] x, float[5, 4] z) => (float y) <{CONSTANTS}> {{ {nodes} }}"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    rows = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, (5, 4))
    made = {name for node in model.graph.node for name in node.output} - {"y"}
    for name in sorted(made & {"k", "v", "q", "a", "u", "o"}):
        model.graph.value_info.append(helper.make_value_info(name, rows))
    return onnx.shape_inference.infer_shapes(model)


def answer(model: ModelProto) -> Any:
    x, z = np.random.default_rng(0).standard_normal((2, 5, 4)).astype(np.float32)
    return open_graph(model, op_library=False).run(["y"], {"x": x, "z": z})[0]


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_are_the_same(case: str) -> None:
    nodes, left = CASES[case]
    before = graph_of(nodes)
    rewritten = ir.from_proto(before)
    fold_attention_biases(rewritten)
    after = ir.to_proto(rewritten)
    for each in (before, after):
        attach_functions(each, 20)
        onnx.checker.check_model(each)
    made = {name for node in after.graph.node for name in node.output} | {"x"}
    terms = {name for node in after.graph.node if node.op_type == "Add" for name in node.input}
    assert terms - made == left
    np.testing.assert_allclose(answer(after), answer(before), rtol=0, atol=2e-5)


@pytest.mark.parametrize("spec", [AttentionSpec(LAMBD), AttentionSpec()], ids=str)
def test_every_layer_of_a_model(spec: AttentionSpec, graphs: GraphTable) -> None:
    """Those that attend from all tokens and those that attend from first ones alone."""
    graph = onnx.load(graphs.path(make_model(spec).eval(), "tokens", GraphTarget())).graph
    makers = {output: node for node in graph.node for output in node.output}
    attentions = [node for node in graph.node if node.domain == DOMAIN and "Attention" in node.op_type]
    assert len(attentions) == LAYERS
    for node in attentions:
        query, key, value = (makers[name].op_type for name in node.input[:3])
        assert (query, key, value) == ("Add", "MatMul", "MatMul")
    assert sum(name.endswith(".bias_with_values") for node in graph.node for name in node.input) == LAYERS
