"""The ops in numpy: float64 is what the kernels are judged by, float32 sets their error budget."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from cases import AttentionCase

Array = npt.NDArray[Any]


def sparsegen_threshold(z: Array) -> Array:
    """Return tau of Eq. 6 (SSAF) along the last axis of `z = e / (1 - lambda)`, keeping the axis."""
    descending = -np.sort(-z, axis=-1)
    total = np.cumsum(descending, axis=-1)
    k = np.arange(1, z.shape[-1] + 1)
    size = np.maximum((1 + k * descending > total).sum(-1, keepdims=True), 1)
    return (np.take_along_axis(total, size - 1, -1) - 1) / size


def sparsegen_lin(scores: Array, lambd: float, axis: int = -1) -> Array:
    """Return sparsegen-lin of finite `scores` along `axis`, in their dtype."""
    z = np.moveaxis(scores, axis, -1)
    z = (z - z.max(-1, keepdims=True)) / scores.dtype.type(1 - lambd)
    return np.moveaxis(np.maximum(z - sparsegen_threshold(z), 0), -1, axis)


def softmax(scores: Array) -> Array:
    """Return softmax along the last axis."""
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


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


@lru_cache(maxsize=128)
def packed_attention(case: AttentionCase, normalizer: str) -> Expected:
    """Return what SparsegenAttention ("sparsegen") or SoftmaxAttention ("softmax") must answer on a case."""
    output, least, most = _attend(case, normalizer, np.float64)
    eager, _, _ = _attend(case, normalizer, np.float32)
    return Expected(output, eager, _rounding(case, normalizer), least, most)


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
        scores = np.einsum("ihd,jhd->hij", query[begin:end] * scale, key[begin:end])
        if normalizer == "softmax":
            weights = softmax(scores)
        else:
            weights = sparsegen_lin(scores, case.lambd)
            z = (scores - scores.max(-1, keepdims=True)) / dtype(1 - case.lambd)
            margin = z - sparsegen_threshold(z)
            slack = 32 * np.finfo(np.float32).eps * (1 + np.abs(scores).max() / (1 - case.lambd))
            least[begin:end] = (margin > slack).sum(-1).T
            most[begin:end] = (margin > -slack).sum(-1).T
        output[begin:end] = np.einsum("hij,jhd->ihd", weights, value[begin:end])
    return output.reshape(len(query), case.num_heads * case.head_size), least, most
