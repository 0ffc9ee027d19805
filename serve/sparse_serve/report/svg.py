"""Figures as inline SVG that takes its colours from the page and tells what a point is.

Drawn by matplotlib, whose SVG needs no script, prints as it is and weighs some kilobytes. Colours that stand
for a role (`INK`, `GRID`, `PAPER`, `MUTED`) become the page's CSS variables, so that one drawing serves light
and dark.
"""

import io
import re
from collections.abc import Callable
from html import escape
from itertools import count

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, GRID, PAPER, MUTED = "#0a0b0c", "#0d0e0f", "#fafbfc", "#9a9b9c"
_ROLES = {INK: "ink", GRID: "grid", PAPER: "paper", MUTED: "muted"}
# In inches; a phone shows two thirds of it.
_WIDTH, _HEIGHT = 5.4, 3.5
_MARGIN, _CHARACTER, _X_LABEL, _LEGEND_ROW = 0.15, 0.085, 0.5, 0.2

_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "figure.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "hatch.color": PAPER,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.minor.bottom": False,
    "ytick.minor.left": False,
}
_IDS = re.compile(r' id="(?!tip-|m[0-9a-f]{6,}|p[0-9a-f]{6,}|h[0-9a-f]{6,}|C[0-9a-f])[^"]*"')
_TIP = re.compile(r'<g id="tip-(\d+)">')
_NUMBER = re.compile(r"(?<=[\d ML])(-?\d+\.\d{2})\d+")


class Drawing:
    """A figure in the making: its axes, and what to say where a point or bar is pointed at."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure
        self.axes: Axes = figure.add_subplot()
        self._tips: list[str] = []
        self._legend_rows = 0

    def tip(self, artist: Artist, text: str) -> None:
        """Say a text where this artist is pointed at."""
        artist.set_gid(f"tip-{len(self._tips)}")
        self._tips.append(text)

    def legend(self, columns: int = 2) -> None:
        """Put the legend of what has a label below the axes."""
        handles, labels = self.axes.get_legend_handles_labels()
        if handles:
            unique = dict(zip(labels, handles, strict=True))
            self.figure.legend(unique.values(), unique.keys(), loc="lower center", ncols=columns)
            self._legend_rows = -(-len(unique) // columns)

    def arrange(self) -> None:
        """Leave room for the labels of both axes and the legend: faster than having matplotlib find it."""
        width, height = self.figure.get_size_inches()
        longest = max((len(label.get_text()) for label in self.axes.get_yticklabels()), default=0)
        has_name = bool(self.axes.get_ylabel())
        bottom = _X_LABEL + _LEGEND_ROW * self._legend_rows
        self.figure.subplots_adjust(
            left=(_MARGIN + _CHARACTER * max(longest, 3) + 0.2 * has_name) / width,
            right=1 - _MARGIN / width,
            bottom=bottom / height,
            top=1 - (0.3 if self.axes.get_title() else _MARGIN) / height,
        )

    def told(self, number: int) -> str:
        """Return the text of one of the artists."""
        return self._tips[number]


_numbers = count(1)


def draw(paint: Callable[[Drawing], None], title: str, *, height: float = _HEIGHT) -> Markup:
    """Return what `paint` draws as an `<svg>` for a page, called `title` where it cannot be seen."""
    stream = io.StringIO()
    with rc_context({**_STYLE, "svg.hashsalt": f"{title} {next(_numbers)}"}):
        drawing = Drawing(Figure(figsize=(_WIDTH, height)))
        paint(drawing)
        drawing.arrange()
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        drawing.figure.savefig(stream, format="svg", metadata=metadata, transparent=True)
    return _for_page(stream.getvalue(), drawing, title)


def _for_page(source: str, drawing: Drawing, title: str) -> Markup:
    svg = source[source.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<style type="text/css">.*?</style>', "", svg, flags=re.DOTALL)
    svg = _IDS.sub("", svg)
    svg = _NUMBER.sub(r"\1", svg)
    for color, role in _ROLES.items():
        svg = svg.replace(color, f"var(--{role})")
    svg = svg.replace("'DejaVu Sans'", "system-ui, sans-serif")

    def tipped(match: re.Match[str]) -> str:
        text = escape(drawing.told(int(match[1])))
        return f'<g class="tip" role="img" tabindex="0" aria-label="{text}"><title>{text}</title>'

    svg = _TIP.sub(tipped, svg)
    start = svg.index(">")
    view = re.search(r'viewBox="[^"]*"', svg[:start])
    head = f'<svg class="plot" role="group" aria-label="{escape(title)}" {view[0] if view else ""} '
    return Markup(
        head
        + 'xmlns:xlink="http://www.w3.org/1999/xlink" xmlns="http://www.w3.org/2000/svg">'
        + svg[start + 1 :]
    )
