"""The kernels for GPUs against float64, on the case table, without a GPU: run by a CPU, lane after lane.

What this cannot see is what only a GPU has: races between threads, the instructions behind
`ops/cuda/matrix.h`, and how tensor cores round. `cu_seqlens` and every index a kernel computes are as there.
"""

from dataclasses import replace
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from cuda_host import (
    ELEMENTS,
    SHARED_BYTES,
    WAYS,
    Array,
    Heads,
    Way,
    attention,
    axis_mask,
    library,
    read_elements,
    sparsegen_lin,
    write_elements,
)
from reference import gpu_budget, packed_attention
from reference import sparsegen_lin as expected_lin

from cases import ATTENTION_CASES, LAMBDAS, AttentionCase, Element
from cross_cases import asked_queries

OPS = {"SparsegenAttention": "sparsegen", "SoftmaxAttention": "softmax"}
MIXED = AttentionCase("mixed", (1, 17, 0, 200, 31, 64, 5), 3, 40, scores="trained")
LENGTHS = (1, 63, 64, 65, 127, 128, 129)
# What takes long, lane after lane, with fewer heads.
CASES = [replace(case, num_heads=min(case.num_heads, 2)) for case in ATTENTION_CASES]


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    """Skip the file where they are not compiled."""
    library()


def heads_of(case: AttentionCase, normalizer: str) -> Heads:
    return Heads(
        case.num_heads, case.head_size, case.scale, case.lambd if normalizer == "sparsegen" else None
    )


def run(
    case: AttentionCase, normalizer: str, way: Way = "launched", shared_bytes: int = SHARED_BYTES
) -> list[Array]:
    borders = (case.cu_seqlens, case.cu_seqlens)
    return attention(case.inputs(), borders, heads_of(case, normalizer), case.element, way, shared_bytes)


def check(
    case: AttentionCase, normalizer: str, way: Way = "launched", shared_bytes: int = SHARED_BYTES
) -> None:
    output, *support = run(case, normalizer, way, shared_bytes)
    expected = packed_attention(case, normalizer)
    assert output.shape == expected.output.shape
    assert (np.abs(output - expected.output) <= gpu_budget(case, expected)).all()
    assert np.abs(output).max() > 1e-3
    for counts in support:
        assert (counts >= expected.least_support).all()
        assert (counts <= expected.most_support).all()


@pytest.mark.parametrize("normalizer", OPS.values())
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_table(case: AttentionCase, normalizer: str) -> None:
    for element in ELEMENTS:
        typed = replace(case, element=element)
        if typed.fits_element:
            check(typed, normalizer)


@pytest.mark.parametrize("way", ["listed", "dense"])
@pytest.mark.parametrize(
    "case", [case for case in CASES if sum(case.lengths) < 700], ids=lambda case: case.name
)
def test_every_way_of_sparsegen(case: AttentionCase, way: Way) -> None:
    """Lists that overflow, as those of equal scores, become dense."""
    for element in ELEMENTS:
        typed = replace(case, element=element)
        if typed.fits_element:
            check(typed, "sparsegen", way)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("kibibytes", [48, 99, 163])
@pytest.mark.parametrize("head_size", [17, 64, 128])
def test_less_shared_memory(head_size: int, kibibytes: int, element: Element) -> None:
    case = AttentionCase("borders", (384, 450), 1, head_size, scores="trained", element=element)
    if (head_size, kibibytes, element) == (128, 48, "float32"):
        pytest.skip("two tiles of float32 are more than that")
    check(case, "sparsegen", shared_bytes=kibibytes * 1024)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("normalizer", OPS.values())
@pytest.mark.parametrize("length", [*LENGTHS, 255, 256, 257, 511, 512, 513])
def test_borders_of_tiles(length: int, normalizer: str, element: Element) -> None:
    check(AttentionCase("tiles", (length, 3, length), 1, 16, element=element), normalizer)


@pytest.mark.parametrize("normalizer", OPS.values())
def test_more_sequences_than_a_block_has_threads(normalizer: str) -> None:
    lengths = np.random.default_rng(0).integers(0, 4, 300)
    check(AttentionCase("many", tuple(int(length) for length in lengths), 1, 8), normalizer)


def test_head_sizes() -> None:
    for head_size in (8, 9, 15, 23, 31, 33, 47, 63, 65, 72, 100, 127):
        for element in ELEMENTS:
            for normalizer in OPS.values():
                check(AttentionCase("size", (37, 70), 2, head_size, element=element), normalizer)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("normalizer", OPS.values())
