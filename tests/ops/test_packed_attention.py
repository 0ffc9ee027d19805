"""SparsegenAttention and SoftmaxAttention against float64 numpy, on the case table and on random problems."""

from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path

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
    library_under_test,
    run_attention,
    run_function,
    run_op,
)
from reference import packed_attention, sparsegen_lin

from cases import ATTENTION_CASES, AttentionCase, Scores
from sparse_export.graph import packed_attention as torch_reference
from sparse_export.graph.nodes import HeadSettings

OPS = {"SparsegenAttention": "sparsegen", "SoftmaxAttention": "softmax"}
MIXED = AttentionCase("mixed", (1, 17, 0, 200, 31, 64, 5), 3, 40, scores="trained")
SCREENED = AttentionCase("screened", (260, 17, 0, 530, 300), 2, 40, scores="uneven")


def check(library: Path, op: str, case: AttentionCase, threads: int = 1) -> list[Array]:
    output, *support = answers = run_attention(library, op, case, threads)
    expected = packed_attention(case, OPS[op])
    assert output.dtype == np.float32
    assert output.shape == expected.output.shape
    if output.size == 0:
        return answers
    assert np.abs(output).max() > 1e-3
    assert np.abs(output - expected.output).max() <= expected.budget()
    for counts in support:
        assert counts.dtype == np.int32
        assert (counts >= expected.least_support).all()
        assert (counts <= expected.most_support).all()
    return answers


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("case", ATTENTION_CASES, ids=lambda case: case.name)
def test_case_table(library: Path, case: AttentionCase, op: str) -> None:
    """In one thread and, to the bit the same, in two."""
    alone = check(library, op, case)
    assert_same_bits(run_attention(library, op, case, threads=2), alone)


def random_cases(
    lengths: st.SearchStrategy[tuple[int, ...]], *scores: Scores
) -> st.SearchStrategy[AttentionCase]:
    return st.builds(
        AttentionCase,
        name=st.just("random"),
        lengths=lengths,
        num_heads=st.integers(1, 4),
        head_size=st.integers(8, 128),
        lambd=st.floats(-50, 0.9).map(lambda x: float(np.float32(x))),
        scale=st.sampled_from([0.0, 0.5]),
        scores=st.sampled_from(scores),
        seed=st.integers(0, 2**32 - 1),
    )


@settings(deadline=None, max_examples=80)
@given(
    random_cases(
        st.lists(st.integers(0, 90), min_size=0, max_size=6).map(tuple),
        "normal",
        "equal",
        "peaked",
        "trained",
    ),
    st.sampled_from(list(OPS)),
)
def test_random_problems(case: AttentionCase, op: str) -> None:
    check(library_under_test(), op, case, threads=2)


@settings(deadline=None, max_examples=40)
@given(random_cases(st.tuples(st.integers(256, 400)), "normal", "peaked", "trained", "uneven"))
def test_random_problems_with_many_keys(case: AttentionCase) -> None:
    check(library_under_test(), "SparsegenAttention", case, threads=2)


@pytest.mark.parametrize("head_size", [32, 64])
def test_a_key_far_longer_than_the_others_hides_none(library: Path, head_size: int) -> None:
    """It makes steps of 8 bits large for itself, and errors large for all."""
    case = AttentionCase("far", (300,), 1, head_size)
    query, key, value, borders = attention_inputs(case).values()
    for size in (1e2, 1e4, 1e12, 1e30):
        key[7] = size * np.sign(key[7])
        scores = query.astype(float) @ key.astype(float).T / head_size**0.5
        weights = sparsegen_lin(scores, case.lambd)
        inputs = {"query": query, "key": key, "value": value, "cu_seqlens": borders}
        output, support = run_op(
            library, "SparsegenAttention", inputs, **attention_attributes("SparsegenAttention", case)
        )
        np.testing.assert_allclose(output, weights @ value, rtol=0, atol=1e-4)
        assert (np.abs(support[:, 0] - (weights > 0).sum(-1)) <= 1).all()


@pytest.mark.parametrize("signs", [[1], [-1], [1, 1, -1, -1], [1, -1]], ids=str)
def test_numbers_of_one_sign_have_room_in_small_sums(library: Path, signs: list[int]) -> None:
    """Of keys and queries whose products all add up, wherever bytes are added up in 16 bits."""
    head_size = 64
    case = AttentionCase("one_sign", (300,), 1, head_size)
    query, key, value, borders = attention_inputs(case).values()
    pattern = np.resize(signs, head_size).astype(np.float32)
    key[:] = pattern * (1 + np.float32(0.1) * key)
    query[::2] = 4 * pattern * (1 + np.float32(0.1) * query[::2])
    query[1::2] *= 20
    inputs = {"query": query, "key": key, "value": value, "cu_seqlens": borders}
    output, support = run_op(
        library, "SparsegenAttention", inputs, **attention_attributes("SparsegenAttention", case)
    )
    scores = query.astype(float) @ key.astype(float).T / head_size**0.5
    weights = sparsegen_lin(scores, case.lambd)
    np.testing.assert_allclose(output, weights @ value, rtol=0, atol=1e-4)
    assert (np.abs(support[:, 0] - (weights > 0).sum(-1)) <= 1).all()


