"""Texts: from TSV, CSV and JSONL files (formats: `sparse_serve.records`), and plain lines.

Empty texts are valid where they are labelled; where labels are asked for, none may be missing. What a label
is depends on the task (`sparse_serve.tasks`). In a file of pairs every row has a second text.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from sparse_serve.errors import DataError
from sparse_serve.records import Record, iter_records, text_of
from sparse_serve.tasks import Label, ProblemType, names_of, parse_label, sorted_labels

TEXT_PAIR = "text_b"

Records = Iterable[tuple[int, Record]]
"""(line, record) pairs, lines ascending."""

Arrange = Callable[[str, Records], Records]
"""Makes other records of those of a source, which it is told the name of: leaves some out, joins some."""


@dataclass(frozen=True)
class Columns:
    """Names of the columns to read.

    `text_pair=None` takes `text_b` where the file has it and reads single texts where it has not; a name
    that is given must exist.
    """

    text: str = "text_a"
    text_pair: str | None = None
    label: str = "label"

    @property
    def required(self) -> tuple[str, ...]:
        """The columns of texts that every record must have."""
        return (self.text,) if self.text_pair is None else (self.text, self.text_pair)


class Row(NamedTuple):
    """One text; `line` is where it starts in its file, `text_pair` is empty for a single text.

    `label` is empty where no labels were asked for.
    """

    line: int
    text: str
    text_pair: str
    label: Label


@dataclass(frozen=True)
class TextData:
    """Rows of one source, a file's path or a data set's name, in its order.

    `labels` and `total_rows` speak of the whole source, also where `rows` is a sample of it. `labels` is
    sorted: by value where all are whole numbers, else by name; regression has none, nor has plain text.
    """

    source: str
    rows: tuple[Row, ...]
    labels: tuple[str, ...]
    total_rows: int

    @property
    def has_pairs(self) -> bool:
        """Whether the rows have a second text."""
        return any(row.text_pair for row in self.rows)


def read_data(
    path: Path,
    columns: Columns | None = None,
    *,
    problem_type: ProblemType | None = "single_label_classification",
    max_rows: int | None = None,
    seed: int = 0,
    arrange: Arrange | None = None,
) -> TextData:
    """Read a file, or a sample of `max_rows` of its rows: `sample_records` of its records.

    Without labels (`problem_type` None) also plain text (.txt): each line is a row.

    Raises:
        DataError: the file is missing, unreadable, empty, of an unknown format, lacks a column, or has a
            malformed row; row errors name the line.
        ValueError: `max_rows` is below 1.
    """
    columns = columns or Columns()
    records = iter_records(path, columns.required, plain=problem_type is None)
    return sample_records(
        str(path),
        records if arrange is None else arrange(str(path), records),
        columns,
        problem_type=problem_type,
        max_rows=max_rows,
        seed=seed,
    )


def sample_records(
    source: str,
    records: Records,
    columns: Columns,
    *,
    problem_type: ProblemType | None = "single_label_classification",
    max_rows: int | None = None,
    seed: int = 0,
) -> TextData:
    """Read records, or a uniform sample of `max_rows` of them.

    The sample depends on `seed` and the records alone, and never holds more than `max_rows` rows in memory
    (reservoir sampling, Vitter's algorithm R); label shares are left as they fall.

    Args:
        source: the name that messages give the records.
        records: with the required columns.
        columns: names of the columns.
        problem_type: what the labels are; None reads none.
        max_rows: size of the sample; None for all.
        seed: seeds the sample.

    Raises:
        DataError: there are no records, or one has no text or no label of this problem type.
        ValueError: `max_rows` is below 1.
    """
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows is {max_rows}; give at least 1")
    rng = random.Random(seed)
    rows: list[Row] = []
    labels: set[str] = set()
    count = 0
    for count, row in enumerate(_iter_rows(source, records, columns, problem_type), start=1):
        if problem_type is not None:
            labels.update(names_of(row.label))
        if max_rows is None or count <= max_rows:
            rows.append(row)
        elif (slot := rng.randrange(count)) < max_rows:
            rows[slot] = row
    if not count:
        needed = "one text" if problem_type is None else "one labelled text"
        raise DataError(f"data file {source} has no rows; it needs {needed} per line")
    return TextData(source, tuple(sorted(rows)), sorted_labels(labels), count)


def _iter_rows(
    source: str, records: Records, columns: Columns, problem_type: ProblemType | None
) -> Iterator[Row]:
    """Yield the rows of records, read as they are asked for; errors as in `sample_records`."""
    pair_column = columns.text_pair or TEXT_PAIR
    first_line: dict[bool, int] = {}  # by whether the row has a second text
    for line, record in records:
        text = text_of(source, line, record, columns.text)
        has_pair = record.get(pair_column) not in (None, "")
        text_pair = text_of(source, line, record, pair_column) if has_pair else ""
        first_line.setdefault(has_pair, line)
        if len(first_line) == 2:
            raise DataError(
                f"{source}, line {first_line[False]}: the second text ('{pair_column}') is missing, but line "
                f"{first_line[True]} has one; give every row a pair, or none"
            )
        label = "" if problem_type is None else _label(source, line, record, columns.label, problem_type)
        yield Row(line, text, text_pair, label)


def hold_out(data: TextData, share: float, seed: int, least: int = 1) -> tuple[TextData, TextData]:
    """Split off a random `share` of the rows: the rest, and the part held out; `least` or more in both.

    Raises:
        DataError: there are fewer rows than that takes.
    """
    size = len(data.rows)
    if size < 2 * least:
        raise DataError(
            f"data file {data.source} has {size} row{'s' if size > 1 else ''}; holding some out for "
            f"evaluation needs {2 * least} or more"
        )
    held = set(random.Random(seed).sample(range(size), min(size - least, max(least, round(size * share)))))
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


def _label(source: str, line: int, record: Record, column: str, problem_type: ProblemType) -> Label:
    if column not in record:
        raise DataError(
            f"{source}, line {line}: there is no column '{column}'; the columns are {', '.join(record)}: "
            "name yours with --label-column"
        )
    try:
        return parse_label(problem_type, record[column])
    except ValueError as error:
        raise DataError(f"{source}, line {line}: {error}") from None
