"""AxisAttention, its kernel and its function, against dense attention masked to the allowed pairs."""

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_op import (
    Array,
    attention_inputs,
    axis_attributes,
    axis_inputs,
    bits,
    library_under_test,
    run_axis,
    run_function,
    run_op,
)
from reference import allowed_pairs, axis_attention, random_key

from axis_cases import AXIS_CASES, LOCAL2, AxisCase
from cases import AttentionCase, Element

NORMALIZERS = ("softmax", "sparsegen")
SHORT_CASES = [case for case in AXIS_CASES if sum(case.attention.lengths) < 1000]
MIXED = AxisCase(AttentionCase("mixed", (1, 17, 0, 200, 31, 64, 5), 3, 40), 0.03, 0.05, LOCAL2, 2, 9)

# Keys that seed 0 draws for (row, draw) of a sequence of 1000.
KNOWN_KEYS = {(0, 0): 490, (0, 1): 356, (1, 0): 67, (999, 7): 680}

# The patterns that the AAA paper names, with offsets in place of the learned diagonals.
NAMED = {
    "local2+global2": {"diagonals": (0, 1, 2), "global_size": 2},
    "local2+global1+random1": {"diagonals": (0, 1, 2), "global_size": 1, "random_keys": 2},
    "local3+global1": {"diagonals": (0, 1, 2, 3), "global_size": 1},
    "local1+global1+random2": {"diagonals": (0, 1), "global_size": 1, "random_keys": 4},
    "diagonal+global1": {"diagonals": (0, 1, 5, 40), "global_size": 1},
}


def check(answer: list[Array], case: AxisCase) -> None:
    output, support = answer
    expected = axis_attention(case)
    assert output.dtype == np.float32
    assert support.dtype == np.int32
    assert output.shape == expected.output.shape
    if output.size == 0:
        return
    assert np.abs(output - expected.output).max() <= 1e-5
    assert (support >= expected.least_support).all()
    assert (support <= expected.most_support).all()
    if case.normalizer == "softmax":
        np.testing.assert_array_equal(support, np.repeat(expected.allowed[:, None], support.shape[1], 1))
    has_key = expected.allowed > 0
    assert not output[~has_key].any()
    assert not has_key.any() or np.abs(output).max() > 1e-3


def assert_same_bits(found: list[Array], expected: list[Array]) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("case", AXIS_CASES, ids=lambda case: case.name)
def test_case_table(library: Path, case: AxisCase, normalizer: Any) -> None:
    case = replace(case, normalizer=normalizer)
    check(run_axis(library, case, threads=2), case)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("case", SHORT_CASES, ids=lambda case: case.name)
def test_case_table_by_the_function(case: AxisCase, normalizer: Any) -> None:
    case = replace(case, normalizer=normalizer)
    check(run_function("AxisAttention", axis_inputs(case), **axis_attributes(case)), case)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("name", NAMED)
def test_named_patterns(library: Path, name: str, normalizer: Any) -> None:
    case = AxisCase(AttentionCase(name, (1, 2, 90, 33), 2, 32), normalizer=normalizer, **NAMED[name])
    check(run_axis(library, case), case)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("on", list(product([False, True], repeat=5)), ids=str)
def test_every_combination_of_patterns(on: tuple[bool, ...], normalizer: Any) -> None:
    """Rows, columns, diagonals, global ones and random keys, each there or not."""
    rows, columns, diagonals, first, drawn = on
    case = AxisCase(
        AttentionCase("combined", (60, 7), 2, 16),
        rows=0.1 * rows,
        columns=0.1 * columns,
        diagonals=(0, 1, 9) if diagonals else (),
        random_keys=3 * drawn,
        seed=4,
        normalizer=normalizer,
        global_size=2 * first,
    )
    check(run_axis(library_under_test(), case), case)


sizes = st.sampled_from([0, 1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 128]) | st.integers(0, 150)
problems = st.builds(
    AxisCase,
    attention=st.builds(
        AttentionCase,
        name=st.just("random"),
        lengths=st.lists(sizes, min_size=0, max_size=4).map(tuple),
        num_heads=st.integers(1, 13),
        head_size=st.integers(8, 128),
        lambd=st.floats(-50, 0.5).map(lambda x: float(np.float32(x))),
        scale=st.sampled_from([0.0, 0.2]),
        scores=st.sampled_from(["normal", "equal", "trained"]),
        seed=st.integers(0, 2**32 - 1),
    ),
    rows=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    columns=st.sampled_from([0.0, 0.02, 0.3, 0.9, 1.0]),
    diagonals=(st.lists(st.integers(0, 200), max_size=12) | st.integers(0, 60).map(range)).map(tuple),
    random_keys=st.sampled_from([0, 0, 1, 3, 40]),
    seed=st.integers(0, 2**63 - 1),
    normalizer=st.sampled_from(NORMALIZERS),
    at_least_one=st.booleans(),
    global_size=st.sampled_from([0, 0, 1, 3]),
)