def test_a_sequence_does_not_depend_on_its_companions(normalizer: str, element: Element) -> None:
    """Bit for bit: alone and among others."""
    case = replace(MIXED, element=element)
    heads = heads_of(case, normalizer)
    together = run(case, normalizer)
    for begin, end in pairwise(case.cu_seqlens):
        tensors = case.inputs()
        own = (tensors[0][begin:end], tensors[1][begin:end], tensors[2][begin:end])
        borders = np.array([0, end - begin])
        alone = attention(own, (borders, borders), heads, element)
        for a, b in zip(alone, together, strict=True):
            np.testing.assert_array_equal(a, b[begin:end])


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("normalizer", OPS.values())
@pytest.mark.parametrize("asked", ["first", "some"])
def test_cross_attention(asked: str, normalizer: str, element: Element) -> None:
    """A query answers to the bit what its token answers; without keys it answers 0."""
    case = replace(MIXED, element=element)
    queries = asked_queries(asked, case.cu_seqlens)  # type: ignore[arg-type]
    query, key, value = case.inputs()
    borders = (queries.cu_seqlens, case.cu_seqlens)
    heads = heads_of(case, normalizer)
    found = attention((query[queries.tokens], key, value), borders, heads, element)
    for a, b in zip(found, run(case, normalizer), strict=True):
        np.testing.assert_array_equal(a, b[queries.tokens])
    nothing = np.zeros((0, query.shape[1]), np.float32)
    for answer in attention(
        (query[:3], nothing, nothing), (np.array([0, 3]), np.array([0, 0])), heads, element
    ):
        assert not answer.any()


MANY_KEYS = (257, 300, 513, 700, 2003)


def ask(case: AttentionCase, query: Array, way: Way = "launched", growth: float = 1) -> list[Array]:
    """Return what sparsegen attention answers queries of the only sequence of a case, whose keys may grow."""
    _, key, value = case.inputs()
    key *= np.linspace(1, growth, len(key), dtype=np.float32)[:, None]
    borders = (np.array([0, len(query)]), case.cu_seqlens)
    return attention((query, key, value), borders, heads_of(case, "sparsegen"), case.element, way)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("length", MANY_KEYS)
