"""Every refusal is a status that says what was wrong, what was received and what is accepted."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from one_op import (
    Array,
    attention_inputs,
    axis_inputs,
    cross_inputs,
    library_under_test,
    op_model,
    open_session,
    run_op,
)

from axis_cases import AxisCase
from cases import AttentionCase
from cross_cases import AskedQueries

CASE = AttentionCase("errors", (4, 6), 2, 16)
SCORES = {"scores": np.zeros((2, 3), np.float32)}
SPARSEGEN: dict[str, Any] = {"num_heads": 2, "lambd": -4.0}
AXIS = AxisCase(CASE, 0.5, 0.5)
QUERIES = AskedQueries(np.array([5, 0, 0], np.int64), np.array([0, 1, 3], np.int32))
CROSS = cross_inputs(attention_inputs(CASE), QUERIES)
AXIS_CROSS = cross_inputs(axis_inputs(AXIS), QUERIES)
AXIS_SPARSEGEN: dict[str, Any] = {"num_heads": 2, "normalizer": "sparsegen"}
HIDDEN = {
    "hidden": np.zeros((5, 16), np.float32),
    "weight": np.zeros((2, 16), np.float32),
    "bias": np.zeros(2, np.float32),
}


@pytest.fixture(scope="module")
def library() -> Path:
    return library_under_test()


def refusal(library: Path, op: str, inputs: dict[str, Array], attributes: dict[str, Any]) -> str:
    with pytest.raises(Exception, match=op) as error:
        run_op(library, op, inputs, **attributes)
    assert "\n" not in str(error.value).strip()
    return str(error.value)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "attribute lambd is missing; accepted: a finite number < 1"),
        ({"lambd": 1.0}, "attribute lambd is 1; accepted: a finite number < 1"),
        ({"lambd": float("nan")}, "attribute lambd is nan; accepted"),
        ({"lambd": float("-inf")}, "attribute lambd is -inf; accepted"),
        ({"lambd": -4}, "attribute lambd has the wrong type; accepted"),
        ({"lambd": "-4"}, "attribute lambd has the wrong type; accepted"),
        ({"lambd": [-4.0]}, "attribute lambd has the wrong type; accepted"),
        ({"lambd": [-4]}, "attribute lambd has the wrong type; accepted"),
        ({"lambd": 0.0, "axis": 2}, "attribute axis is 2; accepted for scores of shape (2, 3): -2 to 1"),
        ({"lambd": 0.0, "axis": -3}, "attribute axis is -3; accepted"),
        ({"lambd": 0.0, "axis": 1.0}, "attribute axis has the wrong type; accepted: an integer"),
        ({"lambd": 0.0, "axis": [1]}, "attribute axis has the wrong type; accepted: an integer"),
        ({"lambd": 0.0, "axis": [1.0, 2.0]}, "attribute axis has the wrong type; accepted: an integer"),
        ({"lambd": 0.0, "axis": ["1"]}, "attribute axis has the wrong type; accepted: an integer"),
    ],
)
def test_sparsegen_lin_attributes(library: Path, attributes: dict[str, Any], message: str) -> None:
    assert f"SparsegenLin: {message}" in refusal(library, "SparsegenLin", SCORES, attributes)


def test_sparsegen_lin_of_a_scalar(library: Path) -> None:
    message = refusal(library, "SparsegenLin", {"scores": np.array(1, np.float32)}, {"lambd": 0.0})
    assert "scores is a scalar; accepted: rank 1 or more" in message


@pytest.mark.parametrize(("shape", "axis"), [((0, 2**31), 1), ((2**31, 0), -2)], ids=str)
def test_sparsegen_lin_of_more_elements_than_int32_counts(
    library: Path, shape: tuple[int, int], axis: int
) -> None:
    """Told from the size alone, in a tensor without an element."""
    scores = {"scores": np.zeros(shape, np.float32)}
    message = refusal(library, "SparsegenLin", scores, {"lambd": 0.0, "axis": axis})
    assert f"has 2147483648 elements along axis {axis}; accepted: at most 2147483647" in message


def test_a_subnormal_scale_is_refused_where_it_counts_as_zero(
    library: Path, request: pytest.FixtureRequest
) -> None:
    """It would stand for 1 / sqrt(head_size)."""
    model = op_model("SparsegenAttention", attention_inputs(CASE), **SPARSEGEN, scale=1e-38)
    request.getfixturevalue("subnormals_are_zero")
    with pytest.raises(Exception, match="SparsegenAttention: attribute scale is "):
        open_session(model, library)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"num_heads": 2}, "attribute lambd is missing"),
        ({"lambd": -4.0}, "attribute num_heads is missing; accepted: an integer >= 1"),
        (SPARSEGEN | {"num_heads": 0}, "attribute num_heads is 0; accepted: an integer >= 1"),
        (SPARSEGEN | {"num_heads": -2}, "attribute num_heads is -2; accepted"),
        (SPARSEGEN | {"num_heads": 2.0}, "attribute num_heads has the wrong type"),
        (SPARSEGEN | {"num_heads": [2]}, "attribute num_heads has the wrong type"),
        (SPARSEGEN | {"num_heads": 3}, "num_heads is 3, which does not divide the width of query, 32"),
        (SPARSEGEN | {"num_heads": 8}, "head size is 4 (width 32 / num_heads 8); accepted: 8 to 128"),
        (SPARSEGEN | {"scale": -0.5}, "attribute scale is -0.5; accepted: a finite number >= 2^-126, or 0"),
        (SPARSEGEN | {"scale": float("nan")}, "attribute scale is nan; accepted"),
        (SPARSEGEN | {"scale": float("inf")}, "attribute scale is inf; accepted"),
        (SPARSEGEN | {"scale": 1e-38}, "attribute scale is 1e-38; accepted"),
        (SPARSEGEN | {"scale": 1}, "attribute scale has the wrong type"),
        (SPARSEGEN | {"scale": [0.3]}, "attribute scale has the wrong type"),
        (SPARSEGEN | {"scale": [1, 2]}, "attribute scale has the wrong type"),
        (SPARSEGEN | {"lambd": 1.5}, "attribute lambd is 1.5; accepted"),
    ],
)
def test_attention_attributes(library: Path, attributes: dict[str, Any], message: str) -> None:
    found = refusal(library, "SparsegenAttention", attention_inputs(CASE), attributes)
    assert f"SparsegenAttention: {message}" in found or message in found


WIDE = np.zeros((10, 258), np.float32)
MANY = np.zeros((2**31, 0), np.float32)


@pytest.mark.parametrize("op", ["SparsegenAttention", "SoftmaxAttention"])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"query": np.zeros((1, 10, 32), np.float32)},
            "query has shape (1, 10, 32); accepted: (tokens,",
        ),
        ({"query": np.zeros(10, np.float32)}, "query has shape (10,); accepted"),
        (
            {"key": np.zeros((9, 32), np.float32)},
            "have shapes (10, 32), (9, 32), (10, 32)",
        ),
        (
            {"value": np.zeros((10, 34), np.float32)},
            "have shapes (10, 32), (10, 32), (10, 34)",
        ),
        (
            {"query": WIDE, "key": WIDE, "value": WIDE},
            "head size is 129 (width 258 / num_heads 2); accepted",
        ),
        (
            {"query": MANY, "key": MANY, "value": MANY},
            "query has 2147483648 rows; accepted: at most 2147483647, as cu_seqlens",
        ),
        (
            {"cu_seqlens": np.zeros((2, 1), np.int32)},
            "cu_seqlens has shape (2, 1); accepted: (seq",
        ),
        ({"cu_seqlens": np.zeros(0, np.int32)}, "cu_seqlens has shape (0,); accepted: (seq"),
        ({"cu_seqlens": np.array([1, 10], np.int32)}, "cu_seqlens[0] is 1; accepted: 0"),
        ({"cu_seqlens": np.array([0, 7, 5, 10], np.int32)}, "cu_seqlens decreases from 7 to 5 at position 2"),
        (
            {"cu_seqlens": np.array([0, 2**31 - 1, 10], np.int32)},
            "cu_seqlens decreases from 2147483647 to",
        ),
        ({"cu_seqlens": np.array([0, -3, 10], np.int32)}, "cu_seqlens decreases from 0 to -3 at position 1"),
        (
            {"cu_seqlens": np.array([0, 9], np.int32)},
            "cu_seqlens ends with 9; accepted: 10, the",
        ),
        ({"cu_seqlens": np.array([0, 11], np.int32)}, "cu_seqlens ends with 11; accepted: 10"),
        ({"cu_seqlens": np.array([0], np.int32)}, "cu_seqlens ends with 0; accepted: 10"),
    ],
)
def test_attention_inputs(library: Path, op: str, changed: dict[str, Array], message: str) -> None:
    attributes = SPARSEGEN if op == "SparsegenAttention" else {"num_heads": 2}
    assert message in refusal(library, op, attention_inputs(CASE) | changed, attributes)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "attribute num_heads is missing; accepted: an integer >= 1"),
        ({"num_heads": 0}, "attribute num_heads is 0; accepted"),
        ({"num_heads": 2, "scale": -1.0}, "attribute scale is -1; accepted: a finite number >= 2^-126"),
        ({"num_heads": 2, "diagonals": [0, -3]}, "attribute diagonals holds -3; accepted: a list of offsets"),
        ({"num_heads": 2, "diagonals": [0.0]}, "attribute diagonals has the wrong type; accepted: a list"),
        ({"num_heads": 2, "diagonals": "0"}, "attribute diagonals has the wrong type; accepted: a list"),
        ({"num_heads": 2, "diagonals": 2}, "attribute diagonals has the wrong type; accepted: a list"),
        ({"num_heads": 2, "random_keys": -1}, "attribute random_keys is -1; accepted: an integer from 0"),
        ({"num_heads": 2, "random_keys": 2**31}, "attribute random_keys is 2147483648; accepted: an integer"),
        ({"num_heads": 2, "random_keys": 1.0}, "attribute random_keys has the wrong type; accepted"),
        ({"num_heads": 2, "random_keys": [1]}, "attribute random_keys has the wrong type; accepted"),
        ({"num_heads": 2, "seed": -1}, "attribute seed is -1; accepted: an integer >= 0"),
        ({"num_heads": 2, "seed": "1"}, "attribute seed has the wrong type; accepted: an integer >= 0"),
        (
            {"num_heads": 2, "normalizer": "entmax"},
            'attribute normalizer is "entmax"; accepted: "softmax" or "sparsegen"',
        ),
        ({"num_heads": 2, "normalizer": "Softmax"}, 'attribute normalizer is "Softmax"; accepted'),
        ({"num_heads": 2, "normalizer": ""}, 'attribute normalizer is ""; accepted'),
        ({"num_heads": 2, "normalizer": 1}, "attribute normalizer has the wrong type; accepted"),
        ({"num_heads": 2, "normalizer": ["softmax"]}, "attribute normalizer has the wrong type; accepted"),
        (AXIS_SPARSEGEN | {"lambd": 1.0}, "attribute lambd is 1; accepted: a finite number < 1"),
        (AXIS_SPARSEGEN | {"lambd": float("nan")}, "attribute lambd is nan; accepted"),
        (AXIS_SPARSEGEN | {"lambd": float("-inf")}, "attribute lambd is -inf; accepted"),
        (AXIS_SPARSEGEN | {"lambd": -4}, "attribute lambd has the wrong type; accepted"),
    ],
)
def test_axis_attributes(library: Path, attributes: dict[str, Any], message: str) -> None:
    found = refusal(library, "AxisAttention", axis_inputs(AXIS), attributes)
    assert f"AxisAttention: {message}" in found


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rows": np.zeros(9, bool)}, "rows has shape (9,); accepted: (10,), one for each row of query"),
        ({"rows": np.zeros((10, 1), bool)}, "rows has shape (10, 1); accepted: (10,)"),
        ({"rows": np.array(True)}, "rows has shape (); accepted: (10,)"),
        ({"columns": np.zeros(11, bool)}, "columns has shape (11,); accepted: (10,)"),
        ({"columns": np.zeros((2, 5), bool)}, "columns has shape (2, 5); accepted: (10,)"),
        ({"key": np.zeros((9, 32), np.float32)}, "have shapes (10, 32), (9, 32), (10, 32)"),
        ({"query": WIDE, "key": WIDE, "value": WIDE}, "head size is 129 (width 258 / num_heads 2)"),
        ({"cu_seqlens": np.array([0, 9], np.int32)}, "cu_seqlens ends with 9; accepted: 10"),
        ({"cu_seqlens": np.array([0, 7, 5, 10], np.int32)}, "cu_seqlens decreases from 7 to 5 at position 2"),
    ],
)
def test_axis_inputs(library: Path, changed: dict[str, Array], message: str) -> None:
    assert message in refusal(library, "AxisAttention", axis_inputs(AXIS) | changed, {"num_heads": 2})


def borders(*values: int) -> Array:
    return np.array(values, np.int32)


@pytest.mark.parametrize("op", ["SparsegenCrossAttention", "SoftmaxCrossAttention", "AxisCrossAttention"])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"query": np.zeros(32, np.float32)}, "query has shape (32,); accepted: (tokens, num_heads"),
        ({"key": np.zeros(32, np.float32)}, "key has shape (32,); accepted: (tokens, num_heads"),
        (
            {"key": np.zeros((9, 32), np.float32)},
            "key and value have shapes (9, 32), (10, 32); accepted: the same (tokens, 32) for both",
        ),
        (
            {"value": np.zeros(32, np.float32)},
            "key and value have shapes (10, 32), (32,); accepted",
        ),
        (
            {"key": np.zeros((10, 16), np.float32), "value": np.zeros((10, 16), np.float32)},
            "key and value have shapes (10, 16), (10, 16); accepted: the same (tokens, 32) for both",
        ),
        ({"query": np.zeros((3, 258), np.float32)}, "head size is 129 (width 258 / num_heads 2); accepted"),
        ({"query": MANY}, "query has 2147483648 rows; accepted: at most 2147483647, as cu_seqlens is int32"),
        (
            {"cu_seqlens_q": borders(0, 3)},
            "cu_seqlens_q and cu_seqlens_k have 2 and 3 elements; accepted",
        ),
        ({"cu_seqlens_q": borders()}, "cu_seqlens_q has shape (0,); accepted: (seq"),
        ({"cu_seqlens_q": borders(1, 1, 3)}, "cu_seqlens_q[0] is 1; accepted: 0"),
        ({"cu_seqlens_q": borders(0, 3, 2)}, "cu_seqlens_q decreases from 3 to 2 at position 2"),
        ({"cu_seqlens_q": borders(0, -1, 3)}, "cu_seqlens_q decreases from 0 to -1 at position 1"),
        (
            {"cu_seqlens_q": borders(0, 4, 10)},
            "cu_seqlens_q ends with 10; accepted: 3, the number of",
        ),
        ({"cu_seqlens_k": borders(0, 4, 3)}, "cu_seqlens_k decreases from 4 to 3 at position 2"),
        (
            {"cu_seqlens_k": borders(0, 4, 9)},
            "cu_seqlens_k ends with 9; accepted: 10, the number of",
        ),
        ({"cu_seqlens_k": np.zeros((3, 1), np.int32)}, "cu_seqlens_k has shape (3, 1); accepted: (seq"),
    ],
)
def test_cross_attention_inputs(library: Path, op: str, changed: dict[str, Array], message: str) -> None:
    attributes = SPARSEGEN if op == "SparsegenCrossAttention" else {"num_heads": 2}
    inputs = AXIS_CROSS if op == "AxisCrossAttention" else CROSS
    assert f"{op}: {message}" in refusal(library, op, inputs | changed, attributes)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"query_tokens": np.array([5, 0], np.int64)},
            "query_tokens has shape (2,); accepted: (3,), one",
        ),
        ({"query_tokens": np.zeros((3, 1), np.int64)}, "query_tokens has shape (3, 1); accepted: (3,), one"),
        (
            {"query_tokens": np.array([5, 0, 10], np.int64)},
            "query_tokens[2] is 10; accepted: a row of key",
        ),
        ({"query_tokens": np.array([5, -1, 0], np.int64)}, "query_tokens[1] is -1; accepted: a row of key"),
        ({"query_tokens": np.array([2**40, 0, 0], np.int64)}, "query_tokens[0] is 1099511627776; accepted"),
        ({"rows": np.zeros(3, bool)}, "rows has shape (3,); accepted: (10,), one for each row of key"),
        (
            {"columns": np.zeros((10, 1), bool)},
            "columns has shape (10, 1); accepted: (10,), one for",
        ),
    ],
)
def test_axis_cross_inputs(library: Path, changed: dict[str, Array], message: str) -> None:
    found = refusal(library, "AxisCrossAttention", AXIS_CROSS | changed, {"num_heads": 2})
    assert f"AxisCrossAttention: {message}" in found


def test_a_query_of_no_token_at_all(library: Path) -> None:
    """Where there are no keys no query can be one of them."""
    none = np.zeros((0, 32), np.float32)
    off = np.zeros(0, bool)
    empty = {"key": none, "value": none, "rows": off, "columns": off, "cu_seqlens_k": borders(0, 0, 0)}
    found = refusal(library, "AxisCrossAttention", AXIS_CROSS | empty, {"num_heads": 2})
    assert "query_tokens[0] is 5; accepted: a row of key, which has 0" in found


@pytest.mark.parametrize("op", ["SparsegenCrossAttention", "SoftmaxCrossAttention", "AxisCrossAttention"])
def test_cross_attention_says_its_name_in_refusing_attributes(library: Path, op: str) -> None:
    inputs = AXIS_CROSS if op == "AxisCrossAttention" else CROSS
    lambd = {"lambd": -4.0} if op == "SparsegenCrossAttention" else {}
    found = refusal(library, op, inputs, {"num_heads": 0, **lambd})
    assert f"{op}: attribute num_heads is 0; accepted: an integer >= 1" in found


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden": np.zeros(16, np.float32)}, "hidden has shape (16,); accepted: (tokens, width)"),
        ({"hidden": np.zeros((1, 5, 16), np.float32)}, "hidden has shape (1, 5, 16); accepted"),
        (
            {"hidden": np.zeros((5, 17), np.float32)},
            "weight has shape (2, 16); accepted: (2, 17), as hidden has width 17",
        ),
        ({"weight": np.zeros((16, 2), np.float32)}, "weight has shape (16, 2); accepted: (2, 16)"),
        ({"weight": np.zeros((1, 16), np.float32)}, "weight has shape (1, 16); accepted: (2, 16)"),
        ({"bias": np.zeros(3, np.float32)}, "bias has shape (3,); accepted: (2,)"),
        ({"bias": np.zeros((2, 1), np.float32)}, "bias has shape (2, 1); accepted: (2,)"),
    ],
)
def test_axis_mask_inputs(library: Path, changed: dict[str, Array], message: str) -> None:
    assert f"AxisMask: {message}" in refusal(library, "AxisMask", HIDDEN | changed, {})


PRODUCT = {
    "products": np.zeros((5, 16), np.int32),
    "scale": np.zeros((5, 1), np.float32),
    "column_scale": np.zeros(16, np.float32),
    "bias": np.zeros(16, np.float32),
}


@pytest.mark.parametrize("op", ["DequantizeRows", "RequantizeGelu"])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"products": np.zeros((), np.int32)}, "products is a scalar; accepted: rank 1 or more"),
        (
            {"products": np.zeros((5, 0), np.int32)},
            "products has shape (5, 0); accepted: rows of 1 or more numbers",
        ),
        (
            {"scale": np.zeros(5, np.float32)},
            "scale has shape (5,); accepted: (5, 1), as products has shape (5, 16)",
        ),
        ({"scale": np.zeros((4, 1), np.float32)}, "scale has shape (4, 1); accepted: (5, 1)"),
        ({"column_scale": np.zeros(15, np.float32)}, "column_scale has shape (15,); accepted: (16,)"),
        ({"bias": np.zeros((1, 16), np.float32)}, "bias has shape (1, 16); accepted: (16,)"),
    ],
)
def test_product_inputs(library: Path, op: str, changed: dict[str, Array], message: str) -> None:
    assert f"{op}: {message}" in refusal(library, op, PRODUCT | changed, {})


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((), "values is a scalar; accepted: rank 1 or more"),
        ((3, 0), "values has shape (3, 0); accepted: rows of 1 or more numbers"),
    ],
)
def test_quantized_inputs(library: Path, shape: tuple[int, ...], message: str) -> None:
    values = {"values": np.zeros(shape, np.float32)}
    assert f"QuantizeRows: {message}" in refusal(library, "QuantizeRows", values, {})


SUM = {
    **{name: np.zeros((5, 16), np.float32) for name in ("input", "skip")},
    **{name: np.zeros(16, np.float32) for name in ("gamma", "beta", "bias")},
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"input": np.zeros((), np.float32)}, "input is a scalar; accepted: rank 1 or more"),
        (
            {"input": np.zeros((5, 0), np.float32)},
            "input has shape (5, 0); accepted: rows of 1 or more numbers",
        ),
        (
            {"skip": np.zeros((1, 16), np.float32)},
            "skip has shape (1, 16); accepted: (5, 16), as input has shape (5, 16)",
        ),
        ({"gamma": np.zeros(15, np.float32)}, "gamma has shape (15,); accepted: (16,), as input has shape"),
        ({"beta": np.zeros((1, 16), np.float32)}, "beta has shape (1, 16); accepted: (16,)"),
        ({"bias": np.zeros((), np.float32)}, "bias has shape (); accepted: (16,)"),
    ],
)
def test_sum_inputs(library: Path, changed: dict[str, Array], message: str) -> None:
    found = refusal(library, "SkipLayerNormalization", SUM | changed, {"epsilon": 1e-5})
    assert f"SkipLayerNormalization: {message}" in found


@pytest.mark.parametrize(
    ("shape", "width", "message"),
    [
        ((), 4, "input is a scalar; accepted: rank 1 or more"),
        ((3, 0), 4, "input has shape (3, 0); accepted: rows of 1 or more numbers"),
        ((3, 5), 4, "bias has shape (4,); accepted: (5,), as input has shape (3, 5)"),
    ],
)
def test_biased_inputs(library: Path, shape: tuple[int, ...], width: int, message: str) -> None:
    inputs = {"input": np.zeros(shape, np.float32), "bias": np.zeros(width, np.float32)}
    assert f"BiasGelu: {message}" in refusal(library, "BiasGelu", inputs, {})


@pytest.mark.parametrize("epsilon", [-1e-12, float("inf"), float("nan")])
def test_epsilon(library: Path, epsilon: float) -> None:
    found = refusal(library, "SkipLayerNormalization", SUM, {"epsilon": epsilon})
    assert f"attribute epsilon is {epsilon:g}; accepted: a finite number >= 0" in found


def test_a_session_answers_after_a_refusal(library: Path) -> None:
    inputs = attention_inputs(CASE)
    session = open_session(op_model("SparsegenAttention", inputs, **SPARSEGEN), library)
    expected = session.run(None, inputs)
    with pytest.raises(Exception, match="cu_seqlens"):
        session.run(None, inputs | {"cu_seqlens": np.array([0, 3], np.int32)})
    for found, value in zip(session.run(None, inputs), expected, strict=True):
        np.testing.assert_array_equal(found, value)


@pytest.mark.parametrize(
    ("op", "name", "dtype"),
    [
        ("SparsegenLin", "scores", np.float64),
        ("SparsegenLin", "scores", np.int32),
        ("SparsegenAttention", "cu_seqlens", np.int64),
        ("SoftmaxAttention", "query", np.float64),
        ("AxisAttention", "cu_seqlens", np.int64),
        ("AxisAttention", "rows", np.int32),
        ("AxisAttention", "columns", np.float64),
        ("AxisAttention", "query", np.float64),
        ("AxisMask", "hidden", np.int32),
        ("SparsegenCrossAttention", "cu_seqlens_q", np.int64),
        ("SoftmaxCrossAttention", "cu_seqlens_k", np.int64),
        ("AxisCrossAttention", "query_tokens", np.int32),
    ],
)
def test_types_are_refused_when_the_model_loads(library: Path, op: str, name: str, dtype: type[Any]) -> None:
    ops: dict[str, tuple[dict[str, Array], dict[str, Any]]] = {
        "SparsegenLin": (dict(SCORES), {"lambd": 0.0}),
        "SparsegenAttention": (attention_inputs(CASE), SPARSEGEN),
        "SoftmaxAttention": (attention_inputs(CASE), {"num_heads": 2}),
        "AxisAttention": (axis_inputs(AXIS), {"num_heads": 2}),
        "AxisMask": (dict(HIDDEN), {}),
        "SparsegenCrossAttention": (dict(CROSS), SPARSEGEN),
        "SoftmaxCrossAttention": (dict(CROSS), {"num_heads": 2}),
        "AxisCrossAttention": (dict(AXIS_CROSS), {"num_heads": 2}),
    }
    inputs, attributes = ops[op]
    inputs[name] = inputs[name].astype(dtype)
    model = op_model(op, inputs, **attributes)
    kind = {"float64": "double"}.get(dtype.__name__, dtype.__name__)
    message = f"'tensor({kind})' of input parameter ({name}) of operator ({op})"
    with pytest.raises(Exception, match=re.escape(message)):
        open_session(model, library)


@pytest.mark.parametrize("op", ["SparsegenAttention", "SoftmaxAttention", "AxisAttention"])
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_mixed_types_are_refused_when_the_model_loads(library: Path, op: str, name: str) -> None:
    inputs = axis_inputs(AXIS) if op == "AxisAttention" else attention_inputs(CASE)
    attributes = SPARSEGEN if op == "SparsegenAttention" else {"num_heads": 2}
    model = op_model(op, inputs | {name: inputs[name].astype(np.float16)}, **attributes)
    with pytest.raises(Exception, match=f"no kernel def matches node inputs for Op: {op}"):
        open_session(model, library)


@pytest.mark.parametrize("name", list(HIDDEN))
def test_mixed_types_of_axis_mask_are_refused_when_the_model_loads(library: Path, name: str) -> None:
    model = op_model("AxisMask", HIDDEN | {name: HIDDEN[name].astype(np.float16)})
    with pytest.raises(Exception, match="no kernel def matches node inputs for Op: AxisMask"):
        open_session(model, library)