@settings(deadline=None, max_examples=100)
@given(case=problems)
def test_random_problems(case: AxisCase) -> None:
    """Kernel, function and reference."""
    check(run_axis(library_under_test(), case, threads=2), case)
    check(run_function("AxisAttention", axis_inputs(case), **axis_attributes(case)), case)


@settings(deadline=None, max_examples=8)
@given(
    length=st.integers(1000, 4096),
    rows=st.sampled_from([0.0, 0.01]),
    diagonals=st.sampled_from([LOCAL2, tuple(range(300)), (0, 7, 900)]),
    random_keys=st.sampled_from([0, 2]),
    normalizer=st.sampled_from(NORMALIZERS),
)
def test_random_long_sequences(
    length: int, rows: float, diagonals: tuple[int, ...], random_keys: int, normalizer: Any
) -> None:
    attention = AttentionCase("long", (length,), 1, 32, scores="trained", seed=length)
    case = AxisCase(attention, rows, 0.02, diagonals, random_keys, length, normalizer)
    check(run_axis(library_under_test(), case, threads=2), case)


@pytest.mark.parametrize("case", SHORT_CASES, ids=lambda case: case.name)
def test_support_sums_to_the_size_of_the_pattern(case: AxisCase) -> None:
    """|B| of every head, and ρ of Eq. 9 with it, by brute force over all pairs."""
    _, support = run_axis(library_under_test(), case)
    rows, columns = case.indicators()
    for begin, end in pairwise(case.attention.cu_seqlens):
        pairs = allowed_pairs(case, rows[begin:end], columns[begin:end])
        assert (support[begin:end].sum(0) == pairs.sum()).all()


def test_random_keys_of_known_seeds(library: Path) -> None:
    """The keys of a row, written out: a change of the hash would change trained models."""
    length = 1000
    assert {where: random_key(0, *where, length) for where in KNOWN_KEYS} == KNOWN_KEYS
    case = AxisCase(AttentionCase("known", (length,), 1, 8), random_keys=2)
    _, support = run_axis(library, case)
    drawn = [{random_key(0, row, draw, length) for draw in range(2)} for row in range(length)]
    assert list(support[:, 0]) == [len(keys) for keys in drawn]


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_a_sequence_does_not_depend_on_its_companions_or_threads(library: Path, normalizer: Any) -> None:
    """Bit for bit: alone, among others, with the others in another order, on one thread and on two."""
    case = replace(MIXED, normalizer=normalizer)
    inputs, attributes = axis_inputs(case), axis_attributes(case)
    together = run_op(library, "AxisAttention", inputs, 1, **attributes)
    sequences = [np.arange(a, b) for a, b in pairwise(case.attention.cu_seqlens)]
    for own in sequences:
        alone = run_op(library, "AxisAttention", select(inputs, [own]), 2, **attributes)
        assert_same_bits(alone, [tensor[own] for tensor in together])
    order = np.random.default_rng(3).permutation(len(sequences))
    reordered = [sequences[i] for i in order]
    shuffled = run_op(library, "AxisAttention", select(inputs, reordered), 2, **attributes)
    assert_same_bits(shuffled, [tensor[np.concatenate(reordered)] for tensor in together])


def test_a_long_sequence_does_not_depend_on_threads(library: Path) -> None:
    """One that is divided into several tasks."""
    case = AxisCase(AttentionCase("divided", (1500,), 12, 64), 0.01, 0.02, LOCAL2, 1)
    assert_same_bits(run_axis(library, case, threads=2), run_axis(library, case, threads=1))


