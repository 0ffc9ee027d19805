"""The picture: white exactly where a weight is zero, and any text can be drawn."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

from sparse_export.inspection.inspecting import InspectOptions, Inspector
from sparse_export.inspection.picture import draw, write_picture
from tiny_models import POSITIONS


@pytest.fixture(scope="module")
def inspector(checkpoint: Path) -> Inspector:
    return Inspector(InspectOptions(str(checkpoint), (-4.0, 0.0), head=1))


def maps_of(axes: list[Axes]) -> list[Axes]:
    return [axis for axis in axes if axis.images]


def test_maps_are_drawn_with_their_zeros(inspector: Inspector) -> None:
    inspected = inspector.inspect("a warm film")
    drawn = maps_of(draw(inspector, inspected).axes)
    assert len(drawn) == len(inspector.variants) == 4
    for axes, maps in zip(drawn, inspected.maps, strict=True):
        view = maps.view(inspector.layer, inspector.head)
        (image,) = axes.images
        pixels = image.to_rgba(image.get_array(), bytes=True)
        assert ((pixels == 255).all(-1) == (view == 0)).all()
        assert tuple(label.get_text() for label in axes.get_xticklabels()) == inspected.text.tokens
    assert image.norm is drawn[0].images[0].norm


def test_titles_tell_zeros_and_answer(inspector: Inspector) -> None:
    inspected = inspector.inspect("a warm film")
    titles = [axes.get_title() for axes in draw(inspector, inspected).axes if axes.get_title()]
    for title, variant, maps in zip(titles, inspector.variants, inspected.maps, strict=True):
        view = maps.view(inspector.layer, inspector.head)
        keys = f"{np.mean(view == 0):.1%} zeros, {(view != 0).sum(1).mean():.1f} of {len(view)} keys"
        answer = f"{maps.prediction.label} {maps.prediction.scores[maps.prediction.label]:.2f}"
        trained = " (as trained)" if variant.as_trained else ""
        assert title == f"{variant.name}{trained}\n{keys}\n{answer}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "$x^2$ \\frac{1}{2} $ _^ %",
        "שלום עולם",
        "雪が降る 🎬🍿",
        "<b>bold</b> \u0000\t\n",
        "w" * POSITIONS,
    ],
    ids=["empty", "mathematics", "right to left", "no glyph", "markup", "long"],
)
def test_any_text_can_be_drawn(inspector: Inspector, tmp_path: Path, text: str) -> None:
    path = tmp_path / "picture.png"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_picture(inspector, inspector.inspect(text), path)
    with Image.open(path) as picture:
        picture.load()
        assert picture.format == "PNG"
        assert 400 < picture.height < picture.width < 4000


def test_tokens_of_words_without_glyphs_and_with_dollars(checkpoint: Path, tmp_path: Path) -> None:
    """The tiny vocabulary knows no such tokens: they are drawn as if it did."""
    inspector = Inspector(InspectOptions(str(checkpoint)))
    inspected = inspector.inspect("abcd")
    names = ("$x_2$", "雪", "\u0000", "w" * 40, *inspected.text.tokens[4:])
    object.__setattr__(inspected.text, "tokens", names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_picture(inspector, inspected, tmp_path / "picture.png")
    (axes,) = maps_of(draw(inspector, inspected).axes)
    labels = [label.get_text() for label in axes.get_xticklabels()][:4]
    assert labels == ["$x_2$", "雪", "\ufffd", "w" * 17 + "…"]


def test_the_mean_over_heads_says_that_it_is_one(checkpoint: Path) -> None:
    inspector = Inspector(InspectOptions(str(checkpoint)))
    figure = draw(inspector, inspector.inspect("a warm film"))
    assert "mean of 4 heads" in figure.texts[0].get_text()
