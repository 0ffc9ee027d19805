"""sparsegen-lin, the sparse replacement of softmax in SSAF (Cui et al., EMNLP 2019, Eq. 4-6).

This module is the specification: the ONNX function and the kernels of the op library are judged by it.
"""

import math
from typing import Any

import torch
from torch import Tensor


def check_lambd(lambd: float) -> float:
    """Return `lambd` if sparsegen-lin is defined for it.

    Raises:
        ValueError: `lambd` is not a finite number below 1.
    """
    if not (math.isfinite(lambd) and lambd < 1):
        raise ValueError(
            f"lambda must be a finite number below 1, got {lambd}: sparsegen-lin divides by 1 - lambda"
        )
    return float(lambd)


def sparsegen_lin(scores: Tensor, lambd: float, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Project scores onto the probability simplex, with exact zeros (SSAF, Eq. 4).

    Solves, along `dim`, argmin over p in the simplex of ‖p − e‖² − λ‖p‖². The solution is
    p_j = max(0, (e_j − τ) / (1 − λ)) (Eq. 5) with τ from the sorted scores (Eq. 6), which equals
    sparsemax(e / (1 − λ)). λ → 1 tends to argmax, λ → −∞ to the uniform distribution.

    The result is exact in float32 and float64; half precision is computed in float32 and rounded once.
    The gradient is the Jacobian's own: (g − mean of g over the support) / (1 − λ) on the support, 0 off it.

    Args:
        scores: `e`, any shape, float16, bfloat16, float32 or float64. −inf gets weight 0; a row with
            NaN or +inf becomes NaN.
        lambd: λ, finite and below 1.
        dim: the dimension that is normalised.
        mask: bool, broadcastable to `scores`; False gets weight exactly 0. A row that is masked
            throughout (or −inf throughout) is all zeros.

    Returns:
        `p`, shape and dtype of `scores`: non-negative, summing to 1 along `dim`, or all zeros.

    Raises:
        TypeError: `scores` is not floating point or `mask` is not bool.
        ValueError: `lambd` is out of range.
    """
    lambd = check_lambd(lambd)
    if not scores.is_floating_point():
        raise TypeError(f"scores must be floating point, got {scores.dtype}")
    if mask is not None:
        if mask.dtype != torch.bool:
            raise TypeError(f"mask must be bool (True = may be attended), got {mask.dtype}")
        scores = scores.masked_fill(~mask, -torch.inf)
    weights: Tensor = _SparsegenLin.apply(scores, lambd, dim)  # type: ignore[no-untyped-call]
    return weights


class _SparsegenLin(torch.autograd.Function):
    """Forward by sorting (Eq. 6), backward by the support alone."""

    @staticmethod
    def forward(scores: Tensor, lambd: float, dim: int) -> Tensor:
        return _project(scores, lambd, dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, int], output: Tensor) -> None:
        _, ctx.lambd, ctx.dim = inputs
        ctx.save_for_backward(output > 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (support,) = ctx.saved_tensors
        return (support_gradient(grads[0], support, ctx.dim) / (1 - ctx.lambd), None, None)


def support_gradient(gradient: Tensor, support: Tensor, dim: int) -> Tensor:
    """Return (1 − λ) times the gradient of sparsegen-lin by its scores: centred on the support, 0 off it.

    Args:
        gradient: of a loss by the weights.
        support: bool, of the same shape, where the weights are above 0.
        dim: the dimension that was normalised.
    """
    on_support = gradient.masked_fill(~support, 0)
    mean = on_support.sum(dim, keepdim=True) / support.sum(dim, keepdim=True).clamp_min(1)
    return (on_support - mean).masked_fill(~support, 0)


def _project(scores: Tensor, lambd: float, dim: int) -> Tensor:
    if scores.numel() == 0:
        return scores.clone()
    dtype = torch.promote_types(scores.dtype, torch.float32)
    peak = scores.amax(dim, keepdim=True).to(dtype)
    empty = peak == -torch.inf
    # Shifting by the peak changes nothing (the simplex fixes the sum) and keeps τ within [−1, 0).
    shifted = (scores.to(dtype) - peak.masked_fill(empty, 0)) / (1 - lambd)

    descending = shifted.sort(dim, descending=True).values
    cumulative = descending.cumsum(dim)
    counts_shape = [1] * scores.dim()
    if scores.dim():
        counts_shape[dim] = scores.shape[dim]
    k = torch.arange(1, math.prod(counts_shape) + 1, device=scores.device, dtype=dtype).view(counts_shape)
    support_size = (1 + k * descending > cumulative).sum(dim, keepdim=True).clamp_min(1)
    threshold = (cumulative.gather(dim, support_size - 1) - 1) / support_size
    return (shifted - threshold).clamp_min(0).masked_fill(empty, 0).to(scores.dtype)
