"""AxisAttention: its kernel, its function on a stock runtime and masked dense attention answer the same."""

from dataclasses import replace
from functools import lru_cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from one_op import (
    Array,
    assert_same_bits,
    axis_attributes,
    axis_inputs,
    library_under_test,
    run_axis,
    run_function,
    run_op,
)
from reference import AxisExpected, allowed_pairs, axis_attention, random_key

from axis_cases import AXIS_CASES, LOCAL2, MIXED, AxisCase
from cases import LAMBDAS, AttentionCase
from sparse_export.attention.patterns import LayerPattern, Pattern

NORMALIZERS = ("softmax", "sparsegen")
TOLERANCE = 1e-5
PACKED = AttentionCase("packed", (1, 0, 17, 70, 33, 1, 3), 2, 32, scores="trained")

# One part of a pattern each, at sizes where it neither vanishes nor covers the others.
PARTS: dict[str, dict[str, Any]] = {
    "local": {"diagonals": LOCAL2},
    "diagonal": {"diagonals": (40, 7, 7, 1000, 19)},
    "global": {"global_size": 2},
    "axis": {"rows": 0.05, "columns": 0.1},
    "random": {"random_keys": 3, "seed": 2**40 + 7},
}
NAMED = (
    "Local2+Global2",
    "Local2+Global1+Random1",
    "Local3+Global1",
    "Local1+Global1+Random2",
    "Diagonal+Global1",
)

# The first keys that seeds 0 and 7 draw for rows 0, 1 and 99 of 100.
KNOWN_KEYS = [[90, 56, 65], [67, 32, 59], [81, 2, 11], [23, 40, 80], [70, 43, 33], [1, 62, 30]]


@lru_cache(maxsize=512)
def by_function(case: AxisCase) -> list[Array]:
    return run_function("AxisAttention", axis_inputs(case), case.attention.element, **axis_attributes(case))


def check(library: Path, case: AxisCase, threads: int = 1) -> AxisExpected:
    """Compare the three; a large score is off by more, and where λ > 0 sparsegen magnifies that."""
    expected = axis_attention(case)
    steepness = 1 - case.attention.lambd if case.normalizer == "sparsegen" else 1
    size = max(1.0, case.attention.scale * case.attention.head_size**0.5)
    tolerance = TOLERANCE * size / min(1, steepness)
    output, support = run_axis(library, case, threads)
    function_output, function_support = by_function(case)
    for found, counts in ((output, support), (function_output, function_support)):
        assert found.dtype == np.float32
        assert counts.dtype == np.int32
        np.testing.assert_allclose(found, expected.output, rtol=0, atol=tolerance)
        assert not found[expected.allowed == 0].any()
        assert (counts >= expected.least_support).all()
        assert (counts <= expected.most_support).all()
    np.testing.assert_allclose(output, function_output, rtol=0, atol=tolerance)
    return expected


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("case", AXIS_CASES, ids=lambda case: case.name)
def test_case_table(library: Path, case: AxisCase, normalizer: Any) -> None:
    check(library, replace(case, normalizer=normalizer))


def combined(parts: tuple[str, ...]) -> AxisCase:
    """The union of some of `PARTS`."""
    merged: dict[str, Any] = {}
    for part in parts:
        for name, value in PARTS[part].items():
            merged[name] = (merged[name] + value) if name in merged else value
    return AxisCase(PACKED, **merged)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize(
    "parts",
    [parts for count in range(len(PARTS) + 1) for parts in combinations(PARTS, count)],
    ids="+".join,
)
def test_every_combination_of_patterns(parts: tuple[str, ...], normalizer: Any) -> None:
    """And each allows what its parts do, no more: nothing at all where there are none."""
    case = replace(combined(parts), normalizer=normalizer)
    check(library_under_test(), case)
    rows, columns = case.indicators()
    for begin, end in pairwise(PACKED.cu_seqlens):
        own = slice(begin, end)
        union = np.zeros((end - begin, end - begin), bool)
        for part in parts:
            alone = combined((part,))
            union |= allowed_pairs(alone, *(each[own] for each in alone.indicators()))
        np.testing.assert_array_equal(allowed_pairs(case, rows[own], columns[own]), union)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("name", NAMED)
