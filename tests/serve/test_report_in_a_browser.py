"""The report's page in a browser: no error, no request, tables that sort, points that speak, any width."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sample_report import full_report, measurement, report_of

from sparse_serve.report.page import to_html

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")

# Before the page: what goes wrong. After it: what a reader does, and what is seen then.
WATCH = (
    "<script>window.errors = []; addEventListener('error', (event) => errors.push(event.message));</script>"
)
LOOK = """<script>
const table = document.querySelector("#measurements");
const column = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent === "p50 ms");
const values = () => [...table.tBodies[0].rows].map((row) => parseFloat(row.cells[column].textContent));
const head = table.tHead.rows[0].cells[column];
const button = head.querySelector("button");
const before = values();
button.click();
const up = values();
button.click();
const down = values();
const point = document.querySelector(".tip");
point.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
const said = document.getElementById("tip").textContent;
const described = point.getAttribute("aria-describedby");
point.dispatchEvent(new MouseEvent("mouseout", { bubbles: true }));
top.document.title = JSON.stringify({
  errors, before, up, down, said, described, tip: point.getAttribute("aria-label"),
  sorted: head.getAttribute("aria-sort"), role: head.getAttribute("role"), scope: head.scope,
  focusable: [button.tabIndex, point.tabIndex], hidden: document.getElementById("tip").hidden,
  nameless: document.querySelectorAll("svg [tabindex]:not([aria-label])").length,
  plots: [...document.querySelectorAll("svg.plot")].map((svg) => svg.getBoundingClientRect().width),
  requests: performance.getEntriesByType("resource").length,
  width: document.documentElement.scrollWidth, window: innerWidth,
  alerts: document.querySelectorAll("b.injected").length,
  dark: getComputedStyle(document.body).backgroundColor,
});
</script>"""


def seen(page: str, folder: Path, *arguments: str, width: int | None = None) -> dict[str, Any]:
    """Return what a reader sees; with `width` on a screen of so many pixels, less than a window may have."""
    path = folder / "page.html"
    page = page.replace("<style>", f"{WATCH}<style>", 1).replace("</body>", f"{LOOK}</body>")
    if width is not None:
        page = f'<iframe width="{width}" height="844" srcdoc="{html.escape(page)}"></iframe>'
    path.write_text(page)
    done = subprocess.run(
        [
            *(str(BROWSER), "--headless", "--no-sandbox", f"--user-data-dir={folder / 'user'}"),
            *("--host-resolver-rules=MAP * ~NOTFOUND", "--dump-dom", *arguments, path.as_uri()),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title is not None
    result: dict[str, Any] = json.loads(html.unescape(title[1]))
    return result


def test_a_reader_sorts_points_and_reads_on_a_phone(tmp_path: Path) -> None:
    page = seen(to_html(full_report()), tmp_path, width=390)
    assert (page["errors"], page["requests"]) == ([], 0)
    assert page["up"] == sorted(page["before"])
    assert page["down"] == page["up"][::-1]
    assert page["up"] != page["before"]
    assert page["said"] == page["tip"] != ""
    assert (page["described"], page["hidden"]) == ("tip", True)
    # A head stays one, and is sorted; what has the focus has a name.
    assert (page["role"], page["scope"], page["sorted"]) == (None, "col", "descending")
    assert (page["focusable"], page["nameless"]) == ([0, 0], 0)
    assert len(page["plots"]) == 9
    assert min(page["plots"]) > 300
    # Tables scroll in themselves; the page does not.
    assert page["width"] <= page["window"] == 390


def test_what_a_client_names_is_text_and_dark_is_dark(tmp_path: Path) -> None:
    name = '</script><b class="injected">\'"'
    report = report_of([measurement(model=name), measurement("packed_dense", model=name, p50=12)])
    page = seen(to_html(report), tmp_path, "--blink-settings=preferredColorScheme=0")
    assert (page["errors"], page["alerts"], page["requests"]) == ([], 0, 0)
    assert page["dark"] == "rgb(21, 23, 27)"
