"""Rounding of a layer's weights by which errors of one make up for those of others.

To the nearest integer each weight is off by itself. Where it is known what a layer reads, the error of one
row of weights can be taken off those that are still to be rounded, as far as their inputs rise and fall with
its own: E. Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", ICLR 2023, Algorithm 1, rows in the order of falling moments.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Of the mean square of an input, added to each: what few texts say of many inputs is not taken at its word.
_DAMPING = 0.01
_BLOCK = 128


def rounded(weight: Array, scale: Array, largest: int, moments: Array) -> Array:
    """Return a weight in units of its columns' scales, rounded to integers.

    Args:
        weight: `(K, N)` float32.
        scale: of each column, `(N,)` float32, above 0.
        largest: magnitude that no integer exceeds.
        moments: of the inputs, `(K, K)`: their products, summed over rows.

    Returns:
        `(K, N)` int8.
    """
    damped = moments.astype(np.float64)
    size = len(damped)
    silent = np.diag(damped) == 0
    damped[np.diag_indices(size)] += np.where(silent, 1.0, _DAMPING * damped.trace() / size)
    order = np.argsort(-np.diag(damped), kind="stable")
    factor = np.linalg.cholesky(np.linalg.inv(damped[np.ix_(order, order)])).T
    left = weight[order] / scale.astype(np.float64)
    integers = np.empty(left.shape, np.int8)
    for first in range(0, size, _BLOCK):
        last = min(first + _BLOCK, size)
        errors = np.empty((last - first, left.shape[1]))
        for i in range(first, last):
            row = np.clip(np.rint(left[i]), -largest, largest)
            integers[order[i]] = row
            errors[i - first] = (left[i] - row) / factor[i, i]
            left[i + 1 : last] -= np.outer(factor[i, i + 1 : last], errors[i - first])
        left[last:] -= factor[first:last, last:].T @ errors
    return integers
