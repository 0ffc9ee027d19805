"""The README's pictures: a report's memory and latency by length, each as an SVG file of its own.

    python benchmarks/serving/pictures.py benchmarks/serving/reports/reviews

Draws what the report's page has, with the colours that a page would give it, light and dark.
"""

from pathlib import Path
from typing import Annotated

import typer

from sparse_serve.report.concluded import Quantity
from sparse_serve.report.document import read_report
from sparse_serve.report.figures import length_figure

DOCS = Path(__file__).parents[2] / "docs"
PICTURES: dict[str, Quantity] = {"memory.svg": "memory_bytes", "latency.svg": "latency_ms"}
LIGHT = "--ink: #222; --grid: #ddd; --paper: #fff; --muted: #9aa0a6"
DARK = "--ink: #e6e6e6; --grid: #3a3e45; --paper: #0d1117; --muted: #71767e"
STYLE = f"<style>svg {{ {LIGHT} }} @media (prefers-color-scheme: dark) {{ svg {{ {DARK} }} }}</style>"


def draw(
    report: Annotated[Path, typer.Argument(help="Folder with a report.json.")],
    output_dir: Annotated[Path, typer.Option(help="Folder for the pictures.")] = DOCS,
) -> None:
    found = read_report(report / "report.json")
    for name, quantity in PICTURES.items():
        figure = length_figure(found, quantity)
        if figure is None:
            raise SystemExit(f"{report}: no {quantity} was measured, so there is nothing to draw")
        begin = figure.index(">") + 1
        text = f"{figure[:begin]}{STYLE}{figure[begin:]}".rstrip()
        (output_dir / name).write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(draw)
