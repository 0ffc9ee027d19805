"""A picture of attention maps: one layer of one text, variant beside variant (SSAF, Figures 1 and 3)."""

import math
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, font_manager, rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from sparse_export.inspection.allowed import AllowedPairs, Flags
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
# Rows and columns that are on; pairs that were never allowed.
_ON_COLOR = "#d55e00"
_ZERO: dict[str, Any] = {"facecolor": "white"}
_NEVER: dict[str, Any] = {"facecolor": "#e8e8e8", "edgecolor": "#c4c4c4", "hatch": "//////", "linewidth": 0}
_MARK: dict[str, Any] = {"color": _ON_COLOR, "markersize": 3.5, "clip_on": False}
# DejaVu comes with matplotlib; the others fill in scripts that it lacks, where they are installed.
_FONTS = (
    "DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "WenQuanYi Micro Hei", "Noto Sans Devanagari",
    "Noto Sans Thai", "Noto Emoji", "Symbola",
)  # fmt: skip

# Lengths in inches.
_CELL, _SMALLEST_MAP, _LARGEST_MAP = 0.18, 2.3, 9.0
_WIDEST_ROW = 20.0
_BARS, _TITLE, _HEADING, _GAP, _KEY = 0.42, 0.55, 0.2, 0.15, 0.9
_LETTER, _LINE = 0.075, 0.16


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

    Above each map stands the attention that each token receives: the mean of its column. Where there is a
    pattern, pairs that it does not allow are hatched, and tokens whose row or column is on are marked.
    """
    names = [_shortened(token) for token in inspected.text.tokens]
    has_pattern = any(maps.allowed for maps in inspected.maps)
    views = [maps.view(inspector.layer, inspector.head) for maps in inspected.maps]
    # A text may have no weight at all: a pattern need not allow anything.
    norm = PowerNorm(_GAMMA, vmin=0, vmax=max(float(view.max()) for view in views) or 1)
    most_received = max(float(received(view).max()) for view in views) or 1
    side = min(max(_CELL * len(names), _SMALLEST_MAP), _LARGEST_MAP)
    rows = math.ceil(len(views) / int(_WIDEST_ROW / side))
    columns = math.ceil(len(views) / rows)
    longest_name = _LETTER * max(map(len, names))
    title, gap = _TITLE, _GAP
    if has_pattern:
        # What is on is written in the titles, and marked on the queries of every map.
        title, gap = title + _LINE, gap + longest_name + 2 * _GAP
    row_height = title + _BARS + side + longest_name + 2 * _GAP
    sheet = _Sheet(columns * (side + gap) + _KEY, _HEADING + rows * row_height)
    sheet.figure.text(0, 1, _heading(inspector), va="top", fontsize=10, color=_QUIET, parse_math=False)
    for index, (variant, maps, view) in enumerate(
        zip(inspector.variants, inspected.maps, views, strict=True)
    ):
        row, column = divmod(index, columns)
        left, top = column * (side + gap), _HEADING + row * row_height + title
        bars = sheet.axes(left, top, side, _BARS)
        bars.set_title(_title(inspector, variant, maps), fontsize=9, parse_math=False)
        _draw_bars(bars, received(view), most_received, named=column == 0)
        axes = sheet.axes(left, top + _BARS, side, side)
        allowed = None if maps.allowed is None else maps.allowed.pairs[inspector.layer]
        _draw_map(axes, view, allowed, norm)
        _name_tokens(axes, names, maps.allowed, inspector.layer, names_queries=has_pattern or column == 0)
    left = columns * (side + gap) - gap + _GAP
    _draw_key(sheet, left, _HEADING + title + _BARS, side, norm, has_pattern=has_pattern)
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


def _draw_map(axes: Axes, view: Weights, allowed: Flags | None, norm: PowerNorm) -> None:
    opacity = None if allowed is None else allowed.astype(np.float32)
    if allowed is not None:
        axes.add_patch(Rectangle((0, 0), 1, 1, transform=axes.transAxes, zorder=-1, **_NEVER))
    colors = np.where(view == 0, np.nan, view)
    axes.imshow(colors, norm=norm, cmap=_COLORS, alpha=opacity, interpolation="none")


def _name_tokens(
    axes: Axes, names: Sequence[str], allowed: AllowedPairs | None, layer: int, *, names_queries: bool
) -> None:
    """Name the keys below a map and the queries beside it, and mark those whose column or row is on."""
    nothing = np.zeros(len(names), np.bool_)
    rows, columns = (nothing, nothing) if allowed is None else (allowed.rows[layer], allowed.columns[layer])
    places = _named_places(columns)
    axes.set_xticks(places, [names[place] for place in places], rotation=90, fontsize=8, parse_math=False)
    _mark(axes.get_xticklabels(), places, columns)
    axes.plot(columns.nonzero()[0], [0] * columns.sum(), "^", transform=axes.get_xaxis_transform(), **_MARK)
    places = _named_places(rows)
    shown = [names[place] if names_queries else "" for place in places]
    axes.set_yticks(places, shown, fontsize=8, parse_math=False)
    _mark(axes.get_yticklabels(), places, rows)
    axes.plot([0] * rows.sum(), rows.nonzero()[0], ">", transform=axes.get_yaxis_transform(), **_MARK)
    axes.tick_params(length=0, pad=2 if allowed is None else 5)
    axes.set_xlabel("key", color=_QUIET)
    if names_queries:
        axes.set_ylabel("query", color=_QUIET)


def _named_places(on: Flags) -> list[int]:
    """Choose the tokens that are named: as many as there is room for, those that are on before others."""
    step = math.ceil(len(on) / _NAMED_TOKENS)
    named: list[int] = []
    for place in (*on.nonzero()[0].tolist(), *range(0, len(on), step)):
        if all(abs(place - other) >= step for other in named):
            named.append(place)
    return sorted(named)


def _mark(labels: Iterable[Text], places: Sequence[int], on: Flags) -> None:
    for label, place in zip(labels, places, strict=True):
        if on[place]:
            label.set_color(_ON_COLOR)


def _draw_key(
    sheet: _Sheet, left: float, top: float, side: float, norm: PowerNorm, *, has_pattern: bool
) -> None:
    """Draw the scale of colours, and what is not on it, beside the first row of maps."""
    entries = [("exactly 0", _ZERO), ("never allowed", _NEVER), ("row or column on", None)]
    entries = entries if has_pattern else entries[:1]
    bar = sheet.axes(left, top, 0.13, side - (1 + 2 * len(entries)) * _GAP)
    ticks = [tick for tick in _TICKS if tick <= (norm.vmax or 1)]
    scale = sheet.figure.colorbar(ScalarMappable(norm, _COLORS), cax=bar, ticks=ticks)
    scale.ax.set_yticklabels([f"{tick:g}" for tick in ticks], fontsize=8)
    scale.ax.tick_params(length=2, width=0.6)
    scale.set_label("attention weight", color=_QUIET)
    for index, (name, style) in enumerate(reversed(entries)):
        sample = sheet.axes(left, top + side - 0.13 - 2 * _GAP * index, 0.13, 0.13)
        sample.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(0, 1))
        sample.text(1.5, 0.5, name, fontsize=8, va="center")
        if style is None:
            sample.set_axis_off()
            sample.plot(0.5, 0.5, ">", **_MARK)
        else:
            sample.add_patch(Rectangle((0, 0), 1, 1, **style))


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
    lines = [
        f"{variant.name}{' (as trained)' if variant.as_trained else ''}",
        f"{1 - keys / length:.1%} zeros, {keys:.1f} of {length} keys",
        _shortened(said, 30),
    ]
    if maps.allowed is not None:
        rows, columns = (on[inspector.layer].sum() for on in (maps.allowed.rows, maps.allowed.columns))
        lines.insert(2, f"on: rows {rows}, columns {columns}")
    return "\n".join(lines)


def _shortened(text: str, longest: int = _LONGEST_NAME) -> str:
    shown = "".join(character if character.isprintable() else "�" for character in text)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"
