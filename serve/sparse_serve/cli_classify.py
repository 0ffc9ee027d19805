"""The command `classify`: texts from arguments, a file or stdin; what the model answers on stdout."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import groupby, islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn

from sparse_serve.cli_options import Task, Verbose
from sparse_serve.cli_replies import Format, Shown, write
from sparse_serve.cli_texts import (
    Text,
    TextColumn,
    TextFile,
    TextPairColumn,
    TextPairs,
    Texts,
    iter_texts,
    require_one_source,
)
from sparse_serve.client import Client
from sparse_serve.errors import OptionError
from sparse_serve.replies import Answer, Entities, Reply
from sparse_serve.rows import RowFormat
from sparse_serve.tasks import Classification, QuestionAnswering, TokenClassification, require_task_named_once

_DEFAULT_URLS = {"http": "127.0.0.1:8000", "grpc": "127.0.0.1:8001"}


class Interface(StrEnum):
    """The protocols of Triton."""

    http = "http"
    grpc = "grpc"


def classify(  # noqa: PLR0913  one parameter per option
    name: Annotated[str, typer.Argument(metavar="NAME", help="The model: an entry's name.")],
    texts: Texts = None,
    *,
    file: TextFile = None,
    text_column: TextColumn = None,
    text_pair_column: TextPairColumn = None,
    text_pair: TextPairs = None,
    task: Task = None,
    task_column: Annotated[
        str | None, typer.Option(help="The file's column that names each text's task, where it has several.")
    ] = None,
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
    """Ask a served model: labels of texts, answers to questions, entities or embeddings.

    A question is a TEXT; its context is the second text.
    """
    require_one_source(texts, text_pair, file)
    require_task_named_once(task, task_column)
    if task_column is not None and file is None:
        raise OptionError("--task-column is of a file: give one with --file, or the task with --task")
    has_tasks = task is not None or task_column is not None
    with Client(url or _DEFAULT_URLS[interface], interface.value) as client:
        kind = client.kind(name)
        client.require_task(name, named=has_tasks)
        rows = _rows(kind, file)
        source = iter_texts(texts, text_pair, file, text_column, text_pair_column, rows, task_column)
        if task is not None:
            source = (text._replace(task=task) for text in source)
        write(_ask(client, name, source, top_k), kind, output_format, Shown(top_k or 0, has_tasks))


def _rows(kind: type[Reply], file: Path | None) -> RowFormat:
    """Return what rows a file of texts has that a model with such replies is asked about."""
    if kind is Answer:
        return QuestionAnswering.rows
    # A .txt is no sure sign of columns: lines of plain text would be taken for them.
    if kind is Entities and file is not None and file.suffix.lower() == ".conll":
        return TokenClassification.rows
    return Classification.rows


def _ask(
    client: Client, name: str, source: Iterator[Text], top_k: int | None
) -> Iterator[tuple[Text, Reply]]:
    """Yield replies in the order of the texts, holding one batch at a time."""
    columns = (SpinnerColumn(), MofNCompleteColumn(), "texts", TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=None)
        # A request either has second texts or has none.
        for has_pair, group in groupby(source, key=lambda text: text.pair is not None):
            while batch := list(islice(group, client.batch_size(name))):
                texts = [text.text for text in batch]
                pairs = [text.pair or "" for text in batch] if has_pair else None
                # All texts have the name of a task, or none has.
                tasks = [text.task for text in batch if text.task is not None] or None
                replies: Sequence[Reply]
                if top_k is None:
                    replies = client.ask(name, texts, pairs, tasks)
                else:
                    replies = client.classify(name, texts, pairs, top_k, tasks)
                progress.advance(task, len(batch))
                yield from zip(batch, replies, strict=True)
