"""The ops in numpy and torch: float64 judges the kernels, float32 sets the error budget of dense ones."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from entmax import sparsemax
from torch import Tensor

from axis_cases import AxisCase
from cases import AttentionCase

Array = npt.NDArray[Any]

# Of the hash that draws random keys.
PRIME = 2**31 - 1
SHIFT = 1580030168

QUERIES_AT_ONCE = 512

AXIS_TOLERANCE = 1e-5
"""Of axis attention in float32, of values of ordinary size."""


def sparsegen_threshold(z: Array) -> Array:
    """Return tau of Eq. 6 (SSAF) along the last axis of `z = e / (1 - lambda)`, keeping the axis."""
    descending = -np.sort(-z, axis=-1)
    total = np.cumsum(descending, axis=-1)
    k = np.arange(1, z.shape[-1] + 1)
    size = np.maximum((1 + k * descending > total).sum(-1, keepdims=True), 1)
    threshold: Array = (np.take_along_axis(total, size - 1, -1) - 1) / size
    return threshold


def sparsegen_lin(scores: Array, lambd: float, axis: int = -1) -> Array:
    """Return sparsegen-lin of finite `scores` along `axis`, in their dtype."""
    z = np.moveaxis(scores, axis, -1)
    z = (z - z.max(-1, keepdims=True)) / scores.dtype.type(1 - lambd)
    return np.moveaxis(np.maximum(z - sparsegen_threshold(z), 0), -1, axis)


def softmax(scores: Array) -> Array:
    """Return softmax along the last axis."""
    weights: Array = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights


@dataclass(frozen=True)
class Expected:
    """What an op must answer.

    `output` and `eager` are the same `(T, H·D)` in float64 and in float32; `rounding` is what one rounding of
    the largest score does to an output; `least_support` and `most_support` `(T, H)` bracket the support where
    a score lies within rounding of the threshold.
    """

    output: Array
    eager: Array
    rounding: float
    least_support: Array
    most_support: Array

    def budget(self) -> float:
        """Return the largest error allowed: a few times the eager float32 error, plus rounding."""
        own = 16 * float(np.finfo(np.float32).eps) * float(np.abs(self.output).max())
        return 4 * float(np.abs(self.eager - self.output).max()) + self.rounding + own


@lru_cache(maxsize=512)
def packed_attention(case: AttentionCase, normalizer: str) -> Expected:
    """Return what SparsegenAttention ("sparsegen") or SoftmaxAttention ("softmax") must answer on a case."""
    output, least, most = _attend(case, normalizer, np.float64)
    eager, _, _ = _attend(case, normalizer, np.float32)
    return Expected(output, eager, _rounding(case, normalizer), least, most)


def gpu_budget(case: AttentionCase, expected: Expected) -> Array:
    """Return the largest error of each output `(T, H·D)` that a kernel for GPUs is allowed.

    That of float32, and of 16 bits half a step of every weight and of the output.
    """
    if case.element == "float32":
        return np.full_like(expected.output, expected.budget())
    of_weights = _weight_rounding(case, np.array(max(case.lengths, default=0)))
    least: Array = expected.budget() + of_weights + _half_step(case) * np.abs(expected.output)
    return least


def _half_step(case: AttentionCase) -> float:
    """Return what rounding to the case's type does to a number of size 1, at most."""
    return float(ml_dtypes.finfo(case.element).eps) / 2


def _weight_rounding(case: AttentionCase, keys: Array) -> Array:
    """Return what rounding the weights of so many keys does to an output, at most."""
    smallest = float(ml_dtypes.finfo(case.element).smallest_subnormal) / 2
    largest = float(np.max(np.abs(case.inputs()[2]), initial=0))
    of_weights: Array = (_half_step(case) + smallest * keys) * largest
    return of_weights


def _rounding(case: AttentionCase, normalizer: str) -> float:
    """Bound the terms of a score, in units of the weights, times the largest value."""
    query, key, value = (np.abs(tensor) for tensor in case.inputs())
    terms = float(np.max(query, initial=0) * np.max(key, initial=0) * np.sqrt(case.head_size))
    terms *= case.scale or case.head_size**-0.5
    divisor = 1 - case.lambd if normalizer == "sparsegen" else 1
    return float(np.finfo(np.float32).eps) * terms / divisor * float(np.max(value, initial=0))


def _attend(
    case: AttentionCase, normalizer: str, dtype: type[np.floating[Any]]
) -> tuple[Array, Array, Array]:
    heads = (-1, case.num_heads, case.head_size)
    query, key, value = (tensor.reshape(heads).astype(dtype) for tensor in case.inputs())
    scale = dtype(case.scale or case.head_size**-0.5)
    output = np.zeros_like(query)
    least = np.zeros(query.shape[:2], np.int64)
    most = np.zeros_like(least)
    borders = case.cu_seqlens
    for begin, end in pairwise(borders):
        if begin == end:
            continue
        scores = query[begin:end].transpose(1, 0, 2) @ key[begin:end].transpose(1, 2, 0) * scale
        if normalizer == "softmax":
            weights = softmax(scores)
        else:
            weights = sparsegen_lin(scores, case.lambd)
            z = (scores - scores.max(-1, keepdims=True)) / dtype(1 - case.lambd)
            margin = z - sparsegen_threshold(z)
            slack = 32 * np.finfo(np.float32).eps * (1 + np.abs(scores).max() / (1 - case.lambd))
            least[begin:end] = (margin > slack).sum(-1).T
            most[begin:end] = (margin > -slack).sum(-1).T
        output[begin:end] = (weights @ value[begin:end].transpose(1, 0, 2)).transpose(1, 0, 2)
    return output.reshape(len(query), case.num_heads * case.head_size), least, most


