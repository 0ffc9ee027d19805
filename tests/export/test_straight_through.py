"""The gradient of a learned mask's pairs: what each flip, alone, really does to the loss."""

import pytest
import torch
from torch import Tensor

from sparse_export.attention.sparsegen import sparsegen_lin
from sparse_export.attention.straight_through import straight_through

ROWS, KEYS = 24, 24
NORMALIZERS = [None, 0.5, 0.0, -1.0, -4.0, -7.0]


def weights_of(scores: Tensor, allowed: Tensor, lambd: float | None) -> Tensor:
    """What is served: weights over exactly the allowed keys."""
    if lambd is not None:
        return sparsegen_lin(scores, lambd, mask=allowed)
    softmax = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    return torch.where(allowed, softmax, 0)


@pytest.mark.parametrize("lambd", NORMALIZERS)
@pytest.mark.parametrize("spread", [0.5, 1.5, 6.0])
def test_gradients_are_those_of_exact_single_pair_flips(lambd: float | None, spread: float) -> None:
    """Of sparsegen-lin what a flip changes, but where it leaves no key; of softmax its sign."""
    generator = torch.Generator().manual_seed(0)
    right = {True: 0, False: 0}
    flips = {True: 0, False: 0}
    for _ in range(10):
        scores = torch.randn(ROWS, KEYS, generator=generator, dtype=torch.float64) * spread
        allowed = torch.rand(ROWS, KEYS, generator=generator) < 0.4
        allowed |= torch.eye(ROWS, KEYS, dtype=torch.bool)
        values, factors = torch.randn(2, KEYS, 8, generator=generator, dtype=torch.float64)

        def loss(weights: Tensor, values: Tensor = values, factors: Tensor = factors) -> Tensor:
            return ((weights @ values) * factors).sum(-1)

        pairs = allowed.double().requires_grad_()
        loss(straight_through(scores, pairs, lambd)).sum().backward()
        assert pairs.grad is not None
        before = loss(weights_of(scores, allowed, lambd))
        for key in range(KEYS):
            flipped = allowed.clone()
            flipped[:, key] ^= True
            changed = loss(weights_of(scores, flipped, lambd)) - before
            turned_on = ~allowed[:, key]
            expected = torch.where(turned_on, changed, -changed)
            gradient = pairs.grad[:, key]
            counts = (changed.abs() > 1e-9) & flipped.any(-1)
            assert (gradient[(changed.abs() <= 1e-12) & flipped.any(-1)].abs() < 1e-12).all()
            if lambd is not None:
                torch.testing.assert_close(gradient[counts], expected[counts], rtol=1e-9, atol=1e-9)
            for direction in (True, False):
                of_these = counts & (turned_on == direction)
                flips[direction] += int(of_these.sum())
                right[direction] += int((of_these & (expected.sign() == gradient.sign())).sum())
    for direction, count in flips.items():
        assert count > 200
        assert right[direction] / count >= 0.98


@pytest.mark.parametrize("lambd", NORMALIZERS[1:])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_once(lambd: float, dtype: torch.dtype) -> None:
    """As under autocast: the same scores and the same gradient, in 8 or 11 bits and in float64."""
    generator = torch.Generator().manual_seed(4)
    scores = (torch.randn(16, 256, generator=generator) * 3).to(dtype)
    gradient = torch.randn(16, 256, generator=generator).to(dtype)
    allowed = torch.rand(16, 256, generator=generator) < 0.6
    gradients = []
    for each in (dtype, torch.float64):
        pairs = allowed.to(each).requires_grad_()
        straight_through(scores.to(each), pairs, lambd).backward(gradient.to(each))
        assert pairs.grad is not None
        gradients.append(pairs.grad.double())
    ours, exact = gradients
    assert (ours - exact).abs().max() <= 0.03 * exact.abs().max()


@pytest.mark.parametrize("lambd", NORMALIZERS)
def test_equal_values_are_worth_nothing(lambd: float | None) -> None:
    """Where all keys say the same, it is all the same which of them may be read."""
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(5, 9, generator=generator)
    pairs = (torch.rand(5, 9, generator=generator) < 0.5).float()
    pairs[:, 0] = 1
    pairs.requires_grad_()
    (straight_through(scores, pairs, lambd) @ torch.full((9, 1), 3.0)).sum().backward()
    assert pairs.grad is not None
    more_than_one = pairs.detach().sum(-1) > 1
    torch.testing.assert_close(
        pairs.grad[more_than_one], torch.zeros(int(more_than_one.sum()), 9), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("lambd", NORMALIZERS)
def test_the_weights_are_those_that_are_served(lambd: float | None) -> None:
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(3, 2, 6, 6, generator=generator) * 2
    allowed = torch.rand(3, 1, 6, 6, generator=generator) < 0.4
    allowed[0, 0, 3] = False  # a query without a key
    weights = straight_through(scores, allowed.float(), lambd)
    expected = weights_of(scores, allowed.expand_as(scores), lambd).nan_to_num()
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
    assert not weights[~allowed.expand_as(weights)].any()


@pytest.mark.parametrize("lambd", NORMALIZERS[1:])
def test_scores_get_the_gradient_of_the_weights_over_the_allowed_keys(lambd: float) -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(4, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    allowed = torch.rand(4, 7, generator=generator) < 0.6
    factors = torch.randn(4, 7, generator=generator, dtype=torch.float64)
    (straight_through(scores, allowed.double(), lambd) * factors).sum().backward()
    same = scores.detach().clone().requires_grad_()
    (weights_of(same, allowed, lambd) * factors).sum().backward()
    torch.testing.assert_close(scores.grad, same.grad)


@pytest.mark.parametrize("lambd", NORMALIZERS[1:])
@pytest.mark.parametrize("extreme", [1e4, -1e4])
def test_extreme_scores_leave_finite_gradients(lambd: float, extreme: float) -> None:
    scores = torch.zeros(3, 5)
    scores[:, 1] = extreme
    scores.requires_grad_()
    pairs = torch.tensor([[1.0, 0, 1, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]], requires_grad=True)
    (straight_through(scores, pairs, lambd) * torch.arange(5.0)).sum().backward()
    for gradient in (scores.grad, pairs.grad):
        assert gradient is not None
        assert gradient.isfinite().all()
        assert gradient.abs().max() <= 5
