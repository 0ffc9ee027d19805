"""The page: all weights in one file that loads nothing, whatever the texts are."""

import base64
import json
import shutil
import subprocess
import zlib
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from inspecting import make_checkpoint

from sparse_export.attention.spec import AttentionSpec
from sparse_export.inspection import page as module
from sparse_export.inspection.inspecting import InspectOptions, Inspector
from sparse_export.inspection.page import Page, quantize
from sparse_export.inspection.summary import ranges, summarize
from tiny_models import HEADS, LAYERS

HOSTILE = (
    "",
    "</script><script>alert(1)</script>",
    "<!-- {{ 7 * 7 }} {% raw %} ${8 * 8} \\ \" ' &lt;b&gt;",
    "שלום עולם \u202e",
    "雪が降る 🎬🍿 \u0000 \ufeff",
    "x" * 500,
)


@pytest.fixture(scope="module")
def inspector(checkpoint: Path) -> Inspector:
    return Inspector(InspectOptions(str(checkpoint), (0.0,), layer=1, head=2))


class Parsed(HTMLParser):
    """What a browser would load, the text that it shows, and the page's data."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.text: list[str] = []
        self.data: dict[str, Any] = {}
        self._inside: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "br"}:
            self._inside.append((tag, dict(attrs)))
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "data", "srcset")]

    def handle_endtag(self, tag: str) -> None:
        assert self._inside.pop()[0] == tag, "elements are closed in order"

    def handle_data(self, data: str) -> None:
        tag, attributes = self._inside[-1] if self._inside else ("", {})
        if attributes.get("type") == "application/json":
            self.data = json.loads(data)
        elif tag not in {"script", "style"}:
            self.text.append(data)


def html_of(inspector: Inspector, *texts: str) -> str:
    page = Page(inspector, len(texts))
    for text in texts:
        inspected = inspector.inspect(text)
        page.add(inspected, summarize(inspector.variants, inspected))
    return page.to_html()


def decode(encoded: str, tokens: int) -> npt.NDArray[np.uint16]:
    codes = np.frombuffer(zlib.decompress(base64.b64decode(encoded)), "<u2")
    return codes.reshape(-1, tokens, tokens)


def test_every_weight_is_in_the_page(inspector: Inspector) -> None:
    data = Parsed(html_of(inspector, "a film", "and another one")).data
    assert data["variants"] == ["softmax", "SSAF, λ = −1", "SSAF, λ = 0"]
    assert (data["layers"], data["layer"], data["head"]) == (LAYERS, 1, 2)
    for text, stored in zip(("a film", "and another one"), data["texts"], strict=True):
        inspected = inspector.inspect(text)
        assert stored["tokens"] == list(inspected.text.tokens)
        assert stored["heads"] == [-1, *range(HEADS)]
        for maps, layers in zip(inspected.maps, stored["maps"], strict=True):
            for layer, encoded in enumerate(layers):
                codes = decode(encoded, len(stored["tokens"]))
                expected = np.stack([maps.view(layer, None), *maps.weights[layer]])
                np.testing.assert_allclose(codes / data["unit"], expected, atol=1 / data["unit"])
                assert ((codes == 0) == (expected == 0)).all()


def test_only_exact_zeros_are_stored_as_zero() -> None:
    weights = np.array([0, 1e-38, 1e-6, 0.5, 1], np.float32)
    assert quantize(weights).tolist() == [0, 1, 1, 32768, 65535]


def test_heads_that_outgrow_the_page_are_left_out(
    inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WEIGHTS", 2000)
    parsed = Parsed(html_of(inspector, "a", "a very long film"))
    short, long = parsed.data["texts"]
    # The head that was asked for stays.
    assert (short["heads"], long["heads"]) == ([-1, *range(HEADS)], [-1, 2])
    codes = decode(long["maps"][1][0], len(long["tokens"]))
    maps = inspector.inspect("a very long film").maps[1]
    np.testing.assert_allclose(codes[1] / parsed.data["unit"], maps.weights[0, 2], atol=1e-4)
    note = "Single heads of long texts are left out of this page"
    assert note in " ".join(parsed.text)
    assert note not in html_of(inspector, "a", "b")


def test_the_page_loads_nothing_and_shows_hostile_texts_as_they_are(inspector: Inspector) -> None:
    html = html_of(inspector, *HOSTILE)
    parsed = Parsed(html)
    assert parsed.loads == []
    assert "<script>alert" not in html
    shown = " ".join(parsed.text)
    for text in HOSTILE:
        assert text.replace("\u0000", "") in shown.replace("\ufffd", "").replace("\u0000", "")


def test_the_page_says_what_the_numbers_are(inspector: Inspector) -> None:
    shown = " ".join(" ".join(Parsed(html_of(inspector, "a warm film")).text).split())
    summary = summarize(inspector.variants, inspector.inspect("a warm film"))
    for variant in summary.variants:
        assert f"{variant.label} {variant.scores[variant.label]:.4f}" in shown
        for rho, support in zip(variant.rho, variant.support, strict=True):
            assert f"{100 * rho:.1f} % · {support:.1f}" in shown


def test_tokens_of_weight_zero_are_marked(inspector: Inspector) -> None:
    html = html_of(inspector, "a warm film")
    summary = summarize(inspector.variants, inspector.inspect("a warm film"))
    zeros = sum(
        weight == 0 for variant in summary.variants for weight in variant.read_by_head + variant.received
    )
    assert html.count('title="0 (exactly)" class="zero"') == zeros > 0


@pytest.fixture(scope="module")
def patterned(tmp_path_factory: pytest.TempPathFactory) -> Inspector:
    """AAA beside learned diagonals and full attention."""
    folder = tmp_path_factory.mktemp("page")
    names = ("axis", "layer-diagonal+global1", "softmax")
    first, *others = (make_checkpoint(folder / name, AttentionSpec.parse(name, None)) for name in names)
    return Inspector(InspectOptions(first, (), tuple(others)))


def test_pairs_that_are_allowed_are_in_the_page(patterned: Inspector) -> None:
    inspected = patterned.inspect("a warm film")
    (stored,) = Parsed(html_of(patterned, "a warm film")).data["texts"]
    assert stored["on"][2] is None
    for maps, layers, on in zip(inspected.maps, stored["maps"], stored["on"], strict=True):
        for layer, encoded in enumerate(layers):
            codes = decode(encoded, len(stored["tokens"]))
            assert ((codes[1 : 1 + HEADS] == 0) == (maps.weights[layer] == 0)).all()
            if maps.allowed is None:
                assert len(codes) == 1 + HEADS
                continue
            assert len(codes) == 1 + HEADS + 1
            assert (codes[-1] == maps.allowed.pairs[layer]).all()
            assert on[layer]["rows"] == maps.allowed.rows[layer].nonzero()[0].tolist()
            assert on[layer]["columns"] == maps.allowed.columns[layer].nonzero()[0].tolist()


def test_the_page_says_what_was_learned(patterned: Inspector, inspector: Inspector) -> None:
    shown = " ".join(" ".join(Parsed(html_of(patterned, "a warm film")).text).split())
    learned, diagonal, _ = summarize(patterned.variants, patterned.inspect("a warm film")).variants
    assert learned.pattern is not None
    assert diagonal.pattern is not None
    for pattern in (learned.pattern, diagonal.pattern):
        assert pattern.rho_without_band is not None
        for rho, without in zip(pattern.rho, pattern.rho_without_band, strict=True):
            assert f"{100 * rho:.1f} % {100 * without:.1f} %" in shown
    for tokens, share in zip(learned.pattern.rows, learned.pattern.rows_on, strict=True):
        names = " ".join(each.token for each in tokens)
        assert f"{len(tokens)} ({100 * share:.1f} %) {names}" in shown
    for offsets in diagonal.pattern.diagonals:
        assert ranges(offsets) in shown
    assert "Grey was never allowed" in shown
    plain = " ".join(Parsed(html_of(inspector, "a warm film")).text)
    assert "never allowed" not in plain
    assert "What was learned" not in plain


def test_the_script_is_well_formed() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node to parse JavaScript with")
    script = files("sparse_export") / "inspection" / "templates" / "inspection.js"
    subprocess.run([node, "--check", str(script)], check=True)
