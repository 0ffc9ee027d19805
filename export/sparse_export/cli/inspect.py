"""`sparse-serve inspect`: a checkpoint and texts in, attention maps out."""

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from sparse_export.cli.options import Json, ending_cleanly, load_model_side
from sparse_serve.cli.options import Verbose, make_output_folder
from sparse_serve.cli.texts import (
    Text,
    TextPairs,
    Texts,
    iter_texts,
    plain,
)
from sparse_serve.errors import DataError, OptionError
from sparse_serve.rows import TEXT_PAIR
from sparse_serve.tasks import Classification

if TYPE_CHECKING:
    from sparse_export.inspection.summary import PatternSummary, TextSummary, TokenAt, VariantSummary

_MOST_TEXTS = 16
_SHOWN_CHARACTERS = 70
_SHOWN_TOKENS = 12
_LISTS = ("rows on", "columns on", "diagonals")
_WIDEST = 1000


def inspect_command(  # noqa: PLR0913  one parameter per option
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT", help="Fine-tuned model: a folder, or a hub id.", show_default=False
        ),
    ],
    texts: Texts = None,
    *,
    file: Annotated[Path | None, typer.Option(help="TSV, CSV or JSONL file of texts.")] = None,
    text_column: Annotated[
        str, typer.Option(help="The file's column of texts.")
    ] = Classification.rows.columns.text,
    text_pair_column: Annotated[
        str | None,
        typer.Option(
            help="The file's column of second texts.", show_default=f"{TEXT_PAIR}, where there is one"
        ),
    ] = None,
    text_pair: TextPairs = None,
    output_dir: Annotated[
        Path, typer.Option(help="Where inspection.png and inspection.html are written.")
    ] = Path("inspection"),
    lambdas: Annotated[
        str | None,
        typer.Option(
            "--lambda",
            envvar="SPARSE_SERVE_LAMBDA",
            metavar="λ,...",
            help="Show SSAF with these λ, and softmax, beside the checkpoint's own attention, over the keys "
            "that its pattern allows if it has one.",
            show_default="-7,-4,0; full attention beside a pattern; none with --beside",
        ),
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(help="Another checkpoint to show, as it was trained; may be repeated."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of a checkpoint of several tasks this one's answer, and its own attention.",
            show_default="its only one",
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(min=1, help="Layer of the picture.", show_default="the one at two thirds of the depth"),
    ] = None,
    head: Annotated[
        int | None, typer.Option(min=1, help="Head of the picture.", show_default="the mean over heads")
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Tokens at which texts are cut.", show_default="the encoder's positions, at most 512"
        ),
    ] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show what a model attends to in texts: softmax beside sparse attention.

    Writes attention maps as pictures and as one self-contained page with every layer and head, and prints ρ,
    the share of weights that are exactly zero, and the keys that a query reads, per layer; of a learned
    pattern also the tokens whose rows and columns are on.
    """
    with ending_cleanly():
        chosen = _few(iter_texts(texts, text_pair, file, text_column, text_pair_column))
        numbers = None if lambdas is None else _numbers(lambdas)
        make_output_folder(output_dir)
        load_model_side(verbose=verbose)
        from sparse_export.inspection.files import write_inspection  # noqa: PLC0415
        from sparse_export.inspection.inspecting import InspectOptions, Inspector  # noqa: PLC0415

        with Console(stderr=True).status("loading the checkpoint") as status:
            inspector = Inspector(
                InspectOptions(
                    checkpoint=checkpoint,
                    lambdas=numbers,
                    beside=tuple(beside or ()),
                    layer=None if layer is None else layer - 1,
                    head=None if head is None else head - 1,
                    max_length=max_length,
                    task=task,
                )
            )
            summaries, paths = write_inspection(inspector, chosen, output_dir, status.update)
    for path in paths:
        print(f"wrote {path}", file=sys.stderr)
    if as_json:
        print(json.dumps([summary.to_json() for summary in summaries], indent=2, ensure_ascii=False))
        return
    for summary in summaries:
        _print(summary)


def _few(source: Iterator[Text]) -> list[tuple[str, str]]:
    texts = [(text.text, text.pair or "") for text in islice(source, _MOST_TEXTS + 1)]
    if not texts:
        raise DataError("there is no text to inspect: give one as an argument, on stdin or with --file")
    if len(texts) > _MOST_TEXTS:
        raise DataError(
            f"more than {_MOST_TEXTS} texts were given; a page shows up to {_MOST_TEXTS}: give fewer"
        )
    return texts


def _numbers(lambdas: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in lambdas.split(",") if part.strip())
    except ValueError:
        raise OptionError(f"--lambda '{lambdas}' is no list of numbers; give for example -7,-4,0") from None


def _print(summary: "TextSummary") -> None:
    """Print answers, and per layer ρ and the keys that a query reads."""
    text = f"{summary.text} | {summary.text_pair}" if summary.text_pair else summary.text
    shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
    cut = ", cut" if summary.truncated else ""
    title = f"{shown} ({len(summary.tokens)} tokens{cut})"
    table = _table()
    for variant in summary.variants:
        name = plain(variant.name).append("\n(as trained)" if variant.as_trained else "")
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row("", *(plain(_answer(variant)) for variant in summary.variants))
    for layer in range(len(summary.variants[0].rho)):
        cells = (f"{variant.rho[layer]:.1%} {variant.support[layer]:6.1f}" for variant in summary.variants)
        table.add_row(f"{layer + 1}", *cells)
    # Numbers are never cut, also where the terminal is narrower than the table.
    console = Console(width=_WIDEST)
    console.print(plain(title))
    console.print(table)
    for variant in summary.variants:
        if variant.pattern is not None and variant.pattern.rho_without_band is not None:
            console.print()
            console.print(plain(f"Learned by {variant.name}"))
            console.print(_learned_table(variant, variant.pattern, variant.pattern.rho_without_band))


def _learned_table(
    variant: "VariantSummary", allowed: "PatternSummary", rho_without_band: list[float]
) -> Table:
    from sparse_export.inspection.summary import ranges  # noqa: PLC0415

    pattern = variant.attention.pattern
    columns = {
        "not allowed": [f"{rho:.1%}" for rho in allowed.rho],
        "without the band": [f"{rho:.1%}" for rho in rho_without_band],
    }
    if pattern is not None and pattern.axis:
        columns["rows on"] = [_on(tokens) for tokens in allowed.rows]
        columns["columns on"] = [_on(tokens) for tokens in allowed.columns]
    if pattern is not None and pattern.diagonal:
        columns["diagonals"] = [ranges(offsets) for offsets in allowed.diagonals]
    table = _table()
    for name in columns:
        table.add_column(name, justify="left" if name in _LISTS else "right", no_wrap=True)
    for layer, cells in enumerate(zip(*columns.values(), strict=True), start=1):
        table.add_row(f"{layer}", *map(plain, cells))
    return table


def _table() -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("layer", justify="right", no_wrap=True)
    return table


def _on(tokens: Sequence["TokenAt"]) -> str:
    shown = [each.token for each in tokens[:_SHOWN_TOKENS]]
    more = "…" if len(tokens) > _SHOWN_TOKENS else ""
    return " ".join((f"{len(tokens)}:", *shown)) + more if tokens else "0"


def _answer(variant: "VariantSummary") -> str:
    score = variant.scores.get(variant.label)
    return variant.label if score is None else f"{variant.label} {score:.4f}"