@pytest.mark.parametrize("seed", range(4))
def test_keys_of_two_kinds_leave_half_of_them(library: Path, seed: int) -> None:
    """Whose scores are spread as if few were left, beside queries of every size: panels of all kinds."""
    case = AttentionCase("two_kinds", (530,), 2, 32, scores="uneven", seed=seed)
    query, key, value, borders = attention_inputs(case).values()
    rng = np.random.default_rng(seed)
    key[:] = key[:1] * rng.choice([-1, 1], (len(key), 1)) + key * np.float32(0.1)
    inputs = {"query": query, "key": key, "value": value, "cu_seqlens": borders}
    output, support = run_op(
        library, "SparsegenAttention", inputs, **attention_attributes("SparsegenAttention", case)
    )
    for head in range(2):
        own = slice(32 * head, 32 * head + 32)
        scores = query[:, own].astype(float) @ key[:, own].astype(float).T / 32**0.5
        weights = sparsegen_lin(scores, case.lambd)
        np.testing.assert_allclose(output[:, own], weights @ value[:, own], rtol=0, atol=1e-4)
    assert (support > 200).any()
    assert (support < 100).any()


def test_a_query_that_is_not_finite_changes_no_other(library: Path) -> None:
    """To the bit, whichever way the other is computed."""
    inputs = attention_inputs(SCREENED)
    attributes = attention_attributes("SparsegenAttention", SCREENED)
    expected = run_op(library, "SparsegenAttention", inputs, **attributes)
    spoiled = [3, 100, 400, 500]
    inputs["query"][spoiled] = [[np.nan], [np.inf], [1e30], [-np.inf]]
    found = run_op(library, "SparsegenAttention", inputs, **attributes)
    others = np.delete(np.arange(len(inputs["query"])), spoiled)
    assert_same_bits([tensor[others] for tensor in found], [tensor[others] for tensor in expected])
    assert np.isnan(found[0][[3, 100, 500]]).all()


@pytest.mark.parametrize("sign", [-1, 1])
def test_an_infinite_query_whose_scores_are_all_of_one_sign(library: Path, sign: int) -> None:
    """NaN where they are infinite, nothing where they are minus infinity, and as before for the others."""
    case = AttentionCase("one_sign", (300,), 1, 32, scores="trained")
    inputs = attention_inputs(case)
    inputs["key"] = sign * np.abs(inputs["key"])
    attributes = attention_attributes("SparsegenAttention", case)
    expected = run_op(library, "SparsegenAttention", inputs, **attributes)
    inputs["query"][5] = 0
    inputs["query"][5, 3] = np.inf
    inputs["query"][6] = np.inf
    output, support = run_op(library, "SparsegenAttention", inputs, **attributes)
    assert np.isnan(output[6]).all() if sign > 0 else not output[6].any()
    assert support[6, 0] == (300 if sign > 0 else 0)
    others = np.delete(np.arange(300), [5, 6])
    assert_same_bits([output[others], support[others]], [tensor[others] for tensor in expected])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("case", [MIXED, SCREENED], ids=lambda case: case.name)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_sequence_does_not_depend_on_its_companions(
    library: Path, op: str, case: AttentionCase, threads: int
) -> None:
    """Bit for bit: alone, among others, and with the others in another order."""
    inputs = attention_inputs(case)
    attributes = attention_attributes(op, case)
    borders = case.cu_seqlens
    together = run_op(library, op, inputs, threads, **attributes)
    rows = [np.arange(a, b) for a, b in pairwise(borders)]
    for own in rows:
        alone = run_op(library, op, select(inputs, [own]), threads, **attributes)
        assert_same_bits(alone, [tensor[own] for tensor in together])
    order = np.random.default_rng(3).permutation(len(rows))
    shuffled = run_op(library, op, select(inputs, [rows[i] for i in order]), threads, **attributes)
    assert_same_bits(shuffled, [tensor[np.concatenate([rows[i] for i in order])] for tensor in together])


def select(inputs: dict[str, Array], sequences: list[Array]) -> dict[str, Array]:
    rows = np.concatenate(sequences)
    borders = np.concatenate([[0], np.cumsum([len(own) for own in sequences])]).astype(np.int32)
    return {name: inputs[name][rows] for name in ("query", "key", "value")} | {"cu_seqlens": borders}


def test_dense_and_sparse_sums_agree_where_the_support_changes_over(library: Path) -> None:
    """Supports from a few keys to all of them, so that both ways of summing the values run."""
    base = AttentionCase("density", (256,), 1, 64)
    supports = []
    for lambd in (0.5, -4.0, -20.0, -100.0, -400.0):
        case = replace(base, lambd=lambd)
        check(library, "SparsegenAttention", case)
        supports.append(run_attention(library, "SparsegenAttention", case)[1].mean())
    assert supports[0] < 4
    assert supports[-1] > 200