def test_named_patterns(library: Path, name: str, normalizer: Any) -> None:
    """As `finetune --attention` names them, and |B| counted without forming the pairs."""
    learned = ((0, 5, 21),) if name.startswith("Diagonal") else ()
    pattern = replace(Pattern.parse(name, seed=11), offsets=learned).layer(3)
    case = AxisCase(
        PACKED,
        diagonals=pattern.diagonals,
        global_size=pattern.global_size,
        random_keys=pattern.random_keys,
        seed=pattern.seed,
        normalizer=normalizer,
    )
    expected = check(library, case)
    assert expected.allowed.sum() == sum(pattern.size(length) for length in PACKED.lengths)


def test_support_sums_to_the_size_of_the_pattern(library: Path) -> None:
    case = AxisCase(AttentionCase("size", MIXED, 3, 16), 0.05, 0.08, (0, 3, 90), 4, seed=5)
    pattern = LayerPattern(case.diagonals, 0, case.random_keys, case.seed)
    rows, columns = (torch.from_numpy(each) for each in case.indicators())
    _, support = run_axis(library, case)
    for begin, end in pairwise(case.attention.cu_seqlens):
        own = slice(begin, end)
        size = pattern.size(end - begin, rows[own], columns[own])
        np.testing.assert_array_equal(support[own].sum(0), size)


@settings(deadline=None, max_examples=60)
@given(
    case=st.builds(
        AxisCase,
        attention=st.builds(
            AttentionCase,
            name=st.just("random"),
            lengths=st.lists(st.integers(0, 90), max_size=5).map(tuple),
            num_heads=st.integers(1, 12),
            head_size=st.sampled_from([8, 16, 17, 32, 64, 128]) | st.integers(8, 128),
            lambd=st.floats(-100, -1).map(lambda x: float(np.float32(x))),
            scale=st.sampled_from([0.0, 0.25]),
            scores=st.sampled_from(["normal", "equal", "trained"]),
            seed=st.integers(0, 2**32 - 1),
        ),
        rows=st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
        columns=st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0]),
        diagonals=st.lists(st.integers(0, 100) | st.integers(0, 2**63 - 1), max_size=12).map(tuple),
        random_keys=st.integers(0, 6),
        seed=st.integers(0, 2**63 - 1),
        normalizer=st.sampled_from(NORMALIZERS),
        global_size=st.integers(0, 3),
    )
)
def test_random_problems(case: AxisCase) -> None:
    check(library_under_test(), case, threads=2)


