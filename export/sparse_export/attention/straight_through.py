"""Attention weights in training whose gradient tells what each pair of a learned mask is worth.

A learned mask is 0 or 1. Which it should be shows in the gradient of its pairs: how the loss would change if
this pair alone were turned on, or off. For softmax that direction is the derivative of the masked quotient
itself. sparsegen-lin is flat in pairs off its support and has corners where the support changes, so that its
gradient is computed from what the flip really does to a row: its new threshold.
"""

from typing import Any

import torch
from torch import Tensor, nn

from sparse_export.attention.sparsegen import sparsegen_lin, support_gradient

# How far a score that is not allowed may count above the largest allowed one in softmax's gradient.
_MOST_ABOVE = 2.0
# Newton steps to the threshold after a flip: four were exact of all of 17,000 flips, two of 99 in 100.
_NEWTON_STEPS = 4


def straight_through(scores: Tensor, pairs: Tensor, lambd: float | None) -> Tensor:
    """Weights over the allowed keys, with a gradient for every pair, allowed or not.

    Args:
        scores: `(…, L_q, L_k)`, floating point.
        pairs: 0.0 or 1.0, broadcastable to `scores`; 1 = allowed. A query without a key gets zeros.
        lambd: λ of sparsegen-lin; None for softmax.

    Returns:
        Weights of the shape of `scores`, exactly 0 where not allowed. Backwards, `scores` get the gradient of
        the weights over the allowed keys, and `pairs` one whose sign is that of the change in loss, as far as
        the loss is linear in the weights, when the pair is turned on; its size is bounded by the weights'.
    """
    if lambd is not None:
        return _SparsegenPairs.apply(scores, pairs.expand_as(scores), lambd)  # type: ignore[no-any-return,no-untyped-call]
    allowed = pairs > 0.5
    peak = scores.masked_fill(~allowed, -torch.inf).amax(-1, keepdim=True).detach()
    above = scores - peak.clamp_min(torch.finfo(peak.dtype).min)
    # Kept from growing beyond what the largest allowed one has: a score may be far above theirs.
    exponentials = above.clamp_max(_MOST_ABOVE).exp() * pairs
    # The peak alone counts 1. A query that is padding may have no key, and must not divide by nothing.
    return exponentials / exponentials.sum(-1, keepdim=True).clamp_min(0.5)


class _SparsegenPairs(torch.autograd.Function):
    """sparsegen-lin over the allowed keys; backwards a pair gets the change that flipping it alone makes."""

    @staticmethod
    def forward(scores: Tensor, pairs: Tensor, lambd: float) -> Tensor:
        return sparsegen_lin(scores, lambd, mask=pairs > 0.5)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        scores, pairs, ctx.lambd = inputs
        ctx.save_for_backward(scores, pairs > 0.5, output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        scores, allowed, weights = ctx.saved_tensors
        of_scores = support_gradient(grads[0], weights > 0, -1) / (1 - ctx.lambd)
        # Differences of sums over a row decide, of which half precision would leave little.
        dtype = torch.promote_types(scores.dtype, torch.float32)
        z, kept, gradient = (each.to(dtype) for each in (scores, weights, grads[0]))
        of_pairs = _flip_gradient(z / (1 - ctx.lambd), allowed, kept, gradient)
        return of_scores, of_pairs.to(grads[0].dtype), None


def _flip_gradient(z: Tensor, allowed: Tensor, weights: Tensor, gradient: Tensor) -> Tensor:
    """Return how Σ gradient · weights changes as each pair alone goes from off to on.

    A row's weights are max(0, z_j − τ) with f(τ) = Σ max(0, z_j − τ) − 1 = 0 over its allowed keys. A flip
    adds one term to f or takes one away. Newton's method on the convex f finds the new τ, from sums over the
    row's keys in descending order, and the same sums of the gradient give the new loss.

    Args:
        z: `(…, L)`, scores / (1 − λ).
        allowed: `(…, L)` bool.
        weights: `(…, L)`, as they are.
        gradient: `(…, L)`, of the loss by the weights.
    """
    is_kept = weights > 0
    kept = is_kept.sum(-1, keepdim=True)
    peak = z.masked_fill(~allowed, -torch.inf).amax(-1, keepdim=True)
    z = z - peak.masked_fill(peak == -torch.inf, 0)
    tau = torch.where(kept > 0, ((z * is_kept).sum(-1, keepdim=True) - 1) / kept.clamp_min(1), -torch.inf)
    # Weights sum to 1 before and after: a constant in the gradient changes nothing but the rounding.
    mean = (gradient * weights).sum(-1, keepdim=True)
    gradient = gradient - mean

    ranked, order = z.masked_fill(~allowed, -torch.inf).sort(-1, descending=True)
    is_key = ranked > -torch.inf
    in_order = gradient.gather(-1, order)
    # Sums over the first k keys, k = 0 … L.
    sum_z, sum_g, sum_gz = (
        nn.functional.pad(torch.where(is_key, each, 0).cumsum(-1), (1, 0))
        for each in (ranked, in_order, in_order * ranked)
    )
    ascending = -ranked
    sign = torch.where(allowed, -1.0, 1.0).to(z.dtype)

    # A key more leaves τ on the near side of the root; a key less does so after a step, or without any key
    # left above it 1 below the next one.
    next_key = ranked[..., 1:2] if ranked.shape[-1] > 1 else torch.full_like(ranked, -torch.inf)
    lower = torch.where(kept > 1, tau + (tau - z) / (kept - 1).clamp_min(1), next_key - 1)
    root = torch.where(allowed, lower, tau.expand_as(z))
    for _ in range(_NEWTON_STEPS):
        count = torch.searchsorted(ascending, -root)
        own = sign * (z > root)
        size = count + own
        root = torch.where(size > 0, (sum_z.gather(-1, count) + own * z - 1) / size.clamp_min(1), root)
    count = torch.searchsorted(ascending, -root)
    own = sign * (z > root)
    change = sum_gz.gather(-1, count) - root * sum_g.gather(-1, count) + own * gradient * (z - root)
    # Without its only key a row is all zeros.
    change = torch.where(root == -torch.inf, -mean, change)
    return torch.where(z > tau, sign * change, 0)
