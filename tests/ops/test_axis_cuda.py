"""AxisAttention's kernels for GPUs, run by a CPU, against masked dense attention in float64."""

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from axis_cuda_host import axis_attention as attend
from axis_cuda_host import library
from cuda_host import ELEMENTS
from hypothesis import given, settings
from hypothesis import strategies as st
from one_op import Array, assert_same_bits, axis_inputs, cross_inputs
from reference import AXIS_TOLERANCE, AxisExpected, allowed_pairs, axis_attention, axis_gpu_budget, random_key

from axis_cases import AXIS_CASES, LOCAL2, MIXED, AxisCase
from cases import LAMBDAS, AttentionCase, Element
from cross_cases import ASKED, Asked, asked_queries

NORMALIZERS = ("softmax", "sparsegen")
PACKED = AttentionCase("packed", (1, 0, 17, 70, 33, 1, 3), 2, 32, scores="trained")
TABLE = [
    pytest.param(case, element, id=f"{case.name}-{element}")
    for case in AXIS_CASES
    for element in ELEMENTS
    if replace(case.attention, element=element).fits_element
]


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    """Skip the file where they are not compiled."""
    library()


def check(case: AxisCase, full_blocks: int = 3) -> AxisExpected:
    expected = axis_attention(case)
    output, support = attend(axis_inputs(case), case, full_blocks=full_blocks)
    assert np.isfinite(output).all()
    assert (np.abs(output - expected.output) <= axis_gpu_budget(case, expected)).all()
    assert not output[expected.allowed == 0].any()
    assert (support >= expected.least_support).all()
    assert (support <= expected.most_support).all()
    return expected


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize(("case", "element"), TABLE)
def test_case_table(case: AxisCase, element: Element, normalizer: Any) -> None:
    case = replace(case, attention=replace(case.attention, element=element), normalizer=normalizer)
    expected = check(case)
    assert case.name == "no_pair" or np.abs(expected.output).max() > 1e-3


cases = st.builds(
    AxisCase,
    attention=st.builds(
        AttentionCase,
        name=st.just("random"),
        lengths=st.lists(st.integers(0, 90), max_size=4).map(tuple),
        num_heads=st.integers(1, 4),
        head_size=st.sampled_from([8, 16, 17, 32, 64, 128]) | st.integers(8, 128),
        lambd=st.floats(-100, -1).map(lambda x: float(np.float32(x))),
        scale=st.sampled_from([0.0, 0.25]),
        scores=st.sampled_from(["normal", "equal", "trained"]),
        seed=st.integers(0, 2**32 - 1),
        element=st.sampled_from(ELEMENTS),
    ),
    rows=st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
    columns=st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0]),
    diagonals=st.lists(st.integers(0, 100) | st.integers(0, 2**63 - 1), max_size=12).map(tuple),
    random_keys=st.integers(0, 20),
    seed=st.integers(0, 2**63 - 1),
    normalizer=st.sampled_from(NORMALIZERS),
    global_size=st.integers(0, 3),
)


@settings(deadline=None, max_examples=60)
@given(case=cases, full_blocks=st.integers(1, 5))
def test_random_problems(case: AxisCase, full_blocks: int) -> None:
    check(case, full_blocks)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize(
    "pattern",
    [
        {"rows": 0.01, "columns": 0.05, "diagonals": LOCAL2},  # more scores than a warp holds
        {"rows": 0.1},  # so many full rows that each warp has its own
        {"columns": 0.01, "diagonals": (0, 1, 900), "random_keys": 3},
        {"random_keys": 40, "columns": 0.01},  # drawn in windows
        {"diagonals": tuple(range(0, 1500, 5))},  # more offsets than a kernel's argument has
    ],
    ids="+".join,
)
def test_long_sequences(pattern: dict[str, Any], normalizer: Any) -> None:
    attention = AttentionCase("long", (2500, 40), 1, 32, scores="trained", element="bfloat16")
    check(AxisCase(attention, **pattern, seed=3, normalizer=normalizer))


