"""Residual sums and their norms: kernel, function, torch and float64 say the same of every row."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from one_op import Array, bits, library_under_test, run_function, run_op

COLUMNS = [1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 102, 128, 384, 1024]
EPSILON = 1e-5
INF, NAN = np.inf, np.nan


def sums(shape: tuple[int, ...], seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    values = {name: rng.standard_normal(shape, dtype=np.float32) for name in ("input", "skip")}
    return values | {
        name: rng.standard_normal(shape[-1], dtype=np.float32) for name in ("gamma", "beta", "bias")
    }


def normalized(
    library: Path | None, inputs: dict[str, Array], epsilon: float = EPSILON, threads: int = 1
) -> Array:
    """Return what the kernel says or, without a library, the function."""
    op = "SkipLayerNormalization"
    if library is None:
        (output,) = run_function(op, inputs, epsilon=epsilon)
    else:
        (output,) = run_op(library, op, inputs, threads, epsilon=epsilon)
    assert (output.shape, str(output.dtype)) == (inputs["input"].shape, "float32")
    return output


def exact(inputs: dict[str, Array], epsilon: float = EPSILON) -> Array:
    x, skip, gamma, beta, bias = (each.astype(np.float64) for each in inputs.values())
    x = x + bias + skip
    centered = x - x.mean(-1, keepdims=True)
    variance = np.square(centered).mean(-1, keepdims=True)
    result: Array = centered / np.sqrt(variance + epsilon) * gamma + beta
    return result


@pytest.mark.parametrize("columns", COLUMNS)
def test_every_width(library: Path, columns: int) -> None:
    inputs = sums((70, columns), columns)
    for run in (library, None):
        np.testing.assert_allclose(normalized(run, inputs), exact(inputs), rtol=0, atol=2e-5)


@pytest.mark.parametrize("columns", [5, 384])
def test_every_width_as_torch(library: Path, columns: int) -> None:
    inputs = sums((20, columns))
    values, skip, gamma, beta, bias = (torch.from_numpy(each) for each in inputs.values())
    wanted = torch.nn.functional.layer_norm(values + bias + skip, (columns,), gamma, beta, EPSILON)
    np.testing.assert_allclose(normalized(library, inputs), wanted.numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 64), (1, 64), (1, 7, 64), (2, 3, 5, 8), (5,)])
def test_every_rank(library: Path, shape: tuple[int, ...]) -> None:
    inputs = sums(shape)
    np.testing.assert_allclose(normalized(library, inputs), exact(inputs), rtol=0, atol=1e-5)


@pytest.mark.parametrize("columns", [17, 384])
def test_rows_far_from_zero(library: Path, columns: int) -> None:
    """Whose squares have no digit left of what they are apart."""
    inputs = sums((8, columns))
    inputs["input"] += np.float32(10_000)
    inputs["bias"][:] = 0
    found = normalized(library, inputs)
    # The sum itself is rounded to a thousandth.
    np.testing.assert_allclose(found, exact(inputs), rtol=0, atol=5e-3)


def test_rows_of_one_number(library: Path) -> None:
    """Are what is added: nothing is apart from its mean, and `epsilon` divides."""
    inputs = sums((4, 40))
    inputs["input"][:], inputs["skip"][:], inputs["bias"][:] = 3, -1, 0.5
    for run in (library, None):
        np.testing.assert_array_equal(normalized(run, inputs), np.tile(inputs["beta"], (4, 1)))


@pytest.mark.parametrize("columns", [1, 16, 41])
@pytest.mark.parametrize("spoiled", [NAN, INF, -INF])
def test_a_row_that_is_not_finite_is_nan_alone(library: Path, columns: int, spoiled: float) -> None:
    inputs = sums((6, columns))
    wanted = normalized(library, inputs)
    for name in ("input", "skip"):
        changed = inputs | {name: inputs[name].copy()}
        changed[name][2, -1] = spoiled
        for run in (library, None):
            found = normalized(run, changed)
            assert np.isnan(found[2]).all()
        others = [0, 1, 3, 4, 5]
        np.testing.assert_array_equal(bits(normalized(library, changed))[others], bits(wanted)[others])


@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 300),
    seed=st.integers(0, 2**32 - 1),
    epsilon=st.sampled_from([1e-12, 1e-5, 0.1]),
)
def test_random_rows(rows: int, columns: int, seed: int, epsilon: float) -> None:
    inputs = sums((rows, columns), seed)
    centered = inputs["input"].astype(np.float64) + inputs["skip"] + inputs["bias"]
    spread = centered.std(-1, keepdims=True)
    # What float32 loses of a sum is divided by how far a row is spread.
    allowed = 2e-5 + 1e-5 / (spread + np.sqrt(epsilon))
    for run in (library_under_test(), None):
        found = normalized(run, inputs, epsilon, 2)
        assert (np.abs(found - exact(inputs, epsilon)) <= allowed).all()


@pytest.mark.parametrize("columns", [5, 384])
def test_rows_do_not_depend_on_their_companions_or_threads(library: Path, columns: int) -> None:
    inputs = sums((3000, columns))
    together = normalized(library, inputs)
    rows = slice(1234, 1235)
    alone = inputs | {name: inputs[name][rows] for name in ("input", "skip")}
    np.testing.assert_array_equal(bits(together[rows]), bits(normalized(library, alone)))
    np.testing.assert_array_equal(bits(together), bits(normalized(library, inputs, threads=4)))
