"""Texts: labelled ones from TSV, CSV and JSONL files (formats: `sparse_serve.records`), and plain lines.

Empty texts are valid where they are labelled; a missing label is not.
"""

import random
import re
import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from sparse_serve.errors import DataError
from sparse_serve.records import Record, iter_records, text_of

TEXT_PAIR = "text_b"

_INTEGER = re.compile(r"[+-]?\d{1,18}")
_FRACTION = re.compile(r"[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Columns:
    """Names of the columns to read.

    `text_pair=None` takes `text_b` where the file has it and reads single texts where it has not; a name
    that is given must exist.
    """

    text: str = "text_a"
    text_pair: str | None = None
    label: str = "label"


class Row(NamedTuple):
    """One labelled text; `line` is where it starts in its file, `text_pair` is empty for a single text."""

    line: int
    text: str
    text_pair: str
    label: str


@dataclass(frozen=True)
class TextData:
    """Rows of one file in the file's order.

    `labels` and `total_rows` speak of the whole file, also where `rows` is a sample of it. `labels` is
    sorted: by value where all are whole numbers, else by name.
    """

    path: Path
    rows: tuple[Row, ...]
    labels: tuple[str, ...]
    total_rows: int

    @property
    def has_pairs(self) -> bool:
        """Whether any row has a second text."""
        return any(row.text_pair for row in self.rows)


def read_data(
    path: Path, columns: Columns | None = None, *, max_rows: int | None = None, seed: int = 0
) -> TextData:
    """Read a labelled file, or a uniform sample of `max_rows` of its rows.

    The sample depends on `seed` and the file alone, and never holds more than `max_rows` rows in memory
    (reservoir sampling, Vitter's algorithm R); label shares are left as they fall.

    Raises:
        DataError: the file is missing, unreadable, empty, of an unknown format, lacks a column, or has a
            malformed row; row errors name the line.
        ValueError: `max_rows` is below 1.
    """
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows is {max_rows}; give at least 1")
    rng = random.Random(seed)
    rows: list[Row] = []
    labels: set[str] = set()
    count = 0
    for count, row in enumerate(_iter_rows(path, columns or Columns()), start=1):
        labels.add(row.label)
        if max_rows is None or count <= max_rows:
            rows.append(row)
        elif (slot := rng.randrange(count)) < max_rows:
            rows[slot] = row
    if not count:
        raise DataError(f"data file {path} has no rows; it needs one labelled text per line")
    return TextData(path, tuple(sorted(rows)), _sorted_labels(labels), count)


def _iter_rows(path: Path, columns: Columns) -> Iterator[Row]:
    """Yield the rows of a labelled file, read as they are asked for; errors as in `read_data`."""
    required = (columns.text,) if columns.text_pair is None else (columns.text, columns.text_pair)
    pair_column = columns.text_pair or TEXT_PAIR
    for line, record in iter_records(path, required):
        has_pair = record.get(pair_column) is not None
        yield Row(
            line,
            text_of(path, line, record, columns.text),
            text_of(path, line, record, pair_column) if has_pair else "",
            _label(path, line, record, columns.label),
        )


def label_ids(data: TextData, labels: Sequence[str]) -> list[int]:
    """Index in `labels` of every row's label.

    Where no label of the file is a known name, whole numbers are taken as indices: a model that says
    negative/positive can be judged on a file that says 0/1.

    Raises:
        DataError: a label that is neither, with its line and value.
    """
    index = {name: number for number, name in enumerate(labels)}
    if not any(name in index for name in data.labels):
        index = {
            name: int(name)
            for name in data.labels
            if _INTEGER.fullmatch(name) and 0 <= int(name) < len(labels)
        }
    for row in data.rows:
        if row.label not in index:
            raise DataError(
                f"{data.path}, line {row.line}: label {reprlib.repr(row.label)} is not one of the model's "
                f"{len(labels)} labels {reprlib.repr(list(labels))}, nor are its labels their indices"
            )
    return [index[row.label] for row in data.rows]


def hold_out(data: TextData, share: float, seed: int) -> tuple[TextData, TextData]:
    """Split off a random `share` of the rows (at least one, and never all): the rest, and the part held out.

    Raises:
        DataError: there are fewer than two rows.
    """
    size = len(data.rows)
    if size < 2:
        raise DataError(
            f"data file {data.path} has {size} row; holding some out for evaluation needs two or more"
        )
    held = set(random.Random(seed).sample(range(size), min(size - 1, max(1, round(size * share)))))
    kept_rows = tuple(row for number, row in enumerate(data.rows) if number not in held)
    held_rows = tuple(data.rows[number] for number in sorted(held))
    return replace(data, rows=kept_rows), replace(data, rows=held_rows)


def read_texts(path: Path | None) -> tuple[str, ...]:
    """Return the lines of a UTF-8 file that are not blank, or the texts that come with the package.

    Raises:
        DataError: the file cannot be read, or holds no text.
    """
    source = files("sparse_serve") / "sample_texts.txt" if path is None else path
    try:
        content = source.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(
            f"texts file {path} cannot be read: {error.strerror or error}; give a readable file"
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"texts file {path} is not UTF-8 at byte {error.start}; convert it to UTF-8"
        ) from error
    texts = tuple(line.strip() for line in content.split("\n") if line.strip())
    if not texts:
        raise DataError(f"texts file {path} holds no text; it needs one text per line")
    return texts


def _label(path: Path, line: int, record: Record, column: str) -> str:
    if column not in record:
        raise DataError(
            f"{path}, line {line}: there is no column '{column}'; the columns are {', '.join(record)}: "
            "name yours with --label-column"
        )
    value = record[column]
    label = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not label or _FRACTION.fullmatch(label):
        shown = "missing" if value in (None, "") else reprlib.repr(value)
        raise DataError(f"{path}, line {line}: the label is {shown}; a label is a name or a whole number")
    return label


def _sorted_labels(labels: set[str]) -> tuple[str, ...]:
    if all(_INTEGER.fullmatch(label) for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))
