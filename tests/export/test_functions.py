"""The model-local functions equal the torch reference on a stock ONNX Runtime."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from one_function import Array, run
from onnx import TensorProto, helper

from cases import ATTENTION_CASES, LAMBDAS, AttentionCase, Element
from sparse_export.attention.sparsegen import sparsegen_lin
from sparse_export.encoders.packing import HiddenFirst
from sparse_export.graph.functions import GRAPH_DOMAIN, op_function
from sparse_export.graph.nodes import HeadSettings
from sparse_export.graph.packed_attention import attend_hidden_first, packed_attention
from sparse_serve.op_library import DOMAIN


@pytest.mark.parametrize("lambd", LAMBDAS)
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_sparsegen_lin(lambd: float, axis: int) -> None:
    scores = np.random.default_rng(0).standard_normal((4, 9, 33), dtype=np.float32) * 4
    (weights,) = run(
        "SparsegenLin", {"scores": scores}, {"weights": TensorProto.FLOAT}, lambd=lambd, axis=axis
    )
    expected = sparsegen_lin(torch.from_numpy(scores), lambd, axis).numpy()
    np.testing.assert_allclose(weights, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("opset", [18, 20, 21, 23])
def test_sparsegen_lin_on_non_finite_rows_and_every_opset(opset: int) -> None:
    inf, nan = np.inf, np.nan
    scores = np.array([[0, 1, -inf], [-inf] * 3, [0, nan, 1], [inf, 0, 0]], np.float32)
    (weights,) = run("SparsegenLin", {"scores": scores}, {"weights": TensorProto.FLOAT}, opset, lambd=0.0)
    np.testing.assert_array_equal(weights, np.array([[0, 1, 0], [0, 0, 0], [nan] * 3, [nan] * 3]))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sparsegen_lin_keeps_the_type(dtype: type[np.floating[Any]]) -> None:
    scores: Array = np.random.default_rng(0).standard_normal((5, 17)).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    (weights,) = run("SparsegenLin", {"scores": scores}, {"weights": kind}, lambd=-4.0)
    assert weights.dtype == dtype
    expected = sparsegen_lin(torch.from_numpy(scores), -4.0).numpy()
    np.testing.assert_allclose(weights, expected, rtol=0, atol=max(1e-6, float(np.finfo(dtype).eps)))


@pytest.mark.parametrize("op_type", ["SparsegenAttention", "SoftmaxAttention"])
@pytest.mark.parametrize("case", ATTENTION_CASES, ids=lambda case: case.name)
def test_packed_attention(case: AttentionCase, op_type: str) -> None:
    query, key, value = case.inputs()
    sparse = op_type == "SparsegenAttention"
    outputs: dict[str, int] = {"output": TensorProto.FLOAT}
    if sparse:
        outputs["support"] = TensorProto.INT32
    attributes: dict[str, Any] = {"num_heads": case.num_heads, "scale": case.scale} | (
        {"lambd": case.lambd} if sparse else {}
    )
    inputs = {"query": query, "key": key, "value": value, "cu_seqlens": case.cu_seqlens}
    answers = run(op_type, inputs, outputs, **attributes)

    heads = HeadSettings(case.num_heads, case.scale or case.head_size**-0.5, case.lambd if sparse else None)
    q, k, v, borders = (torch.from_numpy(array) for array in inputs.values())
    output, support = packed_attention(q, k, v, borders, heads)
    np.testing.assert_allclose(answers[0], output.numpy(), rtol=0, atol=1e-5)
    if sparse:
        np.testing.assert_array_equal(answers[1], support.numpy())


@pytest.mark.parametrize("op_type", ["SparsegenAttention", "SoftmaxAttention"])
def test_attention_to_nothing_but_minus_infinity_is_zero(op_type: str) -> None:
    """As the kernels have it, and the specification of both."""
    query, key, value = np.random.default_rng(0).standard_normal((3, 5, 8), dtype=np.float32)
    query[2], key = np.inf, -np.abs(key)
    inputs = {"query": query, "key": key, "value": value, "cu_seqlens": np.array([0, 5], np.int32)}
    sparse = op_type == "SparsegenAttention"
    outputs: dict[str, int] = {"output": TensorProto.FLOAT}
    attributes: dict[str, Any] = {"num_heads": 1, "scale": 1.0}
    if sparse:
        outputs["support"] = TensorProto.INT32
        attributes["lambd"] = -4.0
    output, *_ = run(op_type, inputs, outputs, **attributes)
    q, k, v, borders = (torch.from_numpy(array) for array in inputs.values())
    expected, _ = packed_attention(q, k, v, borders, HeadSettings(1, 1.0, -4.0 if sparse else None))
    assert not output[2].any()
    np.testing.assert_allclose(output, expected.numpy(), rtol=0, atol=1e-5)


def rounded(array: Array, element: Element) -> Array:
    return array.astype(element).astype(np.float32)


@pytest.mark.parametrize("element", ["float16", "bfloat16"])
@pytest.mark.parametrize("lambd", [-4.0, 0.99])
def test_sparsegen_lin_of_other_types_is_rounded_once(lambd: float, element: Element) -> None:
    draws = np.random.default_rng(0).standard_normal((4, 9, 33), dtype=np.float32) * 4
    scores = {"scores": rounded(draws, element)}
    outputs: dict[str, int] = {"weights": TensorProto.FLOAT}
    (weights,) = run("SparsegenLin", scores, outputs, element=element, lambd=lambd)
    (full,) = run("SparsegenLin", scores, outputs, lambd=lambd)
    np.testing.assert_array_equal(weights, rounded(full, element))


@pytest.mark.parametrize("element", ["float16", "bfloat16"])
@pytest.mark.parametrize("op_type", ["SparsegenAttention", "SoftmaxAttention"])
@pytest.mark.parametrize("case", ATTENTION_CASES[:7], ids=lambda case: case.name)
def test_packed_attention_of_other_types_is_rounded_once(
    case: AttentionCase, op_type: str, element: Element
) -> None:
    tensors = (*replace(case, element=element).inputs(), case.cu_seqlens)
    inputs = dict(zip(("query", "key", "value", "cu_seqlens"), tensors, strict=True))
    attributes: dict[str, Any] = {"num_heads": case.num_heads, "scale": case.scale}
    outputs: dict[str, int] = {"output": TensorProto.FLOAT}
    if op_type == "SparsegenAttention":
        attributes["lambd"] = case.lambd
        outputs["support"] = TensorProto.INT32
    output, *support = run(op_type, inputs, outputs, element=element, **attributes)
    full, *full_support = run(op_type, inputs, outputs, **attributes)
    np.testing.assert_array_equal(output, rounded(full, element))
    for found, wanted in zip(support, full_support, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("element", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("hidden", [0, 1, 3])
@pytest.mark.parametrize("lambd", [None, -4.0])
def test_hidden_first_tokens(lambd: float | None, hidden: int, element: Element) -> None:
    """Float32 arithmetic in every type, and rows that are not to be replaced stay as they are."""
    tokens, heads = 11, HeadSettings(2, 0.25, lambd)
    rng = np.random.default_rng(hidden)
    names = ("output", "query", "key", "value")
    inputs = {
        name: rounded(rng.standard_normal((tokens + hidden, 32), dtype=np.float32), element) for name in names
    }
    inputs["rows"] = np.arange(tokens, tokens + hidden)
    inputs["allowed"] = rng.random((hidden, tokens + hidden)) < 0.6
    name = "SoftmaxHiddenFirst" if lambd is None else "SparsegenHiddenFirst"
    (replaced,) = run(
        name,
        inputs,
        {"replaced": TensorProto.FLOAT},
        element=element,
        domain=GRAPH_DOMAIN,
        **heads.attributes(),
    )
    output, query, key, value, rows, own = (torch.from_numpy(array) for array in inputs.values())
    unread = torch.empty(0, dtype=torch.int64)
    first = HiddenFirst(rows, own, ranks=unread)
    expected = attend_hidden_first(output, query, key, value, first, heads).numpy()
    np.testing.assert_array_equal(replaced[:tokens], inputs["output"][:tokens])
    one_ulp = {"float32": 1e-6, "float16": 2.0**-10, "bfloat16": 2.0**-7}[element]
    np.testing.assert_allclose(replaced, expected, rtol=one_ulp, atol=1e-6)


def test_function_signatures() -> None:
    function = op_function("SparsegenAttention", 20)
    assert list(function.input) == ["query", "key", "value", "cu_seqlens"]
    assert list(function.output) == ["output", "support"]
    assert {attribute.name for attribute in function.attribute_proto} == {"num_heads", "lambd", "scale"}
    assert {(entry.domain, entry.version) for entry in function.opset_import} == {("", 20), (DOMAIN, 1)}
