"""Texts of a command: from arguments, a file or stdin, and back onto the terminal."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.text import Text as RichText

from sparse_serve.errors import DataError, OptionError
from sparse_serve.records import iter_records, text_of
from sparse_serve.rows import TEXT_PAIR, Columns, QuestionRows, RowFormat, TaggedRows
from sparse_serve.tasks import Classification

_OWN, _QUESTIONS, _WORDS = Columns(), QuestionRows.columns, TaggedRows.columns

DEFAULT_TEXT_COLUMN = f"{_OWN.text}; for questions {_QUESTIONS.text}, for words {_WORDS.text}"
DEFAULT_TEXT_PAIR_COLUMN = f"{TEXT_PAIR}, where there is one; for questions {_QUESTIONS.text_pair}"
DEFAULT_LABEL_COLUMN = f"{_OWN.label}; for questions {_QUESTIONS.label}, for words {_WORDS.label}"
"""What the columns of a file are called that no option names, as the help of all commands says it."""

Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts; else lines of stdin.")]
TextPairs = Annotated[
    list[str] | None,
    typer.Option("--text-pair", help="Second text, such as a question's context; one for each TEXT."),
]
TextFile = Annotated[
    Path | None,
    typer.Option(
        "--file",
        help="TSV, CSV or JSONL file of texts; SQuAD's JSON of questions; CoNLL's columns of words.",
    ),
]
TextColumn = Annotated[
    str | None,
    typer.Option("--text-column", help="The file's column of texts.", show_default=DEFAULT_TEXT_COLUMN),
]
TextPairColumn = Annotated[
    str | None,
    typer.Option(
        "--text-pair-column",
        help="The file's column of second texts.",
        show_default=DEFAULT_TEXT_PAIR_COLUMN,
    ),
]


class Text(NamedTuple):
    """One text, with its second text where it has one, and the name of its task where that is said."""

    text: str
    pair: str | None
    task: str | None = None


def iter_texts(
    texts: Sequence[str] | None,
    pairs: Sequence[str] | None,
    file: Path | None,
    column: str | None,
    pair_column: str | None,
    rows: RowFormat = Classification.rows,
    task_column: str | None = None,
    *,
    in_pairs: bool = False,
) -> Iterator[Text]:
    """Yield the texts that a command line names, as they are asked for; without any, the lines of stdin.

    `rows` is what a file holds, `task_column` its column of the names of tasks. An empty second text of a
    file is one where texts come `in_pairs`, else none.

    Raises:
        OptionError: as `require_one_source`.
        DataError: a text that is not UTF-8, or a file that cannot be read.
    """
    require_one_source(texts, pairs, file)
    if file is not None:
        return _of_file(
            file, rows, column, pair_column, task_column, keep_empty=in_pairs or rows.whole_contexts
        )
    if texts:
        return _of_arguments(texts, pairs or [None] * len(texts))
    return _of_stdin()


def require_one_source(texts: Sequence[str] | None, pairs: Sequence[str] | None, file: Path | None) -> None:
    """See that a command line names texts once.

    Raises:
        OptionError: arguments and a file, or second texts that are not one for each text.
    """
    if file is not None and (texts or pairs):
        raise OptionError("give texts as arguments or with --file, not both")
    if pairs and len(pairs) != len(texts or ()):
        raise OptionError(f"{len(pairs)} --text-pair for {len(texts or ())} texts: give one for each")


def plain(text: str) -> RichText:
    """Keep what someone wrote from being read as markup or as control sequences."""
    return RichText("".join(character if character.isprintable() else " " for character in text))


def _of_arguments(texts: Sequence[str], pairs: Sequence[str | None]) -> Iterator[Text]:
    for number, (text, pair) in enumerate(zip(texts, pairs, strict=True), start=1):
        try:
            (text + (pair or "")).encode()
        except UnicodeEncodeError:
            raise DataError(f"text {number} of the command line is not UTF-8") from None
        yield Text(text, pair)


def _of_stdin() -> Iterator[Text]:
    if sys.stdin.isatty():
        print("reading texts from the terminal, one a line; Ctrl-D ends", file=sys.stderr)
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield Text(line.decode("utf-8").rstrip("\r\n"), None)
        except UnicodeDecodeError:
            raise DataError(f"line {number} of stdin is not UTF-8") from None


def _of_file(
    path: Path,
    rows: RowFormat,
    column: str | None,
    pair_column: str | None,
    task_column: str | None,
    *,
    keep_empty: bool,
) -> Iterator[Text]:
    """Yield a file's texts; an empty second text means that the row has none, unless they are kept."""
    columns = rows.named(column, pair_column)
    required = (*columns.required, *([task_column] if task_column else []))
    for line, record in iter_records(path, required, rows.formats):
        row = rows.row(str(path), line, record, columns, labelled=False)
        task = text_of(path, line, record, task_column) if task_column else None
        yield Text(row.text, row.text_pair if row.text_pair or keep_empty else None, task)
