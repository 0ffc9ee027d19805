"""AxisMask: its kernel, its function on a stock runtime and numpy say the same of every token."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_op import Array, library_under_test, run_function, run_op

from cases import Element

WIDTHS = [1, 3, 8, 15, 16, 17, 63, 64, 65, 127, 312, 384, 768]


def masks(library: Path | None, inputs: dict[str, Array], threads: int = 1, **more: Element) -> Array:
    """Return rows and columns, `(2, T)`, of the kernel or, without a library, of the function."""
    if library is None:
        answers = run_function("AxisMask", inputs, **more)
    else:
        answers = run_op(library, "AxisMask", inputs, threads, **more)
    assert [mask.dtype for mask in answers] == [np.bool_, np.bool_]
    return np.stack(answers)


def random_inputs(tokens: int, width: int, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes = {"hidden": (tokens, width), "weight": (2, width), "bias": (2,)}
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def logits(inputs: dict[str, Array]) -> Array:
    """Return `(2, T)` float64."""
    hidden, weight, bias = (inputs[name].astype(np.float64) for name in ("hidden", "weight", "bias"))
    return weight @ hidden.T + bias[:, None]


def check(library: Path, inputs: dict[str, Array], threads: int = 1) -> None:
    """Both agree with float64 wherever a logit is farther from 0 than its rounding."""
    expected = logits(inputs)
    terms = np.abs(inputs["weight"]).astype(np.float64) @ np.abs(inputs["hidden"]).T
    terms += np.abs(inputs["bias"])[:, None]
    width = inputs["hidden"].shape[1]
    decided = np.abs(expected) > (width + 1) * np.finfo(np.float32).eps * terms
    assert decided.sum() >= 0.9 * expected.size - 5
    for found in (masks(library, inputs, threads), masks(None, inputs)):
        np.testing.assert_array_equal(found[decided], expected[decided] > 0)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_width(library: Path, width: int) -> None:
    check(library, random_inputs(70, width))


@pytest.mark.parametrize("tokens", [0, 1, 4096])
def test_every_length(library: Path, tokens: int) -> None:
    check(library, random_inputs(tokens, 64))


@settings(deadline=None, max_examples=40)
@given(tokens=st.integers(0, 60), width=st.integers(1, 400), seed=st.integers(0, 2**32 - 1))
def test_random_problems(tokens: int, width: int, seed: int) -> None:
    check(library_under_test(), random_inputs(tokens, width, seed), threads=2)


@settings(deadline=None, max_examples=40)
@given(width=st.integers(1, 100), spread=st.sampled_from([1, 3, 1000]), seed=st.integers(0, 2**32 - 1))
def test_whole_numbers_leave_no_doubt(width: int, spread: int, seed: int) -> None:
    """All sums are exact, many are 0, and 0 is off."""
    rng = np.random.default_rng(seed)
    shapes = {"hidden": (50, width), "weight": (2, width), "bias": (2,)}
    inputs = {name: rng.integers(-1, 2, shape).astype(np.float32) for name, shape in shapes.items()}
    inputs["hidden"] *= np.float32(spread)
    inputs["bias"] *= np.float32(spread)
    for found in (masks(library_under_test(), inputs), masks(None, inputs)):
        np.testing.assert_array_equal(found, logits(inputs) > 0)


INF, NAN = np.inf, np.nan
SMALLEST = np.float32(1e-45)


@pytest.mark.parametrize("width", [1, 16, 40])
def test_the_threshold(library: Path, width: int) -> None:
    """Above 0 is on: 0, −0 and NaN are off, the smallest number is on."""
    one = np.array([1, SMALLEST, 0, -0.0, -SMALLEST, -1, INF, -INF, NAN], np.float32)
    hidden = np.zeros((len(one), width), np.float32)
    hidden[:, -1] = one
    weight = np.zeros((2, width), np.float32)
    weight[:, -1] = [1, -1]
    inputs = {"hidden": hidden, "weight": weight, "bias": np.zeros(2, np.float32)}
    for found in (masks(library, inputs), masks(None, inputs)):
        np.testing.assert_array_equal(found[0], [1, 1, 0, 0, 0, 0, 1, 0, 0])
        np.testing.assert_array_equal(found[1], [0, 0, 0, 0, 1, 1, 0, 1, 0])


@pytest.mark.parametrize(
    ("bias", "is_on"),
    [(0.0, False), (-0.0, False), (SMALLEST, True), (INF, True), (-INF, False), (NAN, False)],
)
def test_bias_alone(library: Path, bias: float, is_on: bool) -> None:
    inputs = {
        "hidden": np.ones((3, 20), np.float32),
        "weight": np.zeros((2, 20), np.float32),
        "bias": np.array([bias, 1], np.float32),
    }
    for found in (masks(library, inputs), masks(None, inputs)):
        np.testing.assert_array_equal(found, [[is_on] * 3, [True] * 3])


def test_non_finite_tokens_stay_among_themselves(library: Path) -> None:
    inputs = random_inputs(40, 48)
    ordinary = masks(library, inputs)
    inputs["hidden"][7, 5] = NAN
    inputs["hidden"][9] = NAN
    inputs["hidden"][11, :2] = [INF, -INF]
    inputs["weight"][:, :2] = np.abs(inputs["weight"][:, :2])
    others = np.setdiff1d(np.arange(40), [7, 9, 11])
    inputs["hidden"][others, :2] = 0
    expected = masks(
        library, {name: inputs[name] for name in inputs} | {"hidden": np.nan_to_num(inputs["hidden"])}
    )
    for found in (masks(library, inputs), masks(None, inputs)):
        assert not found[:, [7, 9, 11]].any()
        np.testing.assert_array_equal(found[:, others], expected[:, others])
    assert ordinary.any()


def test_tokens_do_not_depend_on_their_neighbours_or_threads(library: Path) -> None:
    """Where a sum decides by its last bit: differences that float32 loses in one order or another."""
    rng = np.random.default_rng(4)
    half = rng.standard_normal((3000, 150), dtype=np.float32)
    inputs = {
        "hidden": np.concatenate([half, -half[:, rng.permutation(150)]], 1),
        "weight": np.ones((2, 300), np.float32),
        "bias": np.zeros(2, np.float32),
    }
    together = masks(library, inputs)
    assert 0.1 < together.mean() < 0.9
    np.testing.assert_array_equal(masks(library, inputs, threads=4), together)
    backwards = inputs | {"hidden": inputs["hidden"][::-1].copy()}
    np.testing.assert_array_equal(masks(library, backwards)[:, ::-1], together)
    alone = inputs | {"hidden": inputs["hidden"][1234:1235]}
    np.testing.assert_array_equal(masks(library, alone)[:, 0], together[:, 1234])


def rounded(array: Array, element: Element) -> Array:
    return array.astype(element).astype(np.float32)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("element", ["float16", "bfloat16"])
def test_arithmetic_is_float32(library: Path, element: Element, width: int) -> None:
    """The answers for 16 bits are those of float32 on the same numbers, kernel and function apart."""
    inputs = {name: rounded(each, element) for name, each in random_inputs(200, width).items()}
    kernel = masks(library, inputs, element=element)
    np.testing.assert_array_equal(kernel, masks(library, inputs))
    np.testing.assert_array_equal(masks(None, inputs, element=element), masks(None, inputs))


@pytest.mark.parametrize("element", ["float16", "bfloat16"])
def test_products_that_16_bits_cannot_hold(library: Path, element: Element) -> None:
    """Two that cancel but for the bias, and a small term that 16 bits lose beside a large one."""
    inputs = {
        "hidden": rounded(np.array([[60000, -60000], [2048, 1], [2048, -1]], np.float32), element),
        "weight": np.array([[60000, 60000], [1, 1]], np.float32),
        "bias": np.array([512, -2048], np.float32),
    }
    inputs["weight"] = rounded(inputs["weight"], element)
    for run in (library, None):
        found = masks(run, inputs, element=element)
        np.testing.assert_array_equal(found, [[True, True, True], [False, True, False]])