@pytest.mark.parametrize("op", OPS)
def test_scores_hundreds_apart(library: Path, op: str) -> None:
    """Where exp vanishes in float32, and sparsegen-lin keeps one key."""
    check(library, op, AttentionCase("apart", (40, 90), 2, 64, scale=1.0, scores="peaked"))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("sizes", list(permutations((1e10, 1e-36, 1e30))), ids=str)
def test_what_is_finite_is_so_in_every_execution(
    library: Path, op: str, sizes: tuple[float, float, float]
) -> None:
    """A score is a product in float32, then scaled: 1e10 · 1e30 is infinite, whatever scale would follow."""
    query_size, key_size, scale = sizes
    case = AttentionCase(
        "sizes", (40,), 2, 32, -1e4, scale, query_size=query_size, key_size=key_size, scores="peaked"
    )
    inputs, attributes = attention_inputs(case), attention_attributes(op, case)
    heads = HeadSettings(2, scale, case.lambd if op == "SparsegenAttention" else None)
    query, key, value, borders = (torch.from_numpy(array) for array in inputs.values())
    expected = torch_reference.packed_attention(query, key, value, borders, heads)[0].numpy()
    overflows = query_size * key_size > 1e38
    assert np.isnan(expected).all() == overflows
    assert overflows or np.isfinite(expected).all()
    for output in (run_op(library, op, inputs, **attributes)[0], run_function(op, inputs, **attributes)[0]):
        np.testing.assert_allclose(output, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", ["query_times_scale_vanishes", "scores_near_lambda", "lambda_-3e+38"])
@pytest.mark.usefixtures("subnormals_are_zero")
def test_where_subnormal_numbers_are_zero(library: Path, op: str, name: str) -> None:
    (case,) = (case for case in ATTENTION_CASES if case.name == name)
    check(library, op, case)
    inputs, attributes = attention_inputs(case), attention_attributes(op, case)
    np.testing.assert_allclose(
        run_function(op, inputs, **attributes)[0], run_op(library, op, inputs, **attributes)[0], atol=1e-5
    )


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("length", [5, 50, 200, 300])
def test_non_finite_scores(library: Path, op: str, length: int) -> None:
    """Row 0 sees NaN, row 1 +inf, row 2 only −inf, the others −inf at key 0; the next sequence none."""
    case = AttentionCase("non_finite", (length, length), 1, 16)
    inputs = attention_inputs(case)
    query, key = np.abs(inputs["query"]), inputs["key"]
    key[0] = -np.inf
    query[0, 3] = np.nan
    query[1] = -1
    query[2] = np.inf
    key[1:length] = -np.abs(key[1:length])
    inputs |= {"query": query, "key": key}
    output, *support = run_op(library, op, inputs, **attention_attributes(op, case))

    assert np.isnan(output[:2]).all()
    assert not output[2].any()
    without_key_0 = {name: tensor[1:length] for name, tensor in inputs.items() if name != "cu_seqlens"}
    without_key_0["cu_seqlens"] = np.array([0, length - 1], np.int32)
    rest, *_ = run_op(library, op, without_key_0, **attention_attributes(op, case))
    np.testing.assert_allclose(output[3:length], rest[2:], rtol=0, atol=1e-5)
    assert np.isfinite(output[length:]).all()
    for counts in support:
        assert list(counts[:3, 0]) == [length, length, 0]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("borders", [[0], [0, 0], [0, 0, 0]])
def test_no_tokens(library: Path, op: str, borders: list[int]) -> None:
    empty = np.zeros((0, 64), np.float32)
    inputs = {"query": empty, "key": empty, "value": empty, "cu_seqlens": np.array(borders, np.int32)}
    case = AttentionCase("empty", (), 2, 32)
    output, *support = run_op(library, op, inputs, **attention_attributes(op, case))
    assert output.shape == (0, 64)
    assert all(counts.shape == (0, 2) for counts in support)


@pytest.mark.parametrize("op", OPS)
def test_no_tokens_of_any_number_of_heads(library: Path, op: str) -> None:
    heads = 2**31
    empty = np.zeros((0, heads * 8), np.float32)
    inputs = {"query": empty, "key": empty, "value": empty, "cu_seqlens": np.zeros(3, np.int32)}
    output, *_ = run_op(library, op, inputs, **attention_attributes(op, AttentionCase("none", (), heads, 8)))
    assert output.shape == (0, heads * 8)


def test_scale_zero_means_one_over_the_root_of_the_head_size(library: Path) -> None:
    case = AttentionCase("scale", (20, 50), 2, 48)
    automatic = run_attention(library, "SparsegenAttention", case)
    explicit = run_attention(library, "SparsegenAttention", replace(case, scale=48**-0.5))
    np.testing.assert_allclose(automatic[0], explicit[0], rtol=0, atol=1e-6)
    inputs = attention_inputs(case)
    absent = run_op(library, "SparsegenAttention", inputs, num_heads=2, lambd=case.lambd)
    assert_same_bits(absent, automatic)
