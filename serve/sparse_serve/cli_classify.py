"""The command `classify`: texts from arguments, a file or stdin; labels and scores on stdout."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import groupby, islice
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn
from rich.table import Table

from sparse_serve.cli_options import Verbose, table_console
from sparse_serve.cli_texts import (
    Text,
    TextColumn,
    TextFile,
    TextPairColumn,
    TextPairs,
    Texts,
    iter_texts,
    plain,
)
from sparse_serve.client import Classifier, Prediction

_SHOWN_CHARACTERS = 60
_DEFAULT_URLS = {"http": "127.0.0.1:8000", "grpc": "127.0.0.1:8001"}


class Interface(StrEnum):
    """The protocols of Triton."""

    http = "http"
    grpc = "grpc"


class Format(StrEnum):
    """Output formats."""

    table = "table"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"


def classify(  # noqa: PLR0913  one parameter per option
    name: Annotated[str, typer.Argument(metavar="NAME", help="The model: an entry's name.")],
    texts: Texts = None,
    *,
    file: TextFile = None,
    text_column: TextColumn = "text_a",
    text_pair_column: TextPairColumn = None,
    text_pair: TextPairs = None,
    interface: Annotated[Interface, typer.Option("-i", "--interface", help="Protocol.")] = Interface.http,
    url: Annotated[
        str | None,
        typer.Option("-u", "--url", help="host:port of the server.", show_default="the local default port"),
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="Also give the best K classes.")] = None,
    output_format: Annotated[
        Format, typer.Option("--format", envvar="SPARSE_SERVE_FORMAT", help="Output format.")
    ] = Format.table,
    verbose: Verbose = False,
) -> None:
    """Classify texts with a served model."""
    source = iter_texts(texts, text_pair, file, text_column, text_pair_column)
    with Classifier(url or _DEFAULT_URLS[interface], interface.value) as classifier:
        _WRITERS[output_format](_predict(classifier, name, source, top_k), top_k or 0)


Answer = tuple[Text, Prediction]


def _predict(
    classifier: Classifier, name: str, source: Iterator[Text], top_k: int | None
) -> Iterator[Answer]:
    """Yield answers in the order of the texts, holding one batch at a time."""
    columns = (SpinnerColumn(), MofNCompleteColumn(), "texts", TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=None)
        # A request either has second texts or has none.
        for has_pair, group in groupby(source, key=lambda text: text.pair is not None):
            while batch := list(islice(group, classifier.batch_size(name))):
                pairs = [text.pair or "" for text in batch] if has_pair else None
                predictions = classifier.classify(name, [text.text for text in batch], pairs, top_k)
                progress.advance(task, len(batch))
                yield from zip(batch, predictions, strict=True)


def _as_object(answer: Answer, top_k: int) -> dict[str, object]:
    text, prediction = answer
    answer_object: dict[str, object] = {"text": text.text}
    if text.pair is not None:
        answer_object["text_pair"] = text.pair
    answer_object |= {"label": prediction.answer, "score": prediction.score}
    if top_k:
        answer_object["top"] = [{"label": best.label, "score": best.score} for best in prediction.top]
    return answer_object | {
        "logits": prediction.logits,
        "token_count": prediction.token_count,
        "truncated": prediction.truncated,
    }


def _write_jsonl(answers: Iterable[Answer], top_k: int) -> None:
    for answer in answers:
        print(json.dumps(_as_object(answer, top_k), ensure_ascii=False))


def _write_json(answers: Iterable[Answer], top_k: int) -> None:
    separator = "["
    for answer in answers:
        print(separator, json.dumps(_as_object(answer, top_k), ensure_ascii=False), sep="\n", end="")
        separator = ","
    print("[]" if separator == "[" else "\n]")


def _write_csv(answers: Iterable[Answer], top_k: int) -> None:
    writer = csv.writer(sys.stdout)
    best = [f"{part}_{rank}" for rank in range(1, top_k + 1) for part in ("label", "score")]
    writer.writerow(["text", "text_pair", "label", "score", "token_count", "truncated", *best])
    for text, prediction in answers:
        ranked = [value for entry in prediction.top for value in (entry.label, entry.score)]
        ranked += [""] * (len(best) - len(ranked))
        writer.writerow(
            [
                text.text,
                text.pair or "",
                prediction.label,
                prediction.score,
                prediction.token_count,
                str(prediction.truncated).lower(),
                *ranked,
            ]
        )


def _write_table(answers: Iterable[Answer], top_k: int) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("label", no_wrap=True)
    table.add_column("score", justify="right", no_wrap=True)
    if top_k:
        table.add_column(f"best {top_k}")
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("text", overflow="fold")
    for text, prediction in answers:
        ranked = ", ".join(f"{best.label or best.index} {best.score:.4f}" for best in prediction.top)
        shown = text.text if text.pair is None else f"{text.text} | {text.pair}"
        table.add_row(
            plain(_shown(prediction)),
            f"{prediction.score:.4f}",
            *([plain(ranked)] if top_k else []),
            f"{prediction.token_count}{' (cut)' if prediction.truncated else ''}",
            plain(shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}…"),
        )
    table_console().print(table)


def _shown(prediction: Prediction) -> str:
    answer = prediction.answer
    return ", ".join(map(str, answer)) or "(none)" if isinstance(answer, list) else answer


_WRITERS: dict[Format, Callable[[Iterable[Answer], int], None]] = {
    Format.table: _write_table,
    Format.json: _write_json,
    Format.jsonl: _write_jsonl,
    Format.csv: _write_csv,
}
