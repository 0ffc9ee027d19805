"""The ops around a product of 8-bit integers: kernel, function and numpy say the same of every row."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_op import Array, bits, library_under_test, run_function, run_op

COLUMNS = [1, 3, 4, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 102, 384, 1536]
SMALLEST = 2.0**-100
INF, NAN = np.inf, np.nan

erf = np.vectorize(math.erf)


def quantize(library: Path | None, values: Array, threads: int = 1) -> tuple[Array, Array]:
    """Return rows and their scales, by the kernel or, without a library, by the function."""
    inputs = {"values": values}
    quantized, scale = (
        run_function("QuantizeRows", inputs)
        if library is None
        else run_op(library, "QuantizeRows", inputs, threads)
    )
    assert [str(each.dtype) for each in (quantized, scale)] == ["uint8", "float32"]
    assert (quantized.shape, scale.shape) == (values.shape, (*values.shape[:-1], 1))
    return quantized, scale


def of_product(library: Path | None, op: str, inputs: dict[str, Array], threads: int = 1) -> list[Array]:
    return run_function(op, inputs) if library is None else run_op(library, op, inputs, threads)


def products(rows: int, columns: int, seed: int = 0) -> dict[str, Array]:
    """A product as a layer has it, of rows of ordinary size, whose sums no float32 holds exactly."""
    rng = np.random.default_rng(seed)
    return {
        "products": rng.integers(-(2**27), 2**27, (rows, columns), dtype=np.int32),
        "scale": rng.random((rows, 1), dtype=np.float32) * np.float32(1e-4),
        "column_scale": rng.random(columns, dtype=np.float32) * np.float32(1e-3),
        "bias": rng.standard_normal(columns, dtype=np.float32),
    }


def dequantized(inputs: dict[str, Array]) -> Array:
    """Return the values in float64."""
    numbers, scale, column_scale, bias = (each.astype(np.float64) for each in inputs.values())
    return numbers * scale * column_scale + bias


def gelu(x: Array) -> Array:
    activated: Array = x / 2 * (1 + erf(x / math.sqrt(2)))
    return activated


def check_rows(quantized: Array, scale: Array, values: Array) -> None:
    """Each number is the nearest multiple of its row's scale, within rounding; the largest is 127 of them."""
    largest = np.abs(values).max(-1, keepdims=True)
    np.testing.assert_allclose(scale, largest / 127, rtol=2e-7)
    steps = quantized.astype(np.float64) - 128
    assert np.abs(steps - values / scale.astype(np.float64)).max() <= 0.5 + 1e-4
    assert (np.abs(steps).max(-1) == 127).all()


@pytest.mark.parametrize("columns", COLUMNS)
def test_every_width(library: Path, columns: int) -> None:
    values = np.random.default_rng(columns).standard_normal((70, columns), dtype=np.float32)
    values *= np.float32(10) ** np.arange(-35, 35, dtype=np.float32)[:, None].clip(-26, 34)
    for run in (library, None):
        check_rows(*quantize(run, values), values)


@pytest.mark.parametrize("shape", [(0, 64), (1, 64), (1, 7, 64), (2, 3, 5, 8), (5,)])
def test_every_rank(library: Path, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    for run in (library, None):
        quantized, scale = quantize(run, values)
        if len(values):
            check_rows(quantized, scale, values)


@pytest.mark.parametrize("columns", [1, 16, 40])
def test_rows_without_a_scale(library: Path, columns: int) -> None:
    """Rows of next to nothing are zeros; those of what is not finite are NaN, whatever stands beside it."""
    values = np.ones((7, columns), np.float32)
    values[:, -1] = [0, -0.0, SMALLEST, np.nextafter(np.float32(SMALLEST), np.float32(0)), NAN, INF, -INF]
    values[:4, :-1] = 0
    for run in (library, None):
        quantized, scale = quantize(run, values)
        np.testing.assert_allclose(scale[:, 0], [0, 0, SMALLEST / 127, 0, NAN, NAN, NAN], rtol=1e-7)
        np.testing.assert_array_equal(quantized[[0, 1, 3, 4, 5, 6]], 128)
        assert quantized[2, -1] == 255


def test_ties_go_to_even(library: Path) -> None:
    halves = np.arange(-126.5, 127, 1, dtype=np.float32)
    values = np.concatenate([halves, [127]])[None].astype(np.float32)
    for run in (library, None):
        quantized, _ = quantize(run, values)
        np.testing.assert_array_equal(quantized[0, :-1].astype(int) - 128, np.rint(halves))


@settings(deadline=None, max_examples=30)
@given(rows=st.integers(1, 40), columns=st.integers(1, 300), seed=st.integers(0, 2**32 - 1))
def test_random_rows(rows: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, columns), dtype=np.float32) ** 3
    kernel, function = quantize(library_under_test(), values, 2), quantize(None, values)
    check_rows(*kernel, values)
    np.testing.assert_array_equal(bits(kernel[1]), bits(function[1]))
    # A number between two steps may fall to either.
    assert np.abs(kernel[0].astype(int) - function[0]).max() <= 1


