"""Cross-attention: a query answers to the bit what its token answers where every token is a query."""

from dataclasses import replace
from functools import cache
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
    attention_attributes,
    attention_inputs,
    axis_attributes,
    axis_inputs,
    cross_inputs,
    library_under_test,
    run_attention,
    run_axis,
    run_function,
    run_op,
)

from axis_cases import AXIS_CASES, LOCAL2, AxisCase
from cases import ATTENTION_CASES, AttentionCase
from cross_cases import ASKED, Asked, AskedQueries, asked_queries
from sparse_export.attention.patterns import LayerPattern
from sparse_export.encoders.packing import Axes, Sequences
from sparse_export.graph.nodes import AxisSettings, HeadSettings
from sparse_export.graph.packed_attention import packed_cross_attention
from sparse_export.graph.packed_axis import packed_axis_cross_attention

# Each with the op whose queries are the tokens.
OPS = {"SparsegenCrossAttention": "SparsegenAttention", "SoftmaxCrossAttention": "SoftmaxAttention"}
NORMALIZERS = ("softmax", "sparsegen")
TOLERANCE = 1e-5


def run_cross(
    library: Path | None, op: str, inputs: dict[str, Array], attributes: dict[str, Any], threads: int = 1
) -> list[Array]:
    """Run a kernel, or without a library the function."""
    if library is None:
        return run_function(op, inputs, **attributes)
    return run_op(library, op, inputs, threads, **attributes)


def check(library: Path, op: str, case: AttentionCase, asked: Asked, threads: int = 1) -> None:
    queries = asked_queries(asked, case.cu_seqlens, case.seed)
    inputs = cross_inputs(attention_inputs(case), queries)
    of_tokens = run_attention(library, OPS[op], case)
    attributes = attention_attributes(OPS[op], case)
    output, *support = found = run_op(library, op, inputs, threads, case.element, **attributes)
    assert output.shape == (len(queries.tokens), case.num_heads * case.head_size)
    assert [each.dtype for each in support] == [np.int32] * len(support)
    assert_same_bits(found, [tensor[queries.tokens] for tensor in of_tokens])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("case", ATTENTION_CASES, ids=lambda case: case.name)
def test_case_table(library: Path, case: AttentionCase, op: str) -> None:
    check(library, op, case, "some", threads=2)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("element", ["float16", "bfloat16"])
def test_other_element_types(library: Path, op: str, element: Any) -> None:
    case = AttentionCase("mixed", (1, 17, 0, 200, 31), 3, 40, scores="trained", element=element)
    check(library, op, case, "some")


def check_axis(library: Path, case: AxisCase, asked: Asked, threads: int = 1) -> None:
    queries = asked_queries(asked, case.attention.cu_seqlens, case.attention.seed)
    inputs = cross_inputs(axis_inputs(case), queries)
    found = run_op(
        library, "AxisCrossAttention", inputs, threads, case.attention.element, **axis_attributes(case)
    )
    assert_same_bits(found, [tensor[queries.tokens] for tensor in run_axis(library, case)])


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("case", AXIS_CASES, ids=lambda case: case.name)
def test_case_table_of_axis_attention(library: Path, case: AxisCase, normalizer: Any) -> None:
    check_axis(library, replace(case, normalizer=normalizer), "some", threads=2)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("times", [64, 65, 200])
@pytest.mark.parametrize("others", [0, 1, 2])
def test_more_queries_with_full_rows_than_are_computed_at_a_time(
    library: Path, times: int, others: int, normalizer: Any
) -> None:
    """Of one token, with each of the others asked for so many times."""
    attention = AttentionCase("repeated", (9, 200), 3, 24, scores="trained")
    case = AxisCase(attention, 0, 0.05, LOCAL2, normalizer=normalizer, global_size=1)
    tokens = np.array([*range(9), *[9] * times, *[*range(10, 209)] * others], np.int64)
    queries = AskedQueries(tokens, np.array([0, 9, len(tokens)], np.int32))
    inputs = cross_inputs(axis_inputs(case), queries)
    found = run_op(library, "AxisCrossAttention", inputs, 2, **axis_attributes(case))
    assert_same_bits(found, [tensor[tokens] for tensor in run_axis(library, case)])


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("asked", ["first", "some"])
def test_full_rows_do_not_depend_on_how_many_are_asked_for(
    library: Path, asked: Asked, normalizer: Any
) -> None:
    """Where all are, a copy of the head's keys is worth it."""
    attention = AttentionCase("long", (600,), 2, 24, scores="trained")
    check_axis(library, AxisCase(attention, 0.5, 0.1, normalizer=normalizer), asked)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("element", ["float16", "bfloat16"])
