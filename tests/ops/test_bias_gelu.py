"""GELU of biased rows: kernel, function, torch and float64 say the same of every number."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from one_op import Array, bits, run_function, run_op

COLUMNS = [1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 65, 102, 1536]
# As exact as the specification says.
EXACT = 3e-7

erfc = np.vectorize(math.erfc, otypes=[float])


def activated(library: Path | None, values: Array, bias: Array, threads: int = 1) -> Array:
    """Return what the kernel says or, without a library, the function."""
    inputs = {"input": values, "bias": bias}
    (output,) = (
        run_function("BiasGelu", inputs) if library is None else run_op(library, "BiasGelu", inputs, threads)
    )
    assert (output.shape, str(output.dtype)) == (values.shape, "float32")
    return output


def exact(values: Array, bias: Array) -> tuple[Array, Array]:
    """Return the sums as float32 has them, and GELU of each in float64."""
    sums = (values + bias).astype(np.float64)
    return sums, sums / 2 * erfc(-sums / math.sqrt(2))


@pytest.mark.parametrize("columns", COLUMNS)
def test_every_width(library: Path, columns: int) -> None:
    rng = np.random.default_rng(columns)
    values = rng.standard_normal((40, columns), dtype=np.float32) * 3
    bias = rng.standard_normal(columns, dtype=np.float32)
    sums, wanted = exact(values, bias)
    for run in (library, None):
        assert (np.abs(activated(run, values, bias) - wanted) <= EXACT * np.abs(sums) + 1e-12).all()
    tensor = torch.nn.functional.gelu(torch.from_numpy(values + bias))
    np.testing.assert_allclose(activated(library, values, bias), tensor.numpy(), rtol=0, atol=3e-6)


def test_every_number(library: Path) -> None:
    """Of every size, close by where the fit ends."""
    dense = np.linspace(-8, 8, 160_001, dtype=np.float32)
    sizes = np.float32(10) ** np.arange(-38, 38, 0.25, dtype=np.float32)
    x = np.concatenate([dense, sizes, -sizes, np.zeros(1, np.float32), np.array([3e38, -3e38], np.float32)])
    sums, wanted = exact(x[None], np.zeros(len(x), np.float32))
    found = activated(library, x[None], np.zeros(len(x), np.float32))
    assert (np.abs(found - wanted) <= EXACT * np.abs(sums)).all()
    np.testing.assert_array_equal(found[sums < -6], 0)
    np.testing.assert_array_equal(found[sums > 6], sums[sums > 6].astype(np.float32))


@pytest.mark.parametrize("shape", [(0, 64), (1, 7, 64), (2, 3, 5, 8), (5,)])
def test_every_rank(library: Path, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    bias = np.ones(shape[-1], np.float32)
    _, wanted = exact(values, bias)
    np.testing.assert_allclose(activated(library, values, bias), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("columns", [1, 16, 41])
def test_nan_is_nan_alone(library: Path, columns: int) -> None:
    values = np.random.default_rng(0).standard_normal((6, columns), dtype=np.float32)
    bias = np.zeros(columns, np.float32)
    wanted = activated(library, values, bias)
    spoiled = values.copy()
    spoiled[2, -1] = np.nan
    for run in (library, None):
        found = activated(run, spoiled, bias)
        assert np.isnan(found[2, -1])
        assert np.isnan(found).sum() == 1
    found = activated(library, spoiled, bias)
    np.testing.assert_array_equal(bits(found)[spoiled == values], bits(wanted)[spoiled == values])


@pytest.mark.parametrize("columns", [5, 1536])
def test_rows_do_not_depend_on_their_companions_or_threads(library: Path, columns: int) -> None:
    rng = np.random.default_rng(1)
    values, bias = rng.standard_normal((800, columns), dtype=np.float32), np.ones(columns, np.float32)
    together = activated(library, values, bias)
    np.testing.assert_array_equal(bits(together[123:124]), bits(activated(library, values[123:124], bias)))
    np.testing.assert_array_equal(bits(together), bits(activated(library, values, bias, threads=4)))