def test_a_tile_that_is_not_full_answers_as_a_full_one(length: int, element: Element) -> None:
    """To the bit, also where larger keys come late: rows that are no queries fill no list."""
    case = AttentionCase("partial", (length,), 1, 64, scores="trained", element=element)
    query = case.inputs()[0][:256]
    full, dense = (ask(case, query, way, growth=2) for way in ("launched", "dense"))
    if element != "float32":  # whose weights are rounded where all is dense
        assert (full[0][:128] != dense[0][:128]).any()
        assert (full[0][128:] != dense[0][128:]).any()
    for count in (1, 130):
        for a, b in zip(ask(case, query[:count], growth=2), full, strict=True):
            np.testing.assert_array_equal(a, b[:count])


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("length", MANY_KEYS)
def test_keys_that_score_infinity_fill_no_list_of_other_rows(length: int, element: Element) -> None:
    """Nor of rows that are no queries, to which they are NaN."""
    case = AttentionCase("infinite", (length,), 1, 16, scores="trained", element=element)
    query, key, value = case.inputs()
    query[:, 0] = np.abs(query[:, 0]) + np.float32(0.125)
    key[::3, 0] = -np.inf
    heads = heads_of(case, "sparsegen")
    full, part = (
        attention((query[:count], key, value), (np.array([0, count]), case.cu_seqlens), heads, element)
        for count in (128, 5)
    )
    assert np.isfinite(full[0]).all()
    for a, b in zip(part, full, strict=True):
        np.testing.assert_array_equal(a, b[:5])


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("length", MANY_KEYS[:-1])
def test_a_query_of_many_keys_does_not_depend_on_its_companions(length: int, element: Element) -> None:
    """Bit for bit, but where one of them has a large support: then as nearly as all of them are to be."""
    case = AttentionCase("companions", (length,), 1, 64, scores="trained", element=element)
    tokens = asked_queries("some", case.cu_seqlens, length).tokens
    assert len(tokens) > 1
    query = case.inputs()[0][tokens]
    found, together = ask(case, query), run(case, "sparsegen")
    for a, b in zip(found, together, strict=True):
        np.testing.assert_array_equal(a, b[tokens])
    output, support = ask(case, np.concatenate([query, np.zeros_like(query[:1])]))
    assert support[-1, 0] == length
    expected = packed_attention(case, "sparsegen")
    allowed = gpu_budget(case, expected)
    assert (np.abs(output[:-1] - expected.output[tokens]) <= allowed[tokens]).all()
    np.testing.assert_array_equal(support[:-1], found[1])


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("normalizer", OPS.values())
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("length", [5, 50, 200])
def test_non_finite_scores(length: int, way: Way, normalizer: str, element: Element) -> None:
    """Row 0 sees NaN, row 1 +inf, row 2 only −inf, the others −inf at key 0; the next sequence none."""
    case = AttentionCase("non_finite", (length, length), 1, 16, element=element)
    query, key, value = case.inputs()
    query = np.abs(query) + np.float32(0.125)
    key[1:length] = -np.abs(key[1:length]) - np.float32(0.125)
    key[0] = -np.inf
    query[0, 3] = np.nan
    query[1] = -1
    query[2] = np.inf
    heads = heads_of(case, normalizer)
    output, *support = attention((query, key, value), (case.cu_seqlens,) * 2, heads, element, way)
    assert np.isnan(output[:2]).all()
    assert not output[2].any()
    own = (query[1:length], key[1:length], value[1:length])
    rest, *_ = attention(own, (np.array([0, length - 1]),) * 2, heads, element, way)
    tolerance = 1e-5 if element == "float32" else 2 * float(ml_dtypes.finfo(element).eps)
    np.testing.assert_allclose(output[3:length], rest[2:], rtol=tolerance, atol=4 * tolerance)
    assert np.isfinite(output[length:]).all()
    for counts in support:
        assert list(counts[:3, 0]) == [length, length, 0]


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize(("lambd", "size"), [(-4.0, 1.5), (-4.0, 0.5), (0.5, 1.5), (-100.0, 1.0)])
def test_lists_that_fill(lambd: float, size: float, element: Element) -> None:
    """Keys behind those that gave the first bound: few, many, too many; the largest near the end."""
    case = AttentionCase("lists", (257, 900), 1, 64, lambd, element=element, query_size=size)
    query, key, value = case.inputs()
    key[-2] = 2 * query[-300]
    heads = heads_of(case, "sparsegen")
    found = attention((query, key, value), (case.cu_seqlens,) * 2, heads, element)
    dense = attention((query, key, value), (case.cu_seqlens,) * 2, heads, element, "dense")
    tolerance = 1e-5 if element == "float32" else 2 * float(ml_dtypes.finfo(element).eps)
    np.testing.assert_allclose(found[0], dense[0], rtol=tolerance, atol=4 * tolerance)
    np.testing.assert_array_equal(found[1], dense[1])


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("at", [0, 570, 599])
def test_infinite_keys_early_and_late(at: int, element: Element) -> None:
    """A key that half of the queries score +inf and half −inf, among the first keys and behind them."""
    case = AttentionCase("late", (600, 300), 1, 16, element=element)
    query, key, value = case.inputs()
    query = np.abs(query) + np.float32(0.125)
    query[1::2] *= -1
    key[at] = np.inf
    heads = heads_of(case, "sparsegen")
    output, support = attention((query, key, value), (case.cu_seqlens,) * 2, heads, element)
    assert np.isnan(output[0:600:2]).all()
    assert list(support[0:600:2, 0]) == [600] * 300
    rest = [np.delete(tensor, at, axis=0) for tensor in (key, value)]
    alone, counts = attention((query, *rest), (case.cu_seqlens, np.array([0, 599, 899])), heads, element)
    tolerance = 1e-5 if element == "float32" else 2 * float(ml_dtypes.finfo(element).eps)
    np.testing.assert_allclose(output[1:600:2], alone[1:600:2], rtol=tolerance, atol=4 * tolerance)
    np.testing.assert_array_equal(support[1:600:2], counts[1:600:2])
    assert np.isfinite(output[600:]).all()


@pytest.mark.parametrize("normalizer", OPS.values())
@pytest.mark.parametrize(
    "borders",
    [
        [1, 40, 70],
        [0, 40, 69],
        [0, 40, 71],
        [0, 50, 40, 70],
        [0, -1, 70],
        [0, 2**31 - 1, 70],
        [0],
        [5],
        [0, 0],
        [-(2**31), 2**31 - 1],
    ],
    ids=str,
)
def test_bad_borders_answer_nan(borders: list[int], normalizer: str) -> None:
    """Of queries, of keys or of both: nothing is read by them, and no output is left as it was."""
    case = AttentionCase("bad", (70,), 2, 32)
    good = case.cu_seqlens.tolist()
    for own in ((borders, borders), (good, borders), (borders, good)):
        count = max(len(each) for each in own)
        queries, keys = (np.array(each + [each[-1]] * (count - len(each))) for each in own)
        output, *support = attention(case.inputs(), (queries, keys), heads_of(case, normalizer))
        assert np.isnan(output).all()
        assert all(not counts.any() for counts in support)