def test_axis_of_other_element_types(library: Path, normalizer: Any, element: Any) -> None:
    attention = AttentionCase("mixed", (1, 17, 0, 200, 31), 3, 40, scores="trained", element=element)
    check_axis(library, AxisCase(attention, 0.05, 0.1, LOCAL2, 2, 5, normalizer), "some")


@settings(deadline=None, max_examples=60)
@given(
    case=st.builds(
        AxisCase,
        attention=st.builds(
            AttentionCase,
            name=st.just("random"),
            lengths=st.lists(st.integers(0, 90), max_size=5).map(tuple),
            num_heads=st.integers(1, 12),
            head_size=st.integers(8, 128),
            scores=st.just("trained"),
            seed=st.integers(0, 2**32 - 1),
        ),
        rows=st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0]),
        columns=st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0]),
        diagonals=st.lists(st.integers(0, 100), max_size=12).map(tuple),
        random_keys=st.integers(0, 6),
        seed=st.integers(0, 2**63 - 1),
        normalizer=st.sampled_from(NORMALIZERS),
        global_size=st.integers(0, 3),
    ),
    asked=st.sampled_from(ASKED),
)
def test_random_problems(case: AxisCase, asked: Asked) -> None:
    check_axis(library_under_test(), case, asked, threads=2)
    for op in OPS:
        check(library_under_test(), op, case.attention, asked, threads=2)


# Queries of some sequences: 40 of the longest, none of one, one of a sequence without keys.
UNEVEN = AttentionCase("uneven", (5, 30, 70, 0, 2), 2, 24, scores="trained")
UNEVEN_QUERIES = (3, 0, 40, 1, 2)


def uneven_inputs() -> dict[str, Array]:
    """Queries that are no tokens at all."""
    inputs = attention_inputs(UNEVEN)
    draws = np.random.default_rng(1).standard_normal((sum(UNEVEN_QUERIES), 48), dtype=np.float32)
    return {
        "query": draws,
        "key": inputs["key"],
        "value": inputs["value"],
        "cu_seqlens_q": np.cumsum([0, *UNEVEN_QUERIES]).astype(np.int32),
        "cu_seqlens_k": inputs["cu_seqlens"],
    }


@cache
def reference(op: str) -> tuple[Array, Array]:
    query, key, value, *borders = (torch.from_numpy(each) for each in uneven_inputs().values())
    heads = HeadSettings(2, 24**-0.5, UNEVEN.lambd if op == "SparsegenCrossAttention" else None)
    output, support = packed_cross_attention(query, key, value, Sequences(*borders), heads)
    return output.numpy(), support.numpy()


@pytest.mark.parametrize("is_kernel", [True, False], ids=["kernel", "function"])
@pytest.mark.parametrize("op", OPS)
def test_kernel_and_function_answer_as_the_reference(library: Path, op: str, is_kernel: bool) -> None:
    attributes = attention_attributes(OPS[op], UNEVEN)
    output, *support = run_cross(library if is_kernel else None, op, uneven_inputs(), attributes)
    expected, counts = reference(op)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(output, expected, rtol=0, atol=TOLERANCE)
    assert not output[43].any(), "a query without keys"
    for each in support:
        np.testing.assert_array_equal(each, counts)


# Tokens of the own sequence, one of them twice, and of others, which are no keys.
QUERY_TOKENS = (0, 4, 90, *range(40, 70), 60, 34, 36, 106, 0, 20, 105, 104, 101, 50, 7, 105, 106)
PATTERNS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "aaa": {"rows": 0.2, "columns": 0.1, "diagonals": LOCAL2},
    "diagonals": {"diagonals": (0, 1, 5, 7, 70)},
    "far diagonals": {"columns": 0.05, "diagonals": (0, 5, 69, 70, 71)},
    "the length": {"diagonals": (70,)},
    "random": {"random_keys": 3, "seed": 11},
    "random in a panel": {"columns": 0.5, "diagonals": tuple(range(40)), "random_keys": 3},
    "every row": {"rows": 1.0, "columns": 0.1, "diagonals": (1,), "random_keys": 1},
    "every column": {"columns": 1.0},
    "global": {"global_size": 1, "diagonals": (0, 1)},
}


