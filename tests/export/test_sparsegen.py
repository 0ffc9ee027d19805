"""sparsegen-lin: hand-computed values, the entmax oracle, gradients and the properties the paper states."""

import math

import entmax
import hypothesis.extra.numpy as arrays
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cases import LAMBDAS
from sparse_export.attention.sparsegen import sparsegen_lin

Scores = npt.NDArray[np.float64]
SCORES = arrays.arrays(
    np.float64,
    arrays.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=17),
    elements=st.floats(-30, 30, allow_nan=False),
)
LAMBD = st.floats(-50, 0.95)


def draw(*shape: int, seed: int = 0, spread: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator) * spread


@pytest.mark.parametrize(
    ("scores", "lambd", "expected"),
    [
        ([0.0], -4, [1.0]),
        ([1.0, 1.0], 0, [0.5, 0.5]),
        # λ=0: both kept, τ = (1.5 − 1) / 2
        ([1.0, 0.5], 0, [0.75, 0.25]),
        # λ=0: a gap of 1 or more leaves one
        ([2.0, 1.0, 0.0], 0, [1.0, 0.0, 0.0]),
        # λ=−1: the scores are halved first, τ = (1.5 − 1) / 2 over two keys
        ([2.0, 1.0, 0.0], -1, [0.75, 0.25, 0.0]),
        # λ=−4 over three keys: 0.6 / 5 − τ with τ = (0.9 / 5 − 1) / 3
        ([0.6, 0.3, 0.0], -4, [1 / 3 + 0.06, 1 / 3, 1 / 3 - 0.06]),
        # λ=0.5 doubles the gaps
        ([1.0, 0.75, 0.0], 0.5, [0.75, 0.25, 0.0]),
    ],
)
def test_hand_computed(scores: list[float], lambd: float, expected: list[float]) -> None:
    result = sparsegen_lin(torch.tensor(scores, dtype=torch.float64), lambd)
    torch.testing.assert_close(result, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("lambd", LAMBDAS)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_equals_sparsemax_of_scaled_scores(lambd: float, dim: int) -> None:
    scores = draw(4, 60, 23)
    expected = entmax.sparsemax(scores / (1 - lambd), dim=dim)
    result = sparsegen_lin(scores, lambd, dim)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)
    assert torch.equal(result > 0, expected > 0)


@given(SCORES, LAMBD)
def test_is_a_distribution(scores: Scores, lambd: float) -> None:
    result = sparsegen_lin(torch.from_numpy(scores), lambd)
    assert (result >= 0).all()
    torch.testing.assert_close(result.sum(-1), torch.ones(scores.shape[:-1], dtype=torch.float64))


@given(SCORES, LAMBD, st.randoms(use_true_random=False))
def test_is_permutation_equivariant(scores: Scores, lambd: float, random: object) -> None:
    order = list(range(scores.shape[-1]))
    random.shuffle(order)  # type: ignore[attr-defined]
    tensor = torch.from_numpy(scores)
    expected = sparsegen_lin(tensor, lambd)[..., order]
    torch.testing.assert_close(sparsegen_lin(tensor[..., order], lambd), expected, rtol=0, atol=1e-12)


@given(SCORES, LAMBD, st.floats(-100, 100))
def test_is_shift_invariant(scores: Scores, lambd: float, shift: float) -> None:
    tensor = torch.from_numpy(scores)
    result = sparsegen_lin(tensor + shift, lambd)
    torch.testing.assert_close(result, sparsegen_lin(tensor, lambd), rtol=0, atol=1e-11)


def test_tends_to_argmax_and_to_uniform() -> None:
    scores = draw(50, 31)
    one_hot = torch.nn.functional.one_hot(scores.argmax(-1), 31).double()
    torch.testing.assert_close(sparsegen_lin(scores, 1 - 1e-9), one_hot)
    uniform = torch.full_like(scores, 1 / 31)
    torch.testing.assert_close(sparsegen_lin(scores, -1e9), uniform, rtol=0, atol=1e-6)