@pytest.mark.parametrize("normalizer", OPS.values())
@pytest.mark.parametrize("borders", [[0], [0, 0], [0, 0, 0]])
def test_no_tokens(borders: list[int], normalizer: str) -> None:
    empty = np.zeros((0, 64), np.float32)
    heads = Heads(2, 32, lambd=None if normalizer == "softmax" else 0.0)
    for answer in attention((empty, empty, empty), (np.array(borders),) * 2, heads):
        assert len(answer) == 0


@pytest.mark.parametrize("element", ["float16", "bfloat16"])
def test_every_number_is_read_and_written(element: Element) -> None:
    """All 65536, exactly; and what lies between two is rounded to the nearest, to even between them."""
    words = np.arange(2**16).astype(np.uint16)
    numbers = words.view(element).astype(np.float32)
    found = read_elements(words, element)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(numbers))
    finite = ~np.isnan(numbers)
    np.testing.assert_array_equal(found[finite].view(np.uint32), numbers[finite].view(np.uint32))
    ordered = np.sort(numbers[np.isfinite(numbers)])
    between = (ordered[:-1].astype(np.float64) + ordered[1:]) / 2
    draws = np.concatenate([numbers, between, between * 1.0001, between * 0.9999, [1e30, -7e4, 65519.9]])
    with np.errstate(all="ignore"):
        floats = draws.astype(np.float32)
        expected = floats.astype(element)
    written = write_elements(floats, element).view(element)
    is_nan = np.isnan(floats)
    assert np.isnan(written[is_nan].astype(np.float32)).all()
    np.testing.assert_array_equal(written[~is_nan].view(np.uint16), expected[~is_nan].view(np.uint16))


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("shape", [(1,), (3, 5, 7), (40, 300), (5, 70, 3), (17, 1), (1, 3000)], ids=str)
def test_sparsegen_lin(shape: tuple[int, ...], element: Element) -> None:
    draws = np.random.default_rng(0).standard_normal(shape, dtype=np.float32) * np.float32(6)
    scores = draws.astype(element).astype(np.float32)
    for lambd in LAMBDAS:
        for axis in range(len(shape)):
            weights = sparsegen_lin(scores, lambd, axis, element)
            expected = expected_lin(scores.astype(np.float64), lambd, axis)
            eager = np.abs(expected_lin(scores, lambd, axis) - expected).max()
            rounding = 0.0 if element == "float32" else float(ml_dtypes.finfo(element).eps) / 2
            assert np.abs(weights - expected).max() <= 4 * eager + 8 * np.finfo(np.float32).eps + rounding


@pytest.mark.parametrize("length", [3, 40, 700])
def test_sparsegen_lin_of_hostile_rows(length: int) -> None:
    scores = np.random.default_rng(0).standard_normal((6, length), dtype=np.float32)
    scores[0, ::2] = -np.inf
    scores[1] = -np.inf
    scores[2, length // 2] = np.nan
    scores[3, length - 1] = np.inf
    scores[5] = np.linspace(-3e38, 3e38, length)
    weights = sparsegen_lin(scores, -4.0)
    assert not weights[0, ::2].any()
    np.testing.assert_allclose(weights[0, 1::2], expected_lin(scores[0, 1::2], -4.0), atol=1e-6)
    assert not weights[1].any()
    assert np.isnan(weights[2:4]).all()
    np.testing.assert_allclose(weights[4], expected_lin(scores[4], -4.0), atol=1e-6)
    np.testing.assert_array_equal(weights[5], np.eye(length)[-1])


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("width", [1, 31, 32, 33, 384])
def test_axis_mask(width: int, element: Element) -> None:
    rng = np.random.default_rng(0)
    hidden, weight, bias = (
        rng.integers(-3, 4, shape).astype(np.float32) for shape in ((70, width), (2, width), (2,))
    )
    hidden[3, width // 2] = np.nan
    expected = weight @ hidden.T + bias[:, None] > 0
    np.testing.assert_array_equal(axis_mask(hidden, weight, bias, element), expected)
    assert axis_mask(hidden[:0], weight, bias, element).shape == (2, 0)
