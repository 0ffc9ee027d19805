"""SparsegenLin against float64 numpy, entmax and the torch reference."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from entmax import sparsemax
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from one_op import OPSET, bits, library_under_test, open_session, run_function, run_op
from onnx import TensorProto, helper
from reference import Array, sparsegen_lin

from cases import LAMBDAS
from sparse_export.attention import sparsegen
from sparse_serve.op_library import DOMAIN, OPSET_VERSION

SHAPES = [(1,), (9,), (3, 5, 7), (2, 3, 64, 64), (40, 300), (5, 70, 3), (2, 1, 513), (17, 1), (1, 3000)]


def scores_like(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) * np.float32(6)


def check(library: Path, scores: Array, lambd: float, axis: int, threads: int = 1) -> Array:
    (weights,) = run_op(library, "SparsegenLin", {"scores": scores}, threads, lambd=lambd, axis=axis)
    expected = sparsegen_lin(scores.astype(np.float64), lambd, axis)
    eager = sparsegen_lin(scores, lambd, axis)
    budget = 4 * np.abs(eager - expected).max() + 8 * np.finfo(np.float32).eps
    assert np.abs(weights - expected).max() <= budget
    np.testing.assert_allclose(weights.sum(axis), 1, rtol=0, atol=1e-4)
    return weights


@pytest.mark.parametrize("lambd", LAMBDAS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_axis(library: Path, shape: tuple[int, ...], lambd: float) -> None:
    scores = scores_like(shape)
    for axis in range(-len(shape), len(shape)):
        check(library, scores, lambd, axis)


@pytest.mark.parametrize("lambd", LAMBDAS)
def test_equals_sparsemax_of_entmax(library: Path, lambd: float) -> None:
    scores = scores_like((50, 200))
    (weights,) = run_op(library, "SparsegenLin", {"scores": scores}, lambd=lambd)
    oracle = sparsemax(torch.from_numpy(scores).double() / (1 - lambd), dim=-1).numpy()
    np.testing.assert_allclose(weights, oracle, rtol=0, atol=1e-5 / min(1, 1 - lambd))


@pytest.mark.parametrize("lambd", LAMBDAS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_equals_the_torch_reference(library: Path, lambd: float, axis: int) -> None:
    scores = scores_like((7, 33, 20))
    (weights,) = run_op(library, "SparsegenLin", {"scores": scores}, lambd=lambd, axis=axis)
    reference = sparsegen.sparsegen_lin(torch.from_numpy(scores), lambd, axis).numpy()
    np.testing.assert_allclose(weights, reference, rtol=0, atol=1e-5 / min(1, 1 - lambd))


@settings(deadline=None, max_examples=60)
@given(
    shape=array_shapes(min_dims=1, max_dims=4, max_side=40),
    lambd=st.floats(-200, 0.9),
    spread=st.sampled_from([0.0, 0.01, 1.0, 50.0]),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_random_shapes(
    shape: tuple[int, ...], lambd: float, spread: float, seed: int, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    lambd = float(np.float32(lambd))
    check(library_under_test(), scores_like(shape, seed) * np.float32(spread), lambd, axis)


def test_a_hard_row_ends(library: Path) -> None:
    """Geometric gaps make Newton's method drop few keys a step."""
    geometric = -(np.float32(0.5) ** np.arange(0, 120, dtype=np.float32))
    steps = -np.arange(600, dtype=np.float32) / 300
    for row in (geometric, steps, np.full(4096, 7, np.float32)):
        check(library, row[None], 0.0, -1)


def test_scores_of_any_size(library: Path) -> None:
    huge = np.linspace(-3e38, 3e38, 500, dtype=np.float32)[None]
    (weights,) = run_op(library, "SparsegenLin", {"scores": huge}, lambd=-4.0)
    np.testing.assert_array_equal(weights[0], np.eye(500)[-1])
    tiny = np.linspace(-1e-40, 1e-40, 500, dtype=np.float32)[None]
    (weights,) = run_op(library, "SparsegenLin", {"scores": tiny}, lambd=-4.0)
    np.testing.assert_allclose(weights[0], 1 / 500, rtol=1e-5)


