"""`inspection.html`: every map of every text in one self-contained page."""

import base64
import math
import zlib
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import Environment
from markupsafe import Markup
from plotly.colors import sample_colorscale
from plotly.offline import get_plotlyjs

from sparse_export.inspection.allowed import AllowedPairs
from sparse_export.inspection.inspecting import InspectedText, Inspector
from sparse_export.inspection.maps import AttentionMaps, Weights
from sparse_export.inspection.summary import TextSummary, ranges
from sparse_serve import __version__

# The same colours as the picture's; zeros are left white.
_COLORS = sample_colorscale("Viridis_r", 64)
# Weights above zero that a page may hold, about two bytes each: above that a browser takes long to open it.
_WEIGHTS = 8_000_000
_UNIT = 65535
_MEAN = -1


class Page:
    """A page in the making: texts are added one by one, so that only one text's maps are in memory."""

    def __init__(self, inspector: Inspector, number_of_texts: int) -> None:
        self._inspector = inspector
        self._share = _WEIGHTS // number_of_texts
        self._summaries: list[TextSummary] = []
        self._maps: list[dict[str, Any]] = []

    def add(self, inspected: InspectedText, summary: TextSummary) -> None:
        """Add a text; its single heads are left out where they would outgrow the text's share of the page."""
        weights = sum(np.count_nonzero(maps.weights) for maps in inspected.maps)
        heads = [_MEAN, *range(self._inspector.heads)]
        if weights > self._share:
            heads = [_MEAN] if self._inspector.head is None else [_MEAN, self._inspector.head]
        self._summaries.append(summary)
        self._maps.append(
            {
                "tokens": summary.tokens,
                "heads": heads,
                "support": [variant.support for variant in summary.variants],
                "maps": [list(_encoded_layers(maps, heads)) for maps in inspected.maps],
                "on": [None if maps.allowed is None else _on(maps.allowed) for maps in inspected.maps],
            }
        )

    def to_html(self) -> str:
        """Return the page, which needs nothing else, the network included."""
        inspector = self._inspector
        templates = files("sparse_export") / "inspection" / "templates"
        environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        environment.globals |= {"zip": zip, "shade": _shade, "number": _number, "ranges": ranges}
        data = {
            "layers": inspector.layers,
            "layer": inspector.layer,
            "head": _MEAN if inspector.head is None else inspector.head,
            "variants": [variant.name for variant in inspector.variants],
            "unit": _UNIT,
            "colors": _COLORS,
            "texts": self._maps,
        }
        return environment.from_string((templates / "inspection.html.j2").read_text(encoding="utf-8")).render(
            inspector=inspector,
            variants=inspector.variants,
            summaries=self._summaries,
            has_heads=[len(maps["heads"]) > inspector.heads for maps in self._maps],
            data=data,
            version=__version__,
            style=Markup((files("sparse_serve") / "page.css").read_text(encoding="utf-8")),
            plotly=Markup(get_plotlyjs()),
            script=Markup((templates / "inspection.js").read_text(encoding="utf-8")),
        )


def _encoded_layers(maps: AttentionMaps, heads: list[int]) -> Iterator[str]:
    """Yield per layer the maps of `heads`, `(len(heads), L, L)`: uint16, zlib, base64.

    Where there is a pattern, its pairs stand behind them, `(1, L, L)`: 1 where allowed.
    """
    for layer in range(len(maps.weights)):
        codes = quantize(np.stack([maps.view(layer, None if head == _MEAN else head) for head in heads]))
        if maps.allowed is not None:
            codes = np.concatenate([codes, maps.allowed.pairs[layer, None].astype(codes.dtype)])
        yield base64.b64encode(zlib.compress(codes.tobytes())).decode("ascii")


def _on(allowed: AllowedPairs) -> list[dict[str, list[int]]]:
    """Return per layer the places of the tokens whose row is on, and whose column is."""
    return [
        {"rows": rows.nonzero()[0].tolist(), "columns": columns.nonzero()[0].tolist()}
        for rows, columns in zip(allowed.rows, allowed.columns, strict=True)
    ]


def _shade(weight: float, weights: Sequence[float]) -> float:
    """How dark a token is drawn, on the square root's scale as the maps are; black stays legible on it."""
    return round(0.65 * math.sqrt(weight / max(weights)), 3)


def _number(weight: float) -> str:
    if weight == 0:
        return "0 (exactly)"
    return f"{weight:.4f}" if weight >= 0.00005 else "< 0.0001"


def quantize(weights: Weights) -> npt.NDArray[np.uint16]:
    """Round weights to steps of 1/65535, keeping 0 for those that are exactly zero."""
    steps = np.rint(weights * _UNIT)
    codes: npt.NDArray[np.uint16] = np.where(weights > 0, np.maximum(steps, 1), 0).astype("<u2")
    return codes
