"""The ops on float16 and bfloat16: float32 arithmetic on the very inputs, its results rounded once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from one_op import (
    Array,
    attention_attributes,
    attention_inputs,
    axis_attributes,
    axis_inputs,
    bits,
    run_attention,
    run_axis,
    run_function,
    run_op,
)
from reference import packed_attention, sparsegen_lin

from axis_cases import AXIS_CASES, AxisCase
from cases import ATTENTION_CASES, AttentionCase, Element

OPS = {"SparsegenAttention": "sparsegen", "SoftmaxAttention": "softmax"}
# The other cases are float32's on the same numbers, rounded once.
FLOAT64_CASES = [
    case for case in ATTENTION_CASES if case.name in ("mixed_lengths", "bert_128", "head_size_17")
]
SHORT_AXIS_CASES = [case for case in AXIS_CASES if sum(case.attention.lengths) < 700]
HEAD_SIZES = [8, 9, 15, 16, 17, 64, 127, 128]

pytestmark = pytest.mark.parametrize("element", ["float16", "bfloat16"])


def rounded(array: Array, element: Element) -> Array:
    """Return a float32 array, each number rounded to the nearest of `element`, ties to even."""
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(element).astype(np.float32)


def every_number(element: Element) -> Array:
    """Return all 65536 numbers of `element` as float32: subnormals, infinities and NaN among them."""
    return np.arange(2**16).astype(np.uint16).view(element).astype(np.float32)


def assert_same_numbers(found: Array, expected: Array) -> None:
    """Bit for bit, but for NaN, which is NaN whatever its bits."""
    is_nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), is_nan)
    np.testing.assert_array_equal(bits(found[~is_nan]), bits(expected[~is_nan]))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("case", FLOAT64_CASES, ids=lambda case: case.name)
def test_attention_against_float64(library: Path, case: AttentionCase, op: str, element: Element) -> None:
    """Within the error budget of float32 and one rounding."""
    case = replace(case, element=element)
    output, *_ = run_attention(library, op, case)
    expected = packed_attention(case, OPS[op])
    one_rounding = float(ml_dtypes.finfo(element).eps) / 2 * np.abs(expected.output)
    assert (np.abs(output - expected.output) <= expected.budget() + one_rounding).all()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("case", ATTENTION_CASES, ids=lambda case: case.name)
def test_attention_is_float32_attention_rounded_once(
    library: Path, case: AttentionCase, op: str, element: Element
) -> None:
    case = replace(case, element=element)
    output, *support = run_attention(library, op, case, threads=2)
    full, *full_support = run_op(library, op, attention_inputs(case), **attention_attributes(op, case))
    assert_same_numbers(output, rounded(full, element))
    for found, wanted in zip(support, full_support, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("normalizer", OPS.values())
@pytest.mark.parametrize("case", SHORT_AXIS_CASES, ids=lambda case: case.name)
def test_axis_attention_is_float32_attention_rounded_once(
    library: Path, case: AxisCase, normalizer: Any, element: Element
) -> None:
    case = replace(case, normalizer=normalizer, attention=replace(case.attention, element=element))
    output, support = run_axis(library, case, threads=2)
    full, full_support = run_op(library, "AxisAttention", axis_inputs(case), **axis_attributes(case))
    assert_same_numbers(output, rounded(full, element))
    np.testing.assert_array_equal(support, full_support)


@pytest.mark.parametrize("normalizer", OPS.values())
def test_the_function_of_axis_attention_is_float32_too(normalizer: Any, element: Element) -> None:
    attention = AttentionCase("function", (70, 0, 1, 9), 2, 24, scores="trained", element=element)
    case = AxisCase(attention, 0.05, 0.1, (0, 1, 40), 2, normalizer=normalizer)
    inputs, attributes = axis_inputs(case), axis_attributes(case)
    output, support = run_function("AxisAttention", inputs, element, **attributes)
    full, full_support = run_function("AxisAttention", inputs, **attributes)
    assert_same_numbers(output, rounded(full, element))
    np.testing.assert_array_equal(support, full_support)


@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("normalizer", OPS.values())
@pytest.mark.parametrize("reached", ["row", "column", "diagonal", "random key"])
def test_axis_attention_reads_and_writes_every_number(
    library: Path, reached: str, normalizer: str, head_size: int, element: Element
) -> None:
    """A sequence of one token answers its value, in whatever way that is allowed."""
    value = np.resize(every_number(element), (2**16 // head_size + 1, head_size))
    zeros = np.zeros_like(value)
    on, off = np.ones(len(value), bool), np.zeros(len(value), bool)
    inputs = {"query": zeros, "key": zeros, "value": value}
    inputs["rows"] = on if reached == "row" else off
    inputs["columns"] = on if reached == "column" else off
    inputs["cu_seqlens"] = np.arange(len(value) + 1, dtype=np.int32)
    ways: dict[str, dict[str, Any]] = {"diagonal": {"diagonals": [0]}, "random key": {"random_keys": 1}}
    attributes: dict[str, Any] = {"num_heads": 1, "normalizer": normalizer} | ways.get(reached, {})
    output, support = run_op(library, "AxisAttention", inputs, element=element, **attributes)
    assert_same_numbers(output, np.where(value == 0, np.float32(0), value))
    assert (support == 1).all()


@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("op", OPS)
def test_every_number_is_read_and_written(library: Path, op: str, head_size: int, element: Element) -> None:
    """A sequence of one token answers its value."""
    value = np.resize(every_number(element), (2**16 // head_size + 1, head_size))
    zeros = np.zeros_like(value)
    inputs = {"query": zeros, "key": zeros, "value": value}
    inputs["cu_seqlens"] = np.arange(len(value) + 1, dtype=np.int32)
    case = AttentionCase("values", (), 1, head_size)
    output, *_ = run_op(library, op, inputs, element=element, **attention_attributes(op, case))
    # The sum begins with 0, so that -0 becomes 0.
    assert_same_numbers(output, np.where(value == 0, np.float32(0), value))


@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("op", OPS)
def test_results_are_rounded_to_nearest_even(
    library: Path, op: str, head_size: int, element: Element
) -> None:
    """Two tokens of equal scores answer the mean of their values: of neighbours it is a tie."""
    numbers = every_number(element)
    numbers = np.sort(numbers[np.isfinite(numbers) & (np.abs(numbers) < np.float32(1e38))])
    pairs = np.stack([numbers[:-1], numbers[1:]], 1)
    strangers = np.random.default_rng(0).choice(numbers, pairs.shape)
    pairs = np.concatenate([pairs, strangers * np.float32(0.25)])
    pairs = rounded(np.resize(pairs, (len(pairs) // head_size + 1, head_size, 2)), element)
    value = pairs.transpose(0, 2, 1).reshape(-1, head_size)
    zeros = np.zeros_like(value)
    inputs = {"query": zeros, "key": zeros, "value": value}
    inputs["cu_seqlens"] = np.arange(0, len(value) + 1, 2, dtype=np.int32)
    case = AttentionCase("ties", (), 1, head_size)
    output, *_ = run_op(library, op, inputs, element=element, **attention_attributes(op, case))
    half = np.float32(0.5)
    mean = pairs[..., 0] * half + pairs[..., 1] * half
    assert_same_numbers(output, np.repeat(rounded(mean, element), 2, axis=0).reshape(output.shape))


@pytest.mark.parametrize("op", OPS)
def test_queries_and_keys_of_every_size(library: Path, op: str, element: Element) -> None:
    """From subnormal to the largest number, where float16 scores would be infinite."""
    case = AttentionCase("sizes", (70, 33), 2, 24, seed=5, element=element)
    inputs = attention_inputs(case)
    exponents = np.random.default_rng(6).uniform(-24, 15, inputs["key"].shape)
    inputs["key"] = rounded(np.exp2(exponents, dtype=np.float32) * np.sign(inputs["key"]), element)
    attributes = attention_attributes(op, case)
    output, *support = run_op(library, op, inputs, element=element, **attributes)
    full, *full_support = run_op(library, op, inputs, **attributes)
    assert np.isfinite(output).all()
    assert_same_numbers(output, rounded(full, element))
    for found, wanted in zip(support, full_support, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("length", [5, 200])
def test_non_finite_scores(library: Path, op: str, length: int, element: Element) -> None:
    """Row 0 sees NaN, row 1 +inf, row 2 only -inf; the next sequence sees none of them."""
    case = AttentionCase("non_finite", (length, length), 1, 16, element=element)
    inputs = attention_inputs(case)
    inputs["query"] = np.abs(inputs["query"])
    inputs["key"][:length] = -np.abs(inputs["key"][:length])
    inputs["key"][0] = -np.inf
    inputs["query"][0, 3] = np.nan
    inputs["query"][1] = -1
    inputs["query"][2] = np.inf
    output, *support = run_op(library, op, inputs, element=element, **attention_attributes(op, case))
    assert np.isnan(output[:2]).all()
    assert not output[2].any()
    assert np.isfinite(output[3:]).all()
    for counts in support:
        assert list(counts[:3, 0]) == [length, length, 0]


@pytest.mark.parametrize("lambd", [-4.0, 0.99])
@pytest.mark.parametrize("shape", [(9,), (3, 5, 7), (40, 300), (5, 70, 3), (17, 1), (1, 3000)], ids=str)
def test_sparsegen_lin(library: Path, shape: tuple[int, ...], lambd: float, element: Element) -> None:
    draws = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    scores = rounded(draws * np.float32(6), element)
    for axis in range(len(shape)):
        attributes: dict[str, Any] = {"lambd": lambd, "axis": axis}
        (weights,) = run_op(library, "SparsegenLin", {"scores": scores}, element=element, **attributes)
        (full,) = run_op(library, "SparsegenLin", {"scores": scores}, **attributes)
        assert_same_numbers(weights, rounded(full, element))
        expected = sparsegen_lin(scores.astype(np.float64), lambd, axis)
        slack = 1e-4 + float(ml_dtypes.finfo(element).eps)
        np.testing.assert_allclose(weights, expected, rtol=0, atol=slack)


@pytest.mark.parametrize("axis", [0, 1])
def test_sparsegen_lin_of_non_finite_rows(library: Path, axis: int, element: Element) -> None:
    inf, nan = np.inf, np.nan
    scores = np.array([[0, 1, -inf] * 7, [-inf] * 21, [0, nan, 1] * 7, [inf, 0, 0] * 7, [5] * 21], np.float32)
    expected = np.array([[0, 1 / 7, 0] * 7, [0] * 21, [nan] * 21, [nan] * 21, [1 / 21] * 21], np.float32)
    inputs = {"scores": scores if axis == 1 else scores.T.copy()}
    (weights,) = run_op(library, "SparsegenLin", inputs, element=element, lambd=0.0, axis=axis)
    assert_same_numbers(weights if axis == 1 else weights.T, rounded(expected, element))


@pytest.mark.parametrize("op", ["SparsegenLin", *OPS])
def test_nothing_in_nothing_out(library: Path, op: str, element: Element) -> None:
    empty = np.zeros((0, 32), np.float32)
    attributes: dict[str, Any]
    if op == "SparsegenLin":
        inputs, attributes = {"scores": empty}, {"lambd": 0.0}
    else:
        case = AttentionCase("empty", (0,), 2, 16)
        inputs, attributes = attention_inputs(case), attention_attributes(op, case)
    output, *_ = run_op(library, op, inputs, element=element, **attributes)
    assert output.shape == (0, 32)
