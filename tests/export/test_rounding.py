"""Weights rounded so that their errors cancel out on what a layer reads."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sparse_export.graph.rounding import rounded

Array = npt.NDArray[Any]

LARGEST = 63


def problem(inputs: int, outputs: int, rows: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """A weight, the scales of its columns, and rows of inputs that rise and fall together."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((inputs, outputs)).astype(np.float32)
    mixed = rng.standard_normal((inputs // 4, inputs))
    read = rng.standard_normal((rows, inputs // 4)) @ mixed + 0.1 * rng.standard_normal((rows, inputs))
    return weight, np.abs(weight).max(0) / np.float32(LARGEST), read.astype(np.float32)


def row_by_row(weight: Array, scale: Array, moments: Array) -> Array:
    """The algorithm as the paper says it, a row at a time: what is left to round takes the error over.

    After each row the moments of the rest are those given the row (the step that the paper's Cholesky factor
    does all at once).
    """
    left = weight.astype(np.float64) / scale
    damped = moments.astype(np.float64) + 0.01 * np.trace(moments.astype(np.float64)) / len(moments) * np.eye(
        len(moments)
    )
    inverse = np.linalg.inv(damped)
    integers = np.zeros(left.shape)
    for i in np.argsort(-np.diag(damped), kind="stable"):
        integers[i] = np.clip(np.rint(left[i]), -LARGEST, LARGEST)
        error = (left[i] - integers[i]) / inverse[i, i]
        left -= np.outer(inverse[i], error)
        inverse -= np.outer(inverse[i], inverse[i]) / inverse[i, i]
    return integers


@pytest.mark.parametrize("inputs", [8, 128, 300])
def test_blocks_round_as_the_paper_does_row_by_row(inputs: int) -> None:
    weight, scale, read = problem(inputs, 20, 1000)
    moments = read.T @ read
    found = rounded(weight, scale, LARGEST, moments)
    assert found.dtype == np.int8
    # In other orders of sums a number half way between two integers may come to lie on the other side.
    assert (found != row_by_row(weight, scale, moments)).mean() < 1e-3


def test_errors_cancel_out() -> None:
    weight, scale, read = problem(64, 40, 500)
    found = rounded(weight, scale, LARGEST, read.T @ read)
    assert np.abs(found.astype(int)).max() <= LARGEST

    def error(integers: Array) -> float:
        return float(np.square(read @ (integers * scale - weight)).mean())

    assert error(found) < 0.3 * error(np.rint(weight / scale))


def test_without_a_relation_between_inputs_each_weight_is_rounded_to_the_nearest() -> None:
    weight, scale, _ = problem(40, 10, 1)
    nearest = np.rint(weight / scale)
    np.testing.assert_array_equal(rounded(weight, scale, LARGEST, np.eye(40, dtype=np.float32)), nearest)
    np.testing.assert_array_equal(rounded(weight, scale, LARGEST, np.zeros((40, 40), np.float32)), nearest)


def test_an_input_that_is_never_there_takes_no_error_over() -> None:
    weight, scale, read = problem(40, 10, 200)
    read[:, 7] = 0
    found = rounded(weight, scale, LARGEST, read.T @ read)
    np.testing.assert_array_equal(found[7], np.rint(weight[7] / scale))
