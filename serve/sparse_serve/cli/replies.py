"""What `classify` writes: a table to read, JSON, JSON lines or CSV, for each kind of reply."""

import csv
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import chain, islice
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from rich.console import Console
from rich.table import Table

from sparse_serve.cli.options import table_console
from sparse_serve.cli.texts import Text, plain
from sparse_serve.replies import Answer, Embedding, Entities, Prediction, Reply

_SHOWN_CHARACTERS = 60
_ROWS_OF_TABLE = 1000
_SHOWN_NUMBERS = 4


Format = Literal["table", "json", "jsonl", "csv"]
Kind = TypeVar("Kind", bound=Reply)
Answered = Iterable[tuple[Text, Kind]]


class Writer(ABC, Generic[Kind]):
    """How the replies of one kind are written.

    Attributes:
        table: the columns of a table, beside that of the text; those of numbers are named in `numbers`.
        csv: the columns of CSV, between those of the text and those of what the model saw of it.
    """

    table: tuple[str, ...]
    numbers: tuple[str, ...] = ("score", "tokens")
    csv: tuple[str, ...] = ()

    @abstractmethod
    def cells(self, reply: Kind) -> Iterator[tuple[str, ...]]:
        """Yield the rows of a table, one or more."""

    @abstractmethod
    def fields(self, reply: Kind) -> dict[str, object]:
        """Return what JSON says of a reply, beside its text and what the model saw of that."""

    @abstractmethod
    def values(self, reply: Kind) -> Iterator[tuple[object, ...]]:
        """Yield the rows of CSV, one or more, as `csv` has them."""

    def more(self, reply: Kind | None) -> dict[str, object]:
        """Return further columns of CSV and what a reply, where there is one, has in them."""
        return {}

    def shown(self, text: Text) -> str:
        """Return what a table shows of a text."""
        return text.text if text.pair is None else f"{text.text} | {text.pair}"


class Shown(NamedTuple):
    """What of predictions is shown besides label and score: so many best classes, and the task."""

    top_k: int = 0
    task: bool = False


class PredictionWriter(Writer[Prediction]):
    """Label and score, and what else is asked for."""

    def __init__(self, shown: Shown) -> None:
        self.top_k = shown.top_k
        self.has_task = shown.task
        task = ["task"] * shown.task
        self.csv = (*task, "label", "score")
        self.table = (*task, "label", "score", *([f"best {shown.top_k}"] if shown.top_k else []), "tokens")

    def cells(self, reply: Prediction) -> Iterator[tuple[str, ...]]:
        """Yield one row."""
        answer = reply.answer
        label = ", ".join(map(str, answer)) or "(none)" if isinstance(answer, list) else answer
        best = ", ".join(f"{each.label or each.index} {each.score:.4f}" for each in reply.top)
        tokens = f"{reply.token_count}{' (cut)' if reply.truncated else ''}"
        yield (*self._task(reply), label, f"{reply.score:.4f}", *([best] if self.top_k else []), tokens)

    def fields(self, reply: Prediction) -> dict[str, object]:
        """Return the task, where there are several, label, score and logits."""
        best = [{"label": each.label, "score": each.score} for each in reply.top]
        top = {"top": best} if self.top_k else {}
        task = {"task": reply.task} if self.has_task else {}
        return {**task, "label": reply.answer, "score": reply.score, **top, "logits": reply.logits}

    def values(self, reply: Prediction) -> Iterator[tuple[object, ...]]:
        """Yield one row."""
        yield (*self._task(reply), reply.label, reply.score)

    def more(self, reply: Prediction | None) -> dict[str, object]:
        """Return columns of the best classes."""
        ranked = dict(enumerate(reply.top if reply else (), start=1))
        return {
            f"{part}_{rank}": getattr(ranked.get(rank), part, "")
            for rank in range(1, self.top_k + 1)
            for part in ("label", "score")
        }

    def _task(self, reply: Prediction) -> tuple[str, ...]:
        return (str(reply.task),) if self.has_task else ()


class AnswerWriter(Writer[Answer]):
    """The answer and where it stands in the context."""

    table = ("answer", "score", "span")
    csv = ("answer", "start", "end", "score")

    def cells(self, reply: Answer) -> Iterator[tuple[str, ...]]:
        """Yield one row."""
        has_answer = reply.start >= 0
        yield (
            reply.answer if has_answer else "(none)",
            f"{reply.score:.4f}",
            f"{reply.start}–{reply.end}" if has_answer else "",
        )

    def fields(self, reply: Answer) -> dict[str, object]:
        """Return answer, start, end and score."""
        return {"answer": reply.answer, "start": reply.start, "end": reply.end, "score": reply.score}

    def values(self, reply: Answer) -> Iterator[tuple[object, ...]]:
        """Yield one row."""
        yield reply.answer, reply.start, reply.end, reply.score

    def shown(self, text: Text) -> str:
        """Return the question."""
        return text.text