def select(inputs: dict[str, Array], sequences: list[Array]) -> dict[str, Array]:
    rows = np.concatenate(sequences)
    borders = np.concatenate([[0], np.cumsum([len(own) for own in sequences])]).astype(np.int32)
    packed = {name: tensor[rows] for name, tensor in inputs.items() if name != "cu_seqlens"}
    return packed | {"cu_seqlens": borders}


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("length", [20, 130, 400])
def test_a_nan_key_reaches_only_those_who_may_read_it(library: Path, length: int, normalizer: Any) -> None:
    """And the scores of the others are the same to the last bit."""
    case = AxisCase(AttentionCase("nan", (length,), 2, 64), 0.01, 0.02, LOCAL2, 1, 3, normalizer)
    inputs, attributes = axis_inputs(case), axis_attributes(case)
    expected = run_op(library, "AxisAttention", inputs, **attributes)
    key = inputs["key"].copy()
    key[length // 2] = np.nan
    found = run_op(library, "AxisAttention", inputs | {"key": key}, **attributes)
    reads = allowed_pairs(case, inputs["rows"], inputs["columns"])[:, length // 2]
    assert reads.any()
    assert np.isnan(found[0][reads]).all()
    assert_same_bits([tensor[~reads] for tensor in found], [tensor[~reads] for tensor in expected])


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("columns", ["none", "first", "all"])
@pytest.mark.parametrize("length", [9, 60, 200])
def test_non_finite_scores(library: Path, length: int, columns: str, normalizer: Any) -> None:
    """Row 0 sees NaN, row 1 +inf, row 2 only −inf, however its keys are reached; the next sequence none."""
    case = AxisCase(AttentionCase("not_finite", (length, length), 1, 16), diagonals=(0, 1, 2))
    inputs = axis_inputs(replace(case, normalizer=normalizer))
    query, key = np.abs(inputs["query"]), -np.abs(inputs["key"])
    query[0, 3] = np.nan
    query[1] = -1
    query[2] = np.inf
    key[0] = -np.inf
    inputs["columns"][:] = columns == "all"
    inputs["columns"][0] = columns != "none"
    attributes = axis_attributes(replace(case, normalizer=normalizer))
    output, support = run_op(library, "AxisAttention", inputs | {"query": query, "key": key}, **attributes)
    assert np.isnan(output[:2]).all()
    assert not output[2].any()
    assert np.isfinite(output[3:]).all()
    allowed = allowed_pairs(case, inputs["rows"][:length], inputs["columns"][:length]).sum(1)
    assert list(support[:2, 0]) == list(allowed[:2])
    assert support[2, 0] == (allowed[2] if normalizer == "softmax" else 0)


@pytest.mark.parametrize(
    "full", [{"rows": 1.0}, {"columns": 1.0}, {"diagonals": tuple(range(150))}, {"global_size": 150}], ids=str
)
def test_a_full_pattern_is_attention_over_all_keys(library: Path, full: dict[str, Any]) -> None:
    attention = AttentionCase("full", (1, 33, 150), 2, 48, scores="trained")
    output, support = run_axis(library, AxisCase(attention, **full))
    (dense,) = run_op(library, "SoftmaxAttention", attention_inputs(attention), num_heads=2)
    np.testing.assert_allclose(output, dense, rtol=0, atol=2e-6)
    lengths = np.repeat(attention.lengths, attention.lengths)
    np.testing.assert_array_equal(support, np.stack([lengths] * 2, 1))


@pytest.mark.parametrize("element", ["float16", "bfloat16"])
@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("case", SHORT_CASES, ids=lambda case: case.name)
def test_other_types_are_float32_rounded_once(
    library: Path, case: AxisCase, normalizer: Any, element: Element
) -> None:
    case = replace(case, normalizer=normalizer, attention=replace(case.attention, element=element))
    output, support = run_axis(library, case)
    full, full_support = run_op(library, "AxisAttention", axis_inputs(case), **axis_attributes(case))
    np.testing.assert_array_equal(bits(output), bits(full.astype(element).astype(np.float32)))
    np.testing.assert_array_equal(support, full_support)


@pytest.mark.parametrize("borders", [[0], [0, 0], [0, 0, 0]])
def test_no_tokens(library: Path, borders: list[int]) -> None:
    empty, flags = np.zeros((0, 64), np.float32), np.zeros(0, np.bool_)
    inputs = {"query": empty, "key": empty, "value": empty, "rows": flags, "columns": flags}
    inputs["cu_seqlens"] = np.array(borders, np.int32)
    output, support = run_op(library, "AxisAttention", inputs, num_heads=2, diagonals=[0], random_keys=3)
    assert output.shape == (0, 64)
    assert support.shape == (0, 2)


def test_the_second_output_may_be_left_out(library: Path) -> None:
    """By a node of the kernel and by one of the function."""
    inputs, attributes = axis_inputs(MIXED), axis_attributes(MIXED)
    expected, _ = run_axis(library, MIXED)
    (output,) = run_op(library, "AxisAttention", inputs, outputs=("output",), **attributes)
    assert_same_bits([output], [expected])
    (portable,) = run_function("AxisAttention", inputs, outputs=("output",), **attributes)
    np.testing.assert_allclose(portable, expected, rtol=0, atol=1e-5)


def test_order_and_repetition_of_diagonals_mean_nothing(library: Path) -> None:
    case = replace(MIXED, diagonals=(0, 1, 4))
    expected = run_axis(library, case)
    assert_same_bits(run_axis(library, replace(case, diagonals=(4, 0, 1, 4, 2**40))), expected)


def test_attributes_left_out(library: Path) -> None:
    """No diagonals and random keys, softmax, and 1/√D; λ is read with sparsegen alone."""
    case = AxisCase(AttentionCase("absent", (50, 9), 2, 32), 0.05, 0.05)
    inputs = axis_inputs(case)
    absent = run_op(library, "AxisAttention", inputs, num_heads=2)
    check(absent, case)
    stated = {"scale": 0.0, "random_keys": 0, "seed": 5, "normalizer": "softmax", "lambd": 2.0}
    assert_same_bits(run_op(library, "AxisAttention", inputs, num_heads=2, **stated), absent)
