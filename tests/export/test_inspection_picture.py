"""The picture: white exactly where a weight is zero, and any text can be drawn."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from inspecting import make_checkpoint
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from sparse_export.attention.patterns import Pattern
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import save_checkpoint
from sparse_export.encoders.patterned import pattern_modules
from sparse_export.inspection.inspecting import InspectOptions, Inspector
from sparse_export.inspection.picture import draw, write_picture
from tiny_models import POSITIONS, make_model, make_tokenizer


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
        drawn_values = image.get_array()
        assert drawn_values is not None
        pixels = image.to_rgba(drawn_values, bytes=True)
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


@pytest.fixture(scope="module")
def patterned(tmp_path_factory: pytest.TempPathFactory) -> Inspector:
    """Full attention, AAA, and SSAF on its mask."""
    folder = tmp_path_factory.mktemp("picture")
    aaa = make_checkpoint(folder / "aaa", AttentionSpec.parse("axis", None))
    dense = make_checkpoint(folder / "dense", AttentionSpec())
    return Inspector(InspectOptions(dense, (), (aaa,), layer=0))


def test_pairs_never_allowed_look_neither_like_zeros_nor_like_weights(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "aaa", AttentionSpec.parse("axis", None))
    inspector = Inspector(InspectOptions(folder, (0.0,), layer=1))
    inspected = inspector.inspect("a warm film")
    figure = draw(inspector, inspected)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3].astype(int)
    seen = set()
    for axes, maps in zip(maps_of(figure.axes), inspected.maps, strict=True):
        assert maps.allowed is not None
        view = maps.view(inspector.layer, inspector.head)
        for query, key in np.ndindex(view.shape):
            # The inner part of a cell, away from its borders.
            corners = axes.transData.transform([(key - 0.25, query + 0.25), (key + 0.25, query - 0.25)])
            (left, low), (right, high) = corners.astype(int)
            cell = pixels[pixels.shape[0] - high : pixels.shape[0] - low, left:right].reshape(-1, 3)
            is_grey = bool((np.ptp(cell, axis=1) == 0).all())
            looks = (is_grey, bool((cell == 255).all()))
            seen.add(looks)
            if not maps.allowed.pairs[inspector.layer, query, key]:
                assert looks == (True, False)
            else:
                assert looks == ((True, True) if view[query, key] == 0 else (False, False))
    assert len(seen) == 3


def test_tokens_whose_row_or_column_is_on_are_marked(patterned: Inspector) -> None:
    inspected = patterned.inspect("a warm film")
    full, learned = maps_of(draw(patterned, inspected).axes)
    allowed = inspected.maps[1].allowed
    assert allowed is not None
    rows, columns = allowed.rows[0], allowed.columns[0]
    assert rows.any()
    assert columns.any()
    for labels, on in ((learned.get_yticklabels(), rows), (learned.get_xticklabels(), columns)):
        assert tuple(label.get_text() for label in labels) == inspected.text.tokens
        assert [label.get_color() == "#d55e00" for label in labels] == on.tolist()
    below, beside = learned.lines
    assert np.array_equal(below.get_xdata(), columns.nonzero()[0])
    assert np.array_equal(beside.get_ydata(), rows.nonzero()[0])
    assert not any(label.get_color() == "#d55e00" for label in full.get_xticklabels())
    assert f"on: rows {rows.sum()}, columns {columns.sum()}" in draw(patterned, inspected).axes[2].get_title()


def test_in_long_texts_the_tokens_that_are_on_are_named_first(patterned: Inspector) -> None:
    inspected = patterned.inspect("w " * POSITIONS)
    allowed = inspected.maps[1].allowed
    assert allowed is not None
    lonely = np.zeros_like(allowed.columns)
    lonely[:, [1, 50, 77]] = True
    object.__setattr__(allowed, "columns", lonely)
    axes = maps_of(draw(patterned, inspected).axes)[1]
    named = axes.get_xticks().astype(int).tolist()
    assert {1, 50, 77} <= set(named)
    assert len(named) <= 64
    assert min(np.diff(named)) >= 3


def test_a_pattern_that_allows_nothing_can_be_drawn(tmp_path: Path) -> None:
    model = make_model(AttentionSpec(None, Pattern(axis=True)))
    for layer in pattern_modules(model):
        torch.nn.init.zeros_(layer.get_parameter("weight"))
    save_checkpoint(model, make_tokenizer(tmp_path), tmp_path)
    inspector = Inspector(InspectOptions(str(tmp_path)))
    inspected = inspector.inspect("a")
    assert not inspected.maps[0].weights.any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_picture(inspector, inspected, tmp_path / "picture.png")