class EntitiesWriter(Writer[Entities]):
    """A row for each entity; of a text without any, one that says so."""

    table = ("entity", "label", "score", "span")
    csv = ("entity", "label", "start", "end", "score")

    def cells(self, reply: Entities) -> Iterator[tuple[str, ...]]:
        """Yield a row for each entity."""
        for each in reply.entities:
            yield each.text, each.label, f"{each.score:.4f}", f"{each.start}–{each.end}"
        if not reply.entities:
            yield "(none)", "", "", ""

    def fields(self, reply: Entities) -> dict[str, object]:
        """Return the entities."""
        return {"entities": [asdict(entity) for entity in reply.entities]}

    def values(self, reply: Entities) -> Iterator[tuple[object, ...]]:
        """Yield a row for each entity."""
        for each in reply.entities:
            yield each.text, each.label, each.start, each.end, each.score
        if not reply.entities:
            yield "", "", "", "", ""


class EmbeddingWriter(Writer[Embedding]):
    """The vector; in a table its first numbers, and its norm."""

    table = ("embedding", "size", "norm")
    numbers = ("size", "norm")

    def cells(self, reply: Embedding) -> Iterator[tuple[str, ...]]:
        """Yield one row."""
        first = " ".join(f"{number:.4f}" for number in reply.vector[:_SHOWN_NUMBERS])
        more = " …" if len(reply.vector) > _SHOWN_NUMBERS else ""
        yield f"{first}{more}", str(len(reply.vector)), f"{reply.norm:.4f}"

    def fields(self, reply: Embedding) -> dict[str, object]:
        """Return the numbers."""
        return {"embedding": reply.vector.tolist()}

    def values(self, reply: Embedding) -> Iterator[tuple[object, ...]]:
        """Yield one row."""
        yield ()

    def more(self, reply: Embedding | None) -> dict[str, object]:
        """Return a column for each number."""
        numbers = [] if reply is None else reply.vector.tolist()
        return {f"embedding_{index}": number for index, number in enumerate(numbers, start=1)}


def write(answered: Answered[Reply], kind: type[Reply], form: Format, shown: Shown) -> None:
    """Write replies of one kind to stdout, each as soon as it is there; a table when a thousand are."""
    writers: dict[type[Reply], Writer[Any]] = {
        Prediction: PredictionWriter(shown),
        Answer: AnswerWriter(),
        Entities: EntitiesWriter(),
        Embedding: EmbeddingWriter(),
    }
    _FORMATS[form](answered, writers[kind])


def _as_json(text: Text, reply: Reply, writer: Writer[Any]) -> str:
    described = {
        "text": text.text,
        **({} if text.pair is None else {"text_pair": text.pair}),
        **writer.fields(reply),
        "token_count": reply.token_count,
        "truncated": reply.truncated,
    }
    return json.dumps(described, ensure_ascii=False)


def _write_jsonl(answered: Answered[Reply], writer: Writer[Any]) -> None:
    for text, reply in answered:
        print(_as_json(text, reply, writer))


def _write_json(answered: Answered[Reply], writer: Writer[Any]) -> None:
    separator = "["
    try:
        for text, reply in answered:
            print(separator, _as_json(text, reply, writer), sep="\n", end="")
            separator = ","
    finally:  # what came before an error is to be read
        if separator == ",":
            print("\n]")
    if separator == "[":
        print("[]")


def _write_csv(answered: Answered[Reply], writer: Writer[Any]) -> None:
    output = csv.writer(sys.stdout)
    rows = iter(answered)
    first = next(rows, None)
    header = ("text", "text_pair", *writer.csv, "token_count", "truncated")
    output.writerow((*header, *writer.more(None if first is None else first[1])))
    for text, reply in () if first is None else chain([first], rows):
        seen = (reply.token_count, str(reply.truncated).lower(), *writer.more(reply).values())
        output.writerows((text.text, text.pair or "", *values, *seen) for values in writer.values(reply))


def _write_table(answered: Answered[Reply], writer: Writer[Any]) -> None:
    """Print a table of all, or several where there are many: a table needs all its rows before its first."""
    console = table_console()
    texts = iter(answered)
    table = _print_table(islice(texts, _ROWS_OF_TABLE), writer, console)
    if not table.row_count:
        console.print(table)
    while table.row_count:
        table = _print_table(islice(texts, _ROWS_OF_TABLE), writer, console)


def _print_table(answered: Answered[Reply], writer: Writer[Any], console: Console) -> Table:
    """Print a table, unless it has no rows, and return it."""
    table = _table(writer)
    try:
        for text, reply in answered:
            _add_rows(table, text, reply, writer)
    finally:  # what came before an error is to be read
        if table.row_count:
            console.print(table)
    return table


def _table(writer: Writer[Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in writer.table:
        table.add_column(
            name,
            justify="right" if name in writer.numbers else "left",
            no_wrap=name in (*writer.numbers, "label"),
        )
    table.add_column("text", overflow="fold")
    return table


def _add_rows(table: Table, text: Text, reply: Reply, writer: Writer[Any]) -> None:
    shown = writer.shown(text)
    shown = shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}…"
    if reply.truncated and "tokens" not in writer.table:
        shown = f"{shown} (cut)"
    for number, cells in enumerate(writer.cells(reply)):
        table.add_row(*map(plain, cells), plain("" if number else shown))


_FORMATS: dict[Format, Callable[[Answered[Reply], Writer[Any]], None]] = {
    "table": _write_table,
    "json": _write_json,
    "jsonl": _write_jsonl,
    "csv": _write_csv,
}
