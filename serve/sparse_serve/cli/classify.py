"""The command `classify`: texts from arguments, a file or stdin; what the model answers on stdout."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn

from sparse_serve.cli.options import Task, Verbose, given
from sparse_serve.cli.replies import Format, Shown, write
from sparse_serve.cli.texts import (
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
from sparse_serve.connection import DEFAULT_RETRIES, Protocol
from sparse_serve.errors import DataError, OptionError, RefusedTextError
from sparse_serve.replies import Answer, Entities, Reply
from sparse_serve.rows import TEXT_PAIR, RowFormat
from sparse_serve.tasks import Classification, QuestionAnswering, TokenClassification, require_task_named_once

_DEFAULT_URLS = {"http": "127.0.0.1:8000", "grpc": "127.0.0.1:8001"}


class Job(NamedTuple):
    """A batch of texts, and where its answer goes."""

    batch: list[Text]
    answer: Future[Sequence[Reply]]


@dataclass(frozen=True)
class Ask:
    """How a model is asked: where it is, its name, how many best classes are wanted, and by what proof."""

    url: str
    interface: Protocol
    retries: int
    name: str
    top_k: int | None
    ca_certificates: Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def client(self) -> Client:
        """Return a new client, which is of one thread over HTTP."""
        return Client(
            self.url,
            self.interface,
            self.retries,
            ca_certificates=self.ca_certificates,
            headers=self.headers,
        )

    def __call__(self, client: Client, batch: Sequence[Text]) -> Sequence[Reply]:
        """Return the replies to a batch, whose texts all have second ones or have none; so with tasks."""
        texts = [text.text for text in batch]
        pairs = [text.pair or "" for text in batch] if batch[0].pair is not None else None
        tasks = [text.task for text in batch if text.task is not None] or None
        if self.top_k is None:
            return client.ask(self.name, texts, pairs, tasks)
        return client.classify(self.name, texts, pairs, self.top_k, tasks)


def classify(  # noqa: PLR0913  one parameter per option
    context: typer.Context,
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
    interface: Annotated[Protocol, typer.Option("-i", "--interface", help="Protocol.")] = "http",
    url: Annotated[
        str | None,
        typer.Option(
            "-u",
            "--url",
            help="host:port of the server; for TLS https://host:port, or grpcs:// with -i grpc.",
            show_default="the local default port",
        ),
    ] = None,
    ca_certificates: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="PEM file of the authorities that a server's certificate may be of.",
            show_default="the system's; with -i grpc, gRPC's",
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "-H", "--header", metavar="'NAME: VALUE'", help="Sent with every request; may be repeated."
        ),
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="Also give the best K classes.")] = None,
    output_format: Annotated[
        Format, typer.Option("--format", envvar="SPARSE_SERVE_FORMAT", help="Output format.")
    ] = "table",
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight at a time.")] = 1,
    retries: Annotated[
        int,
        typer.Option(min=0, help="Further attempts where a server is overloaded or the connection is lost."),
    ] = DEFAULT_RETRIES,
    verbose: Verbose = False,
) -> None:
    """Ask a served model: labels of texts, answers to questions, entities or embeddings.

    A question is a TEXT; its context is the second text.
    """
    require_one_source(texts, text_pair, file)
    require_task_named_once(task, task_column)
    if task_column is not None and file is None:
        raise OptionError("--task-column is of a file: give one with --file, or the task with --task")
    for column in given(context, ("text_column", "text_pair_column")) if file is None else ():
        raise OptionError(f"--{column.replace('_', '-')} is of a file: give one with --file")
    has_tasks = task is not None or task_column is not None
    address = url or _DEFAULT_URLS[interface]
    ask = Ask(address, interface, retries, name, top_k, ca_certificates, _headers(header or ()))
    with ask.client() as client:
        kind = client.kind(name)
        client.require_task(name, named=has_tasks)
        rows = _rows(kind, file)
        source = iter_texts(
            texts,
            text_pair,
            file,
            text_column,
            text_pair_column,
            rows,
            task_column,
            in_pairs=client.needs_pairs(name),
        )
        if file is not None and not client.takes_pairs(name):
            source = _single(source, name, file, text_pair_column)
        if task is not None:
            source = (text._replace(task=task) for text in source)
        answered = _ask(ask, client.batch_size(name), source, concurrency)
        write(answered, kind, output_format, Shown(top_k or 0, has_tasks))


def _single(source: Iterator[Text], name: str, file: Path, column: str | None) -> Iterator[Text]:
    """Yield the texts of a file for a model that takes no second ones.

    Raises:
        DataError: one has a second text, which is in a column that is read unasked, or in a given one.
    """
    remedy = "rename or remove the column" if column is None else "leave out --text-pair-column"
    for text in source:
        if text.pair is not None:
            raise DataError(
                f"{file}: its column {column or TEXT_PAIR} is read as second texts, and model '{name}' takes "
                f"none: {remedy}"
            )
        yield text


def _headers(values: Sequence[str]) -> dict[str, str]:
    headers = {}
    for each in values:
        name, colon, value = each.partition(":")
        if not colon:
            raise OptionError(f"--header {each!r:.80} is no header: give 'NAME: VALUE'")
        headers[name.strip()] = value.strip()
    return headers


def _rows(kind: type[Reply], file: Path | None) -> RowFormat:
    """Return what rows a file of texts has that a model with such replies is asked about."""
    if kind is Answer:
        return QuestionAnswering.rows
    # A .txt is no sure sign of columns: lines of plain text would be taken for them.
    if kind is Entities and file is not None and file.suffix.lower() == ".conll":
        return TokenClassification.rows
    return Classification.rows


def _ask(ask: Ask, size: int, source: Iterator[Text], concurrency: int) -> Iterator[tuple[Text, Reply]]:
    """Yield replies in the order of the texts, holding at most two batches for each of so many threads.

    An error of the source is raised once all texts before it are answered.
    """
    columns = (SpinnerColumn(), MofNCompleteColumn(), "texts", TimeElapsedColumn())
    console = Console(stderr=True)
    jobs: SimpleQueue[Job | None] = SimpleQueue()
    pending: deque[tuple[int, Job]] = deque()
    failed: list[Exception] = []
    for _ in range(concurrency):
        # A daemon, so that Ctrl-C does not wait for what is in flight.
        Thread(target=_work, args=(ask, jobs), daemon=True).start()
    try:
        with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
            task = progress.add_task("", total=None)
            batches = _batches(_before_error(source, failed), size)
            while True:
                for first, batch in islice(batches, 2 * concurrency - len(pending)):
                    pending.append((first, Job(batch, Future())))
                    jobs.put(pending[-1][1])
                if not pending:
                    if failed:
                        raise failed[0]
                    return
                first, (batch, answer) = pending.popleft()
                try:
                    replies = answer.result()
                except RefusedTextError as error:
                    raise RefusedTextError(error.reason, first + error.row, error.text) from error
                progress.advance(task, len(batch))
                yield from zip(batch, replies, strict=True)
    finally:
        for _, job in pending:
            job.answer.cancel()
        for _ in range(concurrency):
            jobs.put(None)


def _before_error(source: Iterator[Text], failed: list[Exception]) -> Iterator[Text]:
    """Yield texts up to an error, which goes into a list."""
    try:
        yield from source
    except Exception as error:
        failed.append(error)


def _batches(source: Iterator[Text], size: int) -> Iterator[tuple[int, list[Text]]]:
    """Yield at most `size` texts at a time, with the number of the first of them."""
    first = 0
    # A request either has second texts or has none.
    for _, group in groupby(source, key=lambda text: text.pair is not None):
        while batch := list(islice(group, size)):
            yield first, batch
            first += len(batch)


def _work(ask: Ask, jobs: SimpleQueue[Job | None]) -> None:
    """Do jobs until there is None, with a client of this thread's own."""
    with ask.client() as client:
        while (job := jobs.get()) is not None:
            if job.answer.set_running_or_notify_cancel():
                try:
                    job.answer.set_result(ask(client, job.batch))
                except Exception as error:  # told where the answer is wanted
                    job.answer.set_exception(error)