@given(arrays.arrays(np.float64, (3, 12), elements=st.floats(-5, 5)))
def test_grows_sparser_with_lambda(scores: Scores) -> None:
    supports = [int((sparsegen_lin(torch.from_numpy(scores), lambd) > 0).sum()) for lambd in sorted(LAMBDAS)]
    assert supports == sorted(supports, reverse=True)


@pytest.mark.parametrize("lambd", LAMBDAS)
def test_gradient_is_the_jacobian(lambd: float) -> None:
    scores = draw(3, 9).requires_grad_()
    assert torch.autograd.gradcheck(lambda e: sparsegen_lin(e, lambd), scores)
    assert torch.autograd.gradgradcheck(lambda e: sparsegen_lin(e, lambd), scores)


def test_gradient_under_a_mask_is_finite_and_zero_where_masked() -> None:
    scores = draw(4, 7).requires_grad_()
    mask = torch.ones(4, 7, dtype=torch.bool)
    mask[0, 3:] = False
    mask[1] = False
    assert torch.autograd.gradcheck(lambda e: sparsegen_lin(e, -4.0, mask=mask), scores)
    (sparsegen_lin(scores, -4.0, mask=mask) ** 2).sum().backward()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()
    assert not scores.grad[~mask].any()


def test_mask_gives_exact_zeros_and_empty_rows_are_zero() -> None:
    scores = draw(2, 3, 5, 8)
    mask = torch.rand(2, 1, 1, 8, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[1] = False
    result = sparsegen_lin(scores, -4.0, mask=mask)
    assert not result[(~mask).expand_as(result)].any()
    assert not result[1].any()
    kept = sparsegen_lin(scores[0][..., mask[0, 0, 0]], -4.0)
    torch.testing.assert_close(result[0][..., mask[0, 0, 0]], kept)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_precision_is_one_rounding_of_float64(dtype: torch.dtype) -> None:
    scores = draw(40, 64).to(dtype)
    result = sparsegen_lin(scores, -4.0)
    assert result.dtype == dtype
    exact = sparsegen_lin(scores.double(), -4.0)
    eps = torch.finfo(dtype).eps
    single = 64 * torch.finfo(torch.float32).eps
    torch.testing.assert_close(result.double(), exact, rtol=eps, atol=single)
    assert exact.max() > 0.05


@pytest.mark.parametrize("shape", [(), (0,), (0, 4), (4, 0), (1,), (2, 1)])
def test_degenerate_shapes(shape: tuple[int, ...]) -> None:
    result = sparsegen_lin(torch.zeros(shape), -4.0)
    assert result.shape == shape
    assert (result == 1).all()


def test_non_finite_scores() -> None:
    inf, nan = math.inf, math.nan
    scores = torch.tensor([[-inf, 1.0, 0.0], [-inf, -inf, -inf], [nan, 1.0, 0.0], [inf, 1.0, 0.0]])
    result = sparsegen_lin(scores, 0.0)
    torch.testing.assert_close(result[0], torch.tensor([0.0, 1.0, 0.0]))
    assert not result[1].any()
    assert result[2:].isnan().all()


@pytest.mark.parametrize("lambd", [1, 1.5, math.inf, -math.inf, math.nan])
def test_lambda_out_of_range(lambd: float) -> None:
    with pytest.raises(ValueError, match="lambda must be a finite number below 1, got"):
        sparsegen_lin(torch.zeros(3), lambd)


def test_wrong_types() -> None:
    with pytest.raises(TypeError, match="scores must be floating point"):
        sparsegen_lin(torch.zeros(3, dtype=torch.int64), 0)
    with pytest.raises(TypeError, match="mask must be bool"):
        sparsegen_lin(torch.zeros(3), 0, mask=torch.ones(3))