def outside_inputs(case: AxisCase) -> dict[str, Array]:
    inputs = uneven_inputs()
    rows, columns = case.indicators()
    tokens = np.array(QUERY_TOKENS, np.int64)
    return {
        **{name: inputs[name] for name in ("query", "key", "value")},
        "query_tokens": tokens,
        "rows": rows,
        "columns": columns,
        **{name: inputs[name] for name in ("cu_seqlens_q", "cu_seqlens_k")},
    }


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("name", PATTERNS)
def test_axis_kernel_and_function_answer_as_the_reference(library: Path, name: str, normalizer: Any) -> None:
    """Tokens that are no keys of their query's sequence stand before its first."""
    case = AxisCase(UNEVEN, normalizer=normalizer, **PATTERNS[name])
    inputs, attributes = outside_inputs(case), axis_attributes(case)
    query, key, value, tokens, rows, columns, *borders = (torch.from_numpy(each) for each in inputs.values())
    heads = HeadSettings(2, 24**-0.5, UNEVEN.lambd if normalizer == "sparsegen" else None)
    pattern = LayerPattern(case.diagonals, 0, case.random_keys, case.seed)
    expected, counts = packed_axis_cross_attention(
        query, key, value, tokens, Axes(rows, columns), Sequences(*borders), AxisSettings(heads, pattern)
    )
    for execution in (library, None):
        output, support = run_cross(execution, "AxisCrossAttention", inputs, attributes)
        np.testing.assert_allclose(output, expected.numpy(), rtol=0, atol=TOLERANCE)
        np.testing.assert_array_equal(support, counts.numpy())
        assert not output[43].any(), "a query without keys"


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("name", PATTERNS)
def test_a_query_of_axis_attention_does_not_depend_on_others(
    library: Path, name: str, normalizer: Any
) -> None:
    """To the bit: alone, those that are no keys too."""
    case = AxisCase(UNEVEN, normalizer=normalizer, **PATTERNS[name])
    inputs, attributes = outside_inputs(case), axis_attributes(case)
    together = run_op(library, "AxisCrossAttention", inputs, 2, **attributes)
    borders = inputs["cu_seqlens_q"]
    for query in range(0, len(QUERY_TOKENS), 3):
        alone = {each: inputs[each][query : query + 1] for each in ("query", "query_tokens")}
        alone["cu_seqlens_q"] = (borders > query).astype(np.int32)
        found = run_op(library, "AxisCrossAttention", inputs | alone, **attributes)
        assert_same_bits(found, [tensor[query : query + 1] for tensor in together])


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_the_second_output_may_be_left_out(library: Path, normalizer: Any) -> None:
    case = AxisCase(UNEVEN, normalizer=normalizer, **PATTERNS["aaa"])
    inputs, attributes = outside_inputs(case), axis_attributes(case)
    both = run_op(library, "AxisCrossAttention", inputs, **attributes)
    only = run_op(library, "AxisCrossAttention", inputs, outputs=["output"], **attributes)
    assert_same_bits(only, both[:1])
    only = run_function("AxisCrossAttention", inputs, outputs=["output"], **attributes)
    np.testing.assert_allclose(only[0], both[0], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("op", [*OPS, "AxisCrossAttention"])
@pytest.mark.parametrize("borders", [[0], [0, 0], [0, 0, 0]])
def test_no_queries(library: Path, op: str, borders: list[int]) -> None:
    """Of sequences that have keys, or none."""
    for tokens in (0, 7):
        keys = np.ones((tokens, 32), np.float32)
        cu_seqlens_k = np.array([0] * (len(borders) - 1) + [tokens], np.int32)
        if len(borders) == 1 and tokens:
            continue
        inputs: dict[str, Array] = {"query": np.zeros((0, 32), np.float32), "key": keys, "value": keys}
        if op == "AxisCrossAttention":
            on = np.ones(tokens, bool)
            inputs |= {"query_tokens": np.zeros(0, np.int64), "rows": on, "columns": on}
        inputs |= {"cu_seqlens_q": np.array(borders, np.int32), "cu_seqlens_k": cu_seqlens_k}
        attributes: dict[str, Any] = {"num_heads": 2}
        attributes |= {"lambd": -4.0} if op == "SparsegenCrossAttention" else {}
        for execution in (library, None):
            output, *support = run_cross(execution, op, inputs, attributes)
            assert output.shape == (0, 32)
            assert all(counts.shape == (0, 2) for counts in support)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("is_kernel", [True, False], ids=["kernel", "function"])
def test_non_finite_scores(library: Path, op: str, is_kernel: bool) -> None:
    """Query 0 sees NaN, query 1 +inf, query 2 only −inf, query 3 finite scores."""
    key = np.ones((6, 16), np.float32)
    query = np.ones((4, 16), np.float32)
    query[0, 3], query[1], query[2] = np.nan, np.inf, -np.inf
    borders = {"cu_seqlens_q": np.array([0, 4], np.int32), "cu_seqlens_k": np.array([0, 6], np.int32)}
    inputs = {"query": query, "key": key, "value": key, **borders}
    attributes = attention_attributes(OPS[op], AttentionCase("", (), 1, 16))
    output, *support = run_cross(library if is_kernel else None, op, inputs, attributes)
    assert np.isnan(output[:2]).all()
    assert not output[2].any()
    np.testing.assert_allclose(output[3], 1, rtol=0, atol=1e-6)
    for counts in support:
        assert list(counts[:, 0]) == [6, 6, 0, 6]