@pytest.mark.parametrize("columns", COLUMNS)
def test_dequantized(library: Path, columns: int) -> None:
    inputs = products(50, columns)
    expected = dequantized(inputs)
    terms = np.abs(expected - inputs["bias"]) + np.abs(inputs["bias"])
    for run in (library, None):
        (values,) = of_product(run, "DequantizeRows", inputs)
        assert values.dtype == np.float32
        assert (np.abs(values - expected) <= 4 * np.finfo(np.float32).eps * terms).all()


@pytest.mark.parametrize("columns", COLUMNS)
def test_requantized_gelu(library: Path, columns: int) -> None:
    inputs = products(50, columns, seed=columns)
    expected = gelu(dequantized(inputs))
    largest = np.abs(expected).max(-1, keepdims=True)
    for run in (library, None):
        quantized, scale = of_product(run, "RequantizeGelu", inputs)
        assert [str(each.dtype) for each in (quantized, scale)] == ["uint8", "float32"]
        # As exact as the specification says of GELU, and 8 bits.
        allowed = 5e-7 * np.abs(dequantized(inputs)).max(-1, keepdims=True)
        assert (np.abs(scale * 127 - largest) <= allowed + 1e-6 * largest).all()
        found = (quantized.astype(np.float64) - 128) * scale
        assert (np.abs(found - expected) <= 0.501 * scale + allowed).all()


def test_gelu_of_every_size(library: Path) -> None:
    """By rows of two: the number, and a 1 that gives the row its scale."""
    x = np.concatenate([np.linspace(-6, 0.9, 40), [-88.0, -1e4]]).astype(np.float32)
    inputs = {
        "products": np.zeros((1, 2), np.int32),
        "scale": np.ones((1, 1), np.float32),
        "column_scale": np.ones(2, np.float32),
    }
    step = float(gelu(np.array(1.0))) / 127
    for run in (library, None):
        for number in x:
            bias = np.array([number, 1], np.float32)
            quantized, scale = of_product(run, "RequantizeGelu", inputs | {"bias": bias})
            assert scale[0, 0] == pytest.approx(step, rel=1e-6)
            found = (float(quantized[0, 0]) - 128) * float(scale[0, 0])
            expected = float(gelu(np.array(number, np.float64)))
            assert abs(found - expected) <= 0.501 * step + 5e-7 * max(abs(number), 1)


@pytest.mark.parametrize("op", ["DequantizeRows", "RequantizeGelu"])
def test_a_row_without_a_scale_is_nan_alone(library: Path, op: str) -> None:
    inputs = products(6, 40)
    expected = of_product(library, op, inputs)
    spoiled = inputs | {"scale": inputs["scale"].copy()}
    spoiled["scale"][2] = NAN
    others = [0, 1, 3, 4, 5]
    for run in (library, None):
        found = of_product(run, op, spoiled)
        assert np.isnan(found[-1][2]).all()
        for ours, theirs in zip(of_product(run, op, inputs), found, strict=True):
            np.testing.assert_array_equal(ours[others], theirs[others])
    assert not np.isnan(expected[-1]).any()


@pytest.mark.parametrize("columns", [5, 384])
def test_rows_do_not_depend_on_their_companions_or_threads(library: Path, columns: int) -> None:
    values = np.random.default_rng(1).standard_normal((3000, columns), dtype=np.float32)
    inputs = products(3000, columns)
    together = [*quantize(library, values), *of_product(library, "RequantizeGelu", inputs)]
    together += of_product(library, "DequantizeRows", inputs)
    rows = slice(1234, 1235)
    alone = inputs | {name: inputs[name][rows] for name in ("products", "scale")}
    apart = [*quantize(library, values[rows]), *of_product(library, "RequantizeGelu", alone)]
    apart += of_product(library, "DequantizeRows", alone)
    threaded = [*quantize(library, values, 4), *of_product(library, "RequantizeGelu", inputs, 4)]
    threaded += of_product(library, "DequantizeRows", inputs, 4)
    for all_rows, one, in_threads in zip(together, apart, threaded, strict=True):
        np.testing.assert_array_equal(all_rows[rows], one)
        np.testing.assert_array_equal(all_rows, in_threads)


def test_a_linear_layer() -> None:
    """What the ops are for: x W + b within the error that 8 bits have."""
    rng = np.random.default_rng(3)
    x, weight = rng.standard_normal((20, 384)), rng.standard_normal((384, 96)) / 20
    quantized, scale = quantize(library_under_test(), x.astype(np.float32))
    column_scale = np.abs(weight).max(0) / 127
    integers = (quantized.astype(np.int32) - 128) @ np.rint(weight / column_scale).astype(np.int32)
    inputs = {
        "products": integers.astype(np.int32),
        "scale": scale,
        "column_scale": column_scale.astype(np.float32),
        "bias": np.ones(96, np.float32),
    }
    (found,) = of_product(library_under_test(), "DequantizeRows", inputs)
    exact = x @ weight + 1
    assert np.abs(found - exact).std() < 0.02 * exact.std()