def random_key(seed: int, row: int, draw: int, length: int) -> int:
    """Return the key that axis attention draws for a row, in Python's own whole numbers."""
    return _mix(_mix(_mix(seed) + row + 1) + draw + 1) % length


def _mix(x: int) -> int:
    return pow(x + SHIFT, 5, PRIME)


def allowed_pairs(case: AxisCase, rows: Array, columns: Array) -> Array:
    """Return `(N, N)` bool, query and key, of one sequence whose rows and columns, `(N,)` bool, are on."""
    length = len(rows)
    i, j = np.ogrid[:length, :length]
    pairs = rows[:, None] | columns | np.isin(np.abs(i - j), case.diagonals)
    for row in range(length):
        for draw in range(case.random_keys):
            pairs[row, random_key(case.seed, row, draw, length)] = True
    return pairs


@dataclass(frozen=True)
class AxisExpected:
    """What AxisAttention must answer.

    `output` is `(T, H·D)` in float64, `allowed` `(T,)` the number of keys of a row; `least_support` and
    `most_support` `(T, H)` bracket the support where a score lies within rounding of sparsegen's threshold.
    """

    output: Array
    allowed: Array
    least_support: Array
    most_support: Array


@lru_cache(maxsize=512)
def axis_attention(case: AxisCase) -> AxisExpected:
    """Return dense attention in torch, masked to the allowed pairs; sparsegen by entmax's sparsemax."""
    attention = case.attention
    heads = (-1, attention.num_heads, attention.head_size)
    query, key, value = (torch.from_numpy(x).double().view(heads).transpose(0, 1) for x in attention.inputs())
    rows, columns = case.indicators()
    output = torch.zeros_like(query)
    allowed = torch.zeros(len(rows), dtype=torch.int64)
    least, most = (torch.zeros(query.shape[:2], dtype=torch.int64) for _ in range(2))
    scale = attention.scale or attention.head_size**-0.5
    for begin, end in pairwise(attention.cu_seqlens):
        pairs = torch.from_numpy(allowed_pairs(case, rows[begin:end], columns[begin:end]))
        allowed[begin:end] = pairs.sum(-1)
        for first in range(begin, end, QUERIES_AT_ONCE):
            own = slice(first, min(first + QUERIES_AT_ONCE, end))
            own_pairs = pairs[own.start - begin : own.stop - begin]
            scores = query[:, own] @ key[:, begin:end].mT * scale
            weights, least[:, own], most[:, own] = _masked_weights(scores, own_pairs, case)
            output[:, own] = weights @ value[:, begin:end]
    packed = output.transpose(0, 1).reshape(len(rows), attention.num_heads * attention.head_size)
    return AxisExpected(packed.numpy(), allowed.numpy(), least.T.numpy(), most.T.numpy())


def axis_gpu_budget(case: AxisCase, expected: AxisExpected) -> Array:
    """Return the largest error of each output `(T, H·D)` that a kernel for GPUs is allowed.

    What a rounding of float32 scores does, magnified where sparsegen is steep, and of 16 bits half a step of
    every weight and of the output.
    """
    attention = case.attention
    steepness = 1 - attention.lambd if case.normalizer == "sparsegen" else 1
    size = max(1.0, attention.scale * attention.head_size**0.5)
    scores = np.full(expected.output.shape, AXIS_TOLERANCE * size / min(1, steepness))
    if attention.element == "float32":
        return scores
    of_weights = _weight_rounding(attention, expected.allowed[:, None])
    budgets: Array = scores + of_weights + _half_step(attention) * np.abs(expected.output)
    return budgets


def _masked_weights(scores: Tensor, pairs: Tensor, case: AxisCase) -> tuple[Tensor, Tensor, Tensor]:
    has_key = pairs.any(-1, keepdim=True)
    masked = scores.masked_fill(~pairs, -torch.inf).where(has_key, 0)
    if case.normalizer == "softmax":
        count = pairs.sum(-1)
        return masked.softmax(-1) * has_key, count, count
    z = masked / (1 - case.attention.lambd)
    weights = sparsemax(z, dim=-1)
    threshold = z.amax(-1, keepdim=True) - weights.amax(-1, keepdim=True)
    largest = float(scores.abs().amax()) / (1 - case.attention.lambd)
    slack = 32 * float(np.finfo(np.float32).eps) * (1 + largest)
    margin = (z - threshold).where(pairs, -torch.inf)
    return weights * has_key, (margin > slack).sum(-1), (margin > -slack).sum(-1)