@pytest.mark.parametrize("lambd", [-8e37, -9e37, -1e38, -3.4e38])
@pytest.mark.parametrize("flushes", [False, True])
def test_a_lambda_whose_reciprocal_is_subnormal(
    library: Path, lambd: float, flushes: bool, request: pytest.FixtureRequest
) -> None:
    """Scores that lie apart by about λ are told apart by the kernel and the function, −∞ weighs 0."""
    if flushes:
        request.getfixturevalue("subnormals_are_zero")
    scores = np.float32(4e37) * np.random.default_rng(0).standard_normal((9, 40), dtype=np.float32)
    expected = np.zeros_like(scores)
    expected[:, 1:] = sparsegen_lin(scores[:, 1:].astype(np.float64), lambd)
    scores[:, 0] = -np.inf
    for run in (partial(run_op, library), run_function):
        (weights,) = run("SparsegenLin", {"scores": scores}, lambd=lambd)
        np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-6)
    assert 1.5 / 39 < expected.max() < 0.9
    (uniform,) = run_op(library, "SparsegenLin", {"scores": scores_like((3, 7))}, lambd=lambd)
    np.testing.assert_allclose(uniform, 1 / 7, rtol=1e-6)


def test_hand_computed(library: Path) -> None:
    scores = np.array([[3, 1, 0.2], [1, 1, 1], [0.5, 0, -9]], np.float32)
    (weights,) = run_op(library, "SparsegenLin", {"scores": scores}, lambd=0.0)
    np.testing.assert_allclose(weights, np.array([[1, 0, 0], [1 / 3] * 3, [0.75, 0.25, 0]]), atol=1e-6)
    (weights,) = run_op(library, "SparsegenLin", {"scores": scores}, lambd=-1.0)
    np.testing.assert_allclose(weights, np.array([[1, 0, 0], [1 / 3] * 3, [0.625, 0.375, 0]]), atol=1e-6)


@pytest.mark.parametrize("length", [3, 40, 700])
@pytest.mark.parametrize("axis", [0, 1])
def test_non_finite_scores(library: Path, length: int, axis: int) -> None:
    scores = scores_like((5, length))
    scores[0, ::2] = -np.inf
    scores[1] = -np.inf
    scores[2, length // 2] = np.nan
    scores[3, length - 1] = np.inf
    (weights,) = run_op(
        library, "SparsegenLin", {"scores": scores if axis == 1 else scores.T.copy()}, lambd=-4.0, axis=axis
    )
    weights = weights if axis == 1 else weights.T
    assert not weights[0, ::2].any()
    np.testing.assert_allclose(weights[0, 1::2], sparsegen_lin(scores[0, 1::2], -4.0), atol=1e-6)
    assert not weights[1].any()
    assert np.isnan(weights[2:4]).all()
    np.testing.assert_allclose(weights[4], sparsegen_lin(scores[4], -4.0), atol=1e-6)


def test_rows_do_not_depend_on_their_neighbours_or_threads(library: Path) -> None:
    scores = scores_like((300, 90))
    (together,) = run_op(library, "SparsegenLin", {"scores": scores}, lambd=-4.0)
    (threaded,) = run_op(library, "SparsegenLin", {"scores": scores}, threads=2, lambd=-4.0)
    (reversed_,) = run_op(library, "SparsegenLin", {"scores": scores[::-1].copy()}, lambd=-4.0)
    (alone,) = run_op(library, "SparsegenLin", {"scores": scores[123:124]}, lambd=-4.0)
    np.testing.assert_array_equal(bits(threaded), bits(together))
    np.testing.assert_array_equal(bits(reversed_[::-1]), bits(together))
    np.testing.assert_array_equal(bits(alone[0]), bits(together[123]))


def test_empty_of_any_size(library: Path) -> None:
    """Whose other sizes have a product beyond int64: only another op can make such a tensor."""
    sizes = np.array([0, 2**33, 2**33])
    zeros = helper.make_node("ConstantOfShape", ["sizes"], ["scores"])
    lin = helper.make_node("SparsegenLin", ["scores"], ["weights"], domain=DOMAIN, lambd=-4.0, axis=0)
    shape = helper.make_node("Shape", ["weights"], ["shape"])
    values = [helper.make_tensor_value_info(name, TensorProto.INT64, [3]) for name in ("sizes", "shape")]
    model = helper.make_model(
        helper.make_graph([zeros, lin, shape], "empty", values[:1], values[1:]),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, OPSET_VERSION)],
        ir_version=9,
    )
    (found,) = open_session(model.SerializeToString(), library).run(None, {"sizes": sizes})
    np.testing.assert_array_equal(found, sizes)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (2, 0, 3)], ids=str)
def test_empty(library: Path, shape: tuple[int, ...]) -> None:
    (weights,) = run_op(library, "SparsegenLin", {"scores": np.zeros(shape, np.float32)}, lambd=-4.0)
    assert weights.shape == shape