@settings(deadline=None, max_examples=4)
@given(
    length=st.integers(1, 4096),
    band=st.integers(0, 60),
    rows=st.floats(0, 0.1),
    columns=st.floats(0, 0.1),
    random_keys=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_random_long_sequences(
    length: int, band: int, rows: float, columns: float, random_keys: int, seed: int
) -> None:
    attention = AttentionCase("long", (length,), 1, 64, scores="trained", seed=seed)
    check(library_under_test(), AxisCase(attention, rows, columns, tuple(range(band)), random_keys, seed))


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("num_heads", [1, 5, 12])
def test_every_number_of_heads(library: Path, num_heads: int, normalizer: Any) -> None:
    attention = replace(PACKED, num_heads=num_heads)
    check(library, replace(combined(("local", "axis", "random")), attention=attention, normalizer=normalizer))


@pytest.mark.parametrize("lambd", LAMBDAS)
def test_every_lambda(library: Path, lambd: float) -> None:
    attention = replace(PACKED, lambd=lambd)
    check(library, replace(combined(tuple(PARTS)), attention=attention, normalizer="sparsegen"))


@pytest.mark.parametrize("pattern", [{"columns": 0.1, "diagonals": LOCAL2}, {"rows": 1}], ids=str)
@pytest.mark.parametrize("lambd", [-1e38, -3e38])
@pytest.mark.usefixtures("subnormals_are_zero")
def test_lambda_where_subnormal_numbers_are_zero(
    library: Path, lambd: float, pattern: dict[str, Any]
) -> None:
    check(library, AxisCase(replace(PACKED, lambd=lambd), normalizer="sparsegen", **pattern))


@pytest.mark.parametrize("lengths", [(1, 0, 7, 33), (600,)], ids=str)
def test_as_many_random_keys_as_there_may_be(library: Path, lengths: tuple[int, ...]) -> None:
    """All that the hash has: every key is among them, and the kernel is done with a row once it has all."""
    attention = AttentionCase("all", lengths, 2, 16)
    drawn = run_axis(library, AxisCase(attention, random_keys=2**31 - 1, seed=5))
    assert_same_results(drawn, run_axis(library, AxisCase(attention, columns=1)))


def test_support_of_sparsegen_is_smaller_than_the_pattern(library: Path) -> None:
    case = AxisCase(AttentionCase("sparse", (90,), 2, 32, lambd=0.0), 0, 0.5, (0,), normalizer="sparsegen")
    expected = check(library, case)
    _, support = run_axis(library, case)
    assert 0 < support.mean() < 0.5 * expected.allowed.mean()


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_a_full_pattern_is_attention_over_all_keys(library: Path, normalizer: Any) -> None:
    """With all rows on, all columns, both, or every diagonal."""
    attention = AttentionCase("full", (33, 100, 1), 2, 48, scores="trained")
    inputs = axis_inputs(AxisCase(attention))
    tensors = {name: inputs[name] for name in ("query", "key", "value", "cu_seqlens")}
    if normalizer == "softmax":
        (expected,) = run_op(library, "SoftmaxAttention", tensors, num_heads=2)
        lengths = np.repeat(attention.lengths, attention.lengths)
        counts, doubtful = np.stack([lengths] * 2, 1), 0
    else:
        expected, counts = run_op(library, "SparsegenAttention", tensors, num_heads=2, lambd=attention.lambd)
        doubtful = 1
    for pattern in ({"rows": 1}, {"columns": 1}, {"rows": 1, "columns": 1}, {"diagonals": tuple(range(100))}):
        output, support = run_axis(library, AxisCase(attention, normalizer=normalizer, **pattern))
        np.testing.assert_allclose(output, expected, rtol=0, atol=TOLERANCE)
        assert np.abs(support - counts).max() <= doubtful


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_rows_without_a_key_are_zeros(library: Path, normalizer: Any) -> None:
    """Beside rows that have one, in one sequence."""
    case = AxisCase(AttentionCase("alone", (50, 3), 2, 24), 0.2, 0, (30,), normalizer=normalizer)
    expected = check(library, case)
    _, support = run_axis(library, case)
    assert 0 < (expected.allowed == 0).sum() < 53
    np.testing.assert_array_equal((support == 0).any(1), expected.allowed == 0)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_order_and_repetition_of_diagonals_mean_nothing(library: Path, normalizer: Any) -> None:
    case = AxisCase(PACKED, 0.05, 0.05, (0, 1, 7, 19), normalizer=normalizer)
    expected = run_axis(library, case)
    for diagonals in ((19, 7, 1, 0), (7, 7, 0, 1, 19, 1, 0), (0, 1, 7, 19, 70, 5000, 2**31, 2**63 - 1)):
        assert_same_bits(run_axis(library, replace(case, diagonals=diagonals)), expected)


def test_attributes_left_out(library: Path) -> None:
    """No diagonals, no random keys, softmax, and sparsegen with λ = 0; λ of softmax is not read."""
    case = AxisCase(PACKED, 0.05, 0.2)
    inputs, explicit = axis_inputs(case), run_axis(library, case)
    assert_same_bits(run_op(library, "AxisAttention", inputs, num_heads=2), explicit)
    assert_same_bits(run_op(library, "AxisAttention", inputs, num_heads=2, lambd=7.0), explicit)
    np.testing.assert_allclose(
        run_function("AxisAttention", inputs, num_heads=2)[0], explicit[0], rtol=0, atol=TOLERANCE
    )
    sparse = run_op(library, "AxisAttention", inputs, num_heads=2, normalizer="sparsegen")
    zero = replace(case, attention=replace(PACKED, lambd=0.0), normalizer="sparsegen")
    assert_same_bits(sparse, run_axis(library, zero))


def test_random_keys_of_known_seeds(library: Path) -> None:
    """Worked out once: a change of the hash would change what exported models attend to."""
    drawn = [[random_key(seed, i, t, 100) for t in range(3)] for seed in (0, 7) for i in (0, 1, 99)]
    assert drawn == KNOWN_KEYS
    for seed, keys in ((0, drawn[:3]), (7, drawn[3:]), (7 + 2**31 - 1, drawn[3:])):
        # Each token's value says which it is.
        value = np.eye(100, dtype=np.float32)
        zeros = np.zeros_like(value)
        off = np.zeros(100, bool)
        inputs = {"query": zeros, "key": zeros, "value": value, "rows": off, "columns": off}
        inputs["cu_seqlens"] = np.array([0, 100], np.int32)
        output, _ = run_op(library, "AxisAttention", inputs, num_heads=1, random_keys=3, seed=seed)
        for row, expected in zip((0, 1, 99), keys, strict=True):
            assert set(np.flatnonzero(output[row])) == set(expected)


def select(inputs: dict[str, Array], sequences: list[Array]) -> dict[str, Array]:
    tokens = np.concatenate(sequences)
    borders = np.concatenate([[0], np.cumsum([len(own) for own in sequences])]).astype(np.int32)
    return {name: each[tokens] for name, each in inputs.items() if name != "cu_seqlens"} | {
        "cu_seqlens": borders
    }


def assert_same_results(found: list[Array], expected: list[Array]) -> None:
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("columns", [0.03, 0.5])
def test_a_sequence_does_not_depend_on_its_companions_or_threads(
    library: Path, columns: float, normalizer: Any
) -> None:
    """Bit for bit: alone, among others, with the others in another order, and with more threads."""
    attention = AttentionCase("mixed", (*MIXED, 300), 3, 40, scores="trained")
    case = AxisCase(attention, 0.05, columns, (*LOCAL2, 50), 2, seed=9, normalizer=normalizer)
    inputs, attributes = axis_inputs(case), axis_attributes(case)
    together = run_axis(library, case)
    assert_same_bits(run_axis(library, case, threads=4), together)
    tokens = [np.arange(a, b) for a, b in pairwise(attention.cu_seqlens)]
    for own in tokens:
        alone = run_op(library, "AxisAttention", select(inputs, [own]), **attributes)
        assert_same_bits(alone, [tensor[own] for tensor in together])
    order = [tokens[i] for i in np.random.default_rng(3).permutation(len(tokens))]
    shuffled = run_op(library, "AxisAttention", select(inputs, order), 2, **attributes)
    assert_same_bits(shuffled, [tensor[np.concatenate(order)] for tensor in together])


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_the_second_output_may_be_left_out(library: Path, normalizer: Any) -> None:
    case = replace(combined(("local", "axis")), normalizer=normalizer)
    inputs, attributes = axis_inputs(case), axis_attributes(case)
    only = run_op(library, "AxisAttention", inputs, outputs=["output"], **attributes)
    assert_same_bits(only, run_axis(library, case)[:1])
    only = run_function("AxisAttention", inputs, outputs=["output"], **attributes)
    assert_same_bits(only, by_function(case)[:1])


@pytest.mark.parametrize("borders", [[0], [0, 0], [0, 0, 0]])
def test_no_tokens(library: Path, borders: list[int]) -> None:
    empty = np.zeros((0, 64), np.float32)
    off = np.zeros(0, bool)
    inputs = {"query": empty, "key": empty, "value": empty, "rows": off, "columns": off}
    inputs["cu_seqlens"] = np.array(borders, np.int32)
    attributes = axis_attributes(AxisCase(AttentionCase("none", (), 2, 32), 0, 0, LOCAL2, 2))
    for output, support in (
        run_op(library, "AxisAttention", inputs, **attributes),
        run_function("AxisAttention", inputs, **attributes),
    ):
        assert output.shape == (0, 64)
        assert support.shape == (0, 2)


NAN_TOKEN = 30


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("length", [40, 200])
@pytest.mark.parametrize("full_rows", [1, 12])
def test_a_nan_key_reaches_only_those_who_may_read_it(
    library: Path, length: int, full_rows: int, normalizer: Any
) -> None:
    """The others answer the same bits as if it were an ordinary one; so do the next sequence's."""
    attention = AttentionCase("nan", (length, length), 2, 24, scores="trained")
    case = AxisCase(attention, 0, 0.1, LOCAL2, 2, normalizer=normalizer)
    inputs, attributes = axis_inputs(case), axis_attributes(case)
    inputs["rows"][:full_rows] = True
    inputs["columns"][NAN_TOKEN] = False
    ordinary = run_op(library, "AxisAttention", inputs, **attributes)
    inputs["key"][NAN_TOKEN] = np.nan
    inputs["value"][NAN_TOKEN] = 1e30
    pairs = allowed_pairs(case, inputs["rows"][:length], inputs["columns"][:length])
    reads = np.zeros(2 * length, bool)
    reads[:length] = pairs[:, NAN_TOKEN]
    assert full_rows + 5 <= reads.sum() < length

    output, support = run_op(library, "AxisAttention", inputs, **attributes)
    assert np.isnan(output[reads]).all()
    assert_same_bits([output[~reads], support[~reads]], [tensor[~reads] for tensor in ordinary])
    np.testing.assert_array_equal(support[reads].T, [pairs.sum(1)[reads[:length]]] * 2)
    function_output, function_support = run_function("AxisAttention", inputs, **attributes)
    np.testing.assert_allclose(function_output, output, rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(function_support[reads], support[reads])


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("length", [3, 32, 70])
def test_a_nan_at_the_border_of_a_sequence_stays_on_its_side(
    library: Path, length: int, normalizer: Any
) -> None:
    """The keys of a row's diagonals go on beyond its sequence; what lies there is read by nobody."""
    attention = AttentionCase("border", (length,) * 3, 2, 24, scores="trained")
    case = AxisCase(attention, diagonals=(*LOCAL2, 40), normalizer=normalizer)
    inputs, attributes = axis_inputs(case), axis_attributes(case)
    middle = slice(length, 2 * length)
    ordinary = run_op(library, "AxisAttention", inputs, **attributes)
    for tensor in ("key", "value"):
        inputs[tensor][: middle.start] = inputs[tensor][middle.stop :] = np.nan
    found = run_op(library, "AxisAttention", inputs, **attributes)
    assert_same_bits([tensor[middle] for tensor in found], [tensor[middle] for tensor in ordinary])
    assert np.isnan(found[0][: middle.start]).all()


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("length", [5, 50, 200])
@pytest.mark.parametrize("pattern", [{"diagonals": (0, 1)}, {"rows": 1}, {"columns": 1}], ids=str)
def test_non_finite_scores(library: Path, length: int, pattern: dict[str, Any], normalizer: Any) -> None:
    """Row 0 sees NaN, row 1 +inf, row 2 only −inf; the other rows only finite scores."""
    case = AxisCase(AttentionCase("inf", (length, 3), 1, 24), normalizer=normalizer, **pattern)
    inputs, attributes = axis_inputs(case), axis_attributes(case)
    inputs["query"] = np.abs(inputs["query"])
    inputs["key"] = -np.abs(inputs["key"])
    inputs["query"][0, 3] = np.nan
    inputs["query"][1] = -np.inf
    inputs["query"][2] = np.inf
    output, support = run_op(library, "AxisAttention", inputs, **attributes)
    function_output, function_support = run_function("AxisAttention", inputs, **attributes)
    np.testing.assert_allclose(function_output, output, rtol=0, atol=TOLERANCE)
    allowed = axis_attention(case).allowed
    for found, counts in ((output, support), (function_output, function_support)):
        assert np.isnan(found[:2]).all()
        assert not found[2].any()
        assert np.isfinite(found[3:]).all()
        np.testing.assert_array_equal(counts[:2, 0], allowed[:2])
        assert counts[2, 0] == (0 if normalizer == "sparsegen" else allowed[2])


# Full rows are computed in chunks of 64 keys here, block by block, and their results joined.
CHUNKED = AxisCase(AttentionCase("chunks", (200,), 2, 24, scores="trained"), diagonals=LOCAL2)


def few_full_rows(full_rows: int) -> dict[str, Array]:
    """Return inputs of positive queries."""
    inputs = axis_inputs(CHUNKED)
    inputs["query"] = np.abs(inputs["query"])
    inputs["rows"][:full_rows] = True
    return inputs


@pytest.mark.parametrize("full_rows", [1, 12])
@pytest.mark.parametrize("token", [0, 63, 64, 150, 199])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_score_that_is_not_finite_reaches_full_rows_from_every_chunk(
    library: Path, value: float, token: int, full_rows: int
) -> None:
    inputs, attributes = few_full_rows(full_rows), axis_attributes(CHUNKED)
    ordinary, _ = run_op(library, "AxisAttention", inputs, **attributes)
    inputs["key"][token] = value
    output, support = run_op(library, "AxisAttention", inputs, **attributes)
    assert np.isnan(output[:full_rows]).all()
    assert (support[:full_rows] == 200).all()
    assert_same_bits(
        [output[full_rows:][np.abs(np.arange(full_rows, 200) - token) > 2]],
        [ordinary[full_rows:][np.abs(np.arange(full_rows, 200) - token) > 2]],
    )


@pytest.mark.parametrize("full_rows", [1, 12])
@pytest.mark.parametrize("scores", ["one", "a chunk", "all but one", "all", "rising", "falling"])
def test_full_rows_whose_chunks_have_little_in_common(library: Path, scores: str, full_rows: int) -> None:
    """Scores of −∞ where `scores` says so, or from one end of a sequence to the other 40 apart."""
    inputs, attributes = few_full_rows(full_rows), axis_attributes(CHUNKED)
    hidden = {"one": [70], "a chunk": range(64, 128), "all but one": [*range(64), *range(65, 200)]}
    slopes = {"rising": 1.0, "falling": -1.0}
    if scores in slopes:
        inputs["query"] = np.ones_like(inputs["query"])
        inputs["key"] += slopes[scores] * np.linspace(-4, 4, 200, dtype=np.float32)[:, None]
    else:
        inputs["key"][list(hidden.get(scores, range(200)))] = -np.inf
    output, support = run_op(library, "AxisAttention", inputs, **attributes)
    expected, counts = run_function("AxisAttention", inputs, **attributes)
    np.testing.assert_allclose(output, expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(support, counts)
    assert output[:full_rows].any() == (scores != "all")


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_a_key_of_minus_infinity_weighs_nothing(library: Path, normalizer: Any) -> None:
    """A column that is on, as if it were off."""
    case = AxisCase(AttentionCase("hidden", (60,), 1, 16), columns=0.2, normalizer=normalizer)
    inputs, attributes = axis_inputs(case), axis_attributes(case)
    inputs["query"] = np.abs(inputs["query"])
    inputs["columns"][4] = False
    without, _ = run_op(library, "AxisAttention", inputs, **attributes)
    inputs["columns"][4] = True
    inputs["key"][4] = -np.inf
    for output in (
        run_op(library, "AxisAttention", inputs, **attributes)[0],
        run_function("AxisAttention", inputs, **attributes)[0],
    ):
        np.testing.assert_allclose(output, without, rtol=0, atol=TOLERANCE)
