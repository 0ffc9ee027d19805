"""A picture of attention maps: one layer of one text, variant beside variant (SSAF, Figures 1 and 3)."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps, font_manager, rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from sparse_export.inspection.inspecting import InspectedText, Inspector, Variant
from sparse_export.inspection.maps import AttentionMaps, Weights, received

# Perceptually uniform and readable without colour vision; its light end is far from the zeros' white.
_COLORS = colormaps["viridis_r"].with_extremes(bad="white")
# Most weights of a long text are small: their square root spreads them over the scale.
_GAMMA = 0.5
_TICKS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
_DPI = 150
# With more tokens an axis names every second, third, … of them.
_NAMED_TOKENS = 64
_LONGEST_NAME = 18
_BAR_COLOR, _QUIET = "#0072b2", "#666666"
# DejaVu comes with matplotlib; the others fill in scripts that it lacks, where they are installed.
_FONTS = (
    "DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "WenQuanYi Micro Hei", "Noto Sans Devanagari",
    "Noto Sans Thai", "Noto Emoji", "Symbola",
)  # fmt: skip

# Lengths in inches.
_CELL, _SMALLEST_MAP, _LARGEST_MAP = 0.18, 2.3, 9.0
_WIDEST_ROW = 20.0
_BARS, _TITLE, _HEADING, _GAP, _KEY = 0.42, 0.55, 0.2, 0.15, 0.9
_LETTER = 0.075


def write_picture(inspector: Inspector, inspected: InspectedText, path: Path) -> None:
    """Draw one text and write it as PNG.

    Raises:
        OSError: the file cannot be written.
    """
    installed = set(font_manager.get_font_names())
    fonts = [name for name in _FONTS if name in installed]
    with (
        rc_context({"font.family": fonts, "font.size": 9, "axes.linewidth": 0.6, "axes.edgecolor": _QUIET}),
        warnings.catch_warnings(),
    ):
        # A character that no installed font has is drawn as a box, and that is no news.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        figure = draw(inspector, inspected)
        figure.savefig(path, dpi=_DPI, facecolor="white", bbox_inches="tight", pad_inches=0.12)


def draw(inspector: Inspector, inspected: InspectedText) -> Figure:
    """Draw every variant's map of the inspector's layer and head on one scale of colours.

    Above each map stands the attention that each token receives: the mean of its column.
    """
    names = [_shortened(token) for token in inspected.text.tokens]
    views = [maps.view(inspector.layer, inspector.head) for maps in inspected.maps]
    norm = PowerNorm(_GAMMA, vmin=0, vmax=max(float(view.max()) for view in views))
    most_received = max(float(received(view).max()) for view in views)
    side = min(max(_CELL * len(names), _SMALLEST_MAP), _LARGEST_MAP)
    rows = math.ceil(len(views) / int(_WIDEST_ROW / side))
    columns = math.ceil(len(views) / rows)
    row_height = _TITLE + _BARS + side + _LETTER * max(map(len, names)) + 2 * _GAP
    sheet = _Sheet(columns * (side + _GAP) + _KEY, _HEADING + rows * row_height)
    sheet.figure.text(0, 1, _heading(inspector), va="top", fontsize=10, color=_QUIET, parse_math=False)
    for index, (variant, maps, view) in enumerate(
        zip(inspector.variants, inspected.maps, views, strict=True)
    ):
        row, column = divmod(index, columns)
        left, top = column * (side + _GAP), _HEADING + row * row_height + _TITLE
        bars = sheet.axes(left, top, side, _BARS)
        bars.set_title(_title(inspector, variant, maps), fontsize=9, parse_math=False)
        _draw_bars(bars, received(view), most_received, named=column == 0)
        _draw_map(sheet.axes(left, top + _BARS, side, side), view, norm, names, names_queries=column == 0)
    _draw_key(sheet, columns * (side + _GAP), _HEADING + _TITLE + _BARS, side, norm)
    return sheet.figure


class _Sheet:
    """A figure whose axes are placed in inches from its upper left corner."""

    def __init__(self, width: float, height: float) -> None:
        self.figure = Figure(figsize=(width, height))
        self._width, self._height = width, height

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        bottom = self._height - top - height
        return self.figure.add_axes(
            (left / self._width, bottom / self._height, width / self._width, height / self._height)
        )


def _draw_bars(bars: Axes, heights: Weights, most: float, *, named: bool) -> None:
    bars.bar(range(len(heights)), heights, width=0.7, color=_BAR_COLOR)
    bars.set_xlim(-0.5, len(heights) - 0.5)
    bars.set_ylim(0, most * 1.05)
    bars.set_axis_off()
    if named:
        bars.text(-0.9, most / 2, "received", color=_QUIET, fontsize=8, ha="right", va="center")


def _draw_map(
    axes: Axes, view: Weights, norm: PowerNorm, names: Sequence[str], *, names_queries: bool
) -> None:
    axes.imshow(np.where(view == 0, np.nan, view), norm=norm, cmap=_COLORS, interpolation="none")
    step = math.ceil(len(names) / _NAMED_TOKENS)
    ticks = range(0, len(names), step)
    shown = names[::step]
    axes.set_xticks(ticks, shown, rotation=90, fontsize=8, parse_math=False)
    axes.set_yticks(ticks, shown if names_queries else [""] * len(shown), fontsize=8, parse_math=False)
    axes.tick_params(length=0, pad=2)
    axes.set_xlabel("key", color=_QUIET)
    if names_queries:
        axes.set_ylabel("query", color=_QUIET)


def _draw_key(sheet: _Sheet, left: float, top: float, side: float, norm: PowerNorm) -> None:
    """Draw the scale of colours, and what white means, beside the first row of maps."""
    bar = sheet.axes(left, top, 0.13, side - 3 * _GAP)
    ticks = [tick for tick in _TICKS if tick <= (norm.vmax or 1)]
    scale = sheet.figure.colorbar(ScalarMappable(norm, _COLORS), cax=bar, ticks=ticks)
    scale.ax.set_yticklabels([f"{tick:g}" for tick in ticks], fontsize=8)
    scale.ax.tick_params(length=2, width=0.6)
    scale.set_label("attention weight", color=_QUIET)
    white = sheet.axes(left, top + side - 0.13, 0.13, 0.13)
    white.add_patch(Rectangle((0, 0), 1, 1, facecolor="white"))
    white.set_xticks([])
    white.set_yticks([])
    white.text(1.5, 0.5, "exactly 0", fontsize=8, va="center")


def _heading(inspector: Inspector) -> str:
    layer = f"layer {inspector.layer + 1} of {inspector.layers}"
    if inspector.head is None:
        return f"{layer}, mean of {inspector.heads} heads: white where all of them give exactly 0"
    return f"{layer}, head {inspector.head + 1} of {inspector.heads}"


def _title(inspector: Inspector, variant: Variant, maps: AttentionMaps) -> str:
    kept = maps.support[inspector.layer]
    keys = float(kept.mean() if inspector.head is None else kept[inspector.head])
    length = maps.weights.shape[-1]
    answer = maps.prediction
    score = answer.scores.get(answer.label)
    said = answer.label if score is None else f"{answer.label} {score:.2f}"
    return (
        f"{variant.name}{' (as trained)' if variant.as_trained else ''}\n"
        f"{1 - keys / length:.1%} zeros, {keys:.1f} of {length} keys\n{_shortened(said, 30)}"
    )


def _shortened(text: str, longest: int = _LONGEST_NAME) -> str:
    shown = "".join(character if character.isprintable() else "�" for character in text)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"