@pytest.mark.parametrize("lambd", LAMBDAS)
def test_every_lambda(lambd: float) -> None:
    attention = replace(PACKED, lambd=lambd)
    check(AxisCase(attention, 0.05, 0.1, (*LOCAL2, 40), 3, seed=2, normalizer="sparsegen"))


@pytest.mark.parametrize("lengths", [(1, 0, 7, 33), (600,)], ids=str)
def test_as_many_random_keys_as_there_may_be(lengths: tuple[int, ...]) -> None:
    """Every key is among them, and the kernel is done with a row once it has all."""
    attention = AttentionCase("all", lengths, 1, 16)
    case = AxisCase(attention, random_keys=2**31 - 1, seed=5)
    every = AxisCase(attention, columns=1)
    output, support = attend(axis_inputs(case), case)
    expected = axis_attention(every)
    np.testing.assert_allclose(output, expected.output, rtol=0, atol=AXIS_TOLERANCE)
    np.testing.assert_array_equal(support[:, 0], expected.allowed)


@lru_cache(maxsize=64)
def by_tokens(case: AxisCase) -> list[Array]:
    return attend(axis_inputs(case), case)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("rows", [0.02, 0.5])
def test_a_query_answers_as_its_token(rows: float, normalizer: Any, asked: Asked) -> None:
    """To the bit, whichever are asked for, in any order and more than once."""
    attention = AttentionCase("mixed", (*MIXED, 300), 2, 40, scores="trained", element="bfloat16")
    case = AxisCase(attention, rows, 0.05, (*LOCAL2, 50), 2, seed=9, normalizer=normalizer)
    queries = asked_queries(asked, attention.cu_seqlens, 1)
    found = attend(cross_inputs(axis_inputs(case), queries), case)
    assert_same_bits(found, [tensor[queries.tokens] for tensor in by_tokens(case)])


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_queries_that_are_no_keys(normalizer: Any) -> None:
    """They stand before the first key; a token that there is not answers NaN, as a CPU refuses it."""
    attention = AttentionCase("outside", (40, 30, 0), 2, 24, scores="trained")
    case = AxisCase(attention, 0.0, 0.1, (0, 1, 5), 2, seed=4, normalizer=normalizer)
    inputs = axis_inputs(case)
    inputs["rows"][3] = True
    tokens = np.array([50, 3, -1, 70, 5], np.int64)  # the last is of the sequence without keys
    crossed = {name: inputs[name] for name in ("key", "value", "rows", "columns")}
    crossed |= {"query": inputs["query"][[50, 3, 0, 0, 5]], "query_tokens": tokens}
    crossed |= {"cu_seqlens_q": np.array([0, 1, 4, 5]), "cu_seqlens_k": inputs["cu_seqlens"]}
    output, support = attend(crossed, case)
    pairs = inputs["columns"][:40].copy()
    pairs[[0, 4]] = True  # at distances 1 and 5
    pairs[[random_key(case.seed, -1, draw, 40) for draw in range(2)]] = True
    assert np.isfinite(output[[0, 1]]).all()
    if normalizer == "softmax":
        assert (support[0] == pairs.sum()).all()
        assert (support[1] == 30).all()
    assert np.isnan(output[[2, 3]]).all()
    assert not support[[2, 3]].any()
    assert not output[4].any()
    assert not support[4].any()


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("element", ELEMENTS)
def test_a_sequence_does_not_depend_on_its_companions(element: Element, normalizer: Any) -> None:
    attention = AttentionCase("mixed", MIXED, 2, 40, scores="trained", element=element)
    case = AxisCase(attention, 0.05, 0.1, (*LOCAL2, 50), 2, seed=9, normalizer=normalizer)
    inputs, together = axis_inputs(case), by_tokens(case)
    for begin, end in pairwise(attention.cu_seqlens):
        own = {name: tensor[begin:end] for name, tensor in inputs.items() if name != "cu_seqlens"}
        own["cu_seqlens"] = np.array([0, end - begin], np.int32)
        assert_same_bits(attend(own, case), [tensor[begin:end] for tensor in together])


BORDERS = ([1, 57], [0, 58, 57], [0, 20, 10, 57], [0, 56], [0, -5, 57], [0, 2**31 - 1, 57], [0])


@pytest.mark.parametrize("borders", BORDERS, ids=str)
def test_bad_borders(borders: list[int]) -> None:
    """Every output is NaN, and support 0."""
    case = AxisCase(AttentionCase("bad", (57,), 2, 16), 0.1, 0.1, LOCAL2, 1)
    output, support = attend(axis_inputs(case) | {"cu_seqlens": np.array(borders)}, case)
    assert np.isnan(output).all()
    assert not support.any()


@pytest.mark.parametrize("borders", [[0], [0, 0], [0, 0, 0]], ids=str)
def test_no_tokens(borders: list[int]) -> None:
    case = AxisCase(AttentionCase("none", (), 2, 32), 0, 0, LOCAL2, 2)
    output, support = attend(axis_inputs(case) | {"cu_seqlens": np.array(borders)}, case)
    assert output.shape == (0, 64)
    assert support.shape == (0, 2)


NAN_TOKEN = 30


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("full_rows", [1, 12, 70])
def test_a_nan_key_reaches_only_those_who_may_read_it(
    full_rows: int, element: Element, normalizer: Any
) -> None:
    """The others answer the same bits as if it were an ordinary one; so do the next sequence's."""
    length = 100
    attention = AttentionCase("nan", (length, length), 2, 24, scores="trained", element=element)
    case = AxisCase(attention, 0, 0.1, LOCAL2, 2, normalizer=normalizer)
    inputs = axis_inputs(case)
    inputs["rows"][:full_rows] = True
    inputs["columns"][NAN_TOKEN] = False
    ordinary = attend(inputs, case)
    inputs["key"][NAN_TOKEN] = np.nan
    inputs["value"][NAN_TOKEN] = 1e4
    pairs = allowed_pairs(case, inputs["rows"][:length], inputs["columns"][:length])
    reads = np.zeros(2 * length, bool)
    reads[:length] = pairs[:, NAN_TOKEN]
    output, support = attend(inputs, case)
    assert np.isnan(output[reads]).all()
    assert_same_bits([output[~reads], support[~reads]], [tensor[~reads] for tensor in ordinary])
    np.testing.assert_array_equal(support[reads].T, [pairs.sum(1)[reads[:length]]] * 2)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("length", [5, 200])
@pytest.mark.parametrize("pattern", [{"diagonals": (0, 1)}, {"rows": 1}, {"columns": 1}], ids=str)
def test_non_finite_scores(length: int, pattern: dict[str, Any], element: Element, normalizer: Any) -> None:
    """Row 0 sees NaN, row 1 +inf, row 2 only −inf; the other rows only finite scores."""
    attention = AttentionCase("inf", (length, 3), 1, 24, element=element)
    case = AxisCase(attention, normalizer=normalizer, **pattern)
    inputs = axis_inputs(case)
    inputs["query"] = np.abs(inputs["query"])
    inputs["key"] = -np.abs(inputs["key"])
    inputs["query"][0, 3] = np.nan
    inputs["query"][1] = -np.inf
    inputs["query"][2] = np.inf
    output, support = attend(inputs, case)
    allowed = axis_attention(case).allowed
    assert np.isnan(output[:2]).all()
    assert not output[2].any()
    assert np.isfinite(output[3:]).all()
    np.testing.assert_array_equal(support[:2, 0], allowed[:2])
    assert support[2, 0] == (0 if normalizer == "sparsegen" else allowed[2])


def test_support_may_be_left_out() -> None:
    case = AxisCase(PACKED, 0.05, 0.1, LOCAL2, 2)
    output, support = attend(axis_inputs(case), case, has_support=False)
    assert_same_bits([output], by_tokens(case)[:1])
    assert (support == -7).all()
