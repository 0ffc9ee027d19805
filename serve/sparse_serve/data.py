"""Texts: from files (formats: `sparse_serve.records`), data sets, and plain lines.

Empty texts are valid where they are labelled; where labels are asked for, none may be missing. What a row is,
and its label, depends on the task (`sparse_serve.rows`, `sparse_serve.tasks`). In a file of pairs every row
has a second text.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from sparse_serve.errors import DataError
from sparse_serve.records import PLAIN, Record, iter_records
from sparse_serve.rows import TEXT_PAIR, Columns, Label, Row, RowFormat, TextData, missing_label, names_of
from sparse_serve.tasks import TASKS, sorted_labels

__all__ = [
    "TEXT_PAIR",
    "Arrange",
    "Columns",
    "Label",
    "Records",
    "Row",
    "TextData",
    "hold_out",
    "read_data",
    "read_texts",
    "sample_records",
]

Records = Iterable[tuple[int, Record]]
"""(line, record) pairs, lines ascending."""

Arrange = Callable[[str, Records], Records]
"""Makes other records of those of a source, which it is told the name of: leaves some out, joins some."""


def read_data(
    path: Path,
    columns: Columns | None = None,
    *,
    task: str = "single_label_classification",
    labelled: bool = True,
    max_rows: int | None = None,
    seed: int = 0,
    arrange: Arrange | None = None,
) -> TextData:
    """Read a file, or a sample of `max_rows` of its rows: `sample_records` of its records.

    What the file may be depends on the task (`RowFormat.formats`); without labels it is also plain text
    (.txt), of which each line is a row, unless such files are the task's own.

    Raises:
        DataError: the file is missing, unreadable, empty, of an unknown format, lacks a column, or has a
            malformed row; row errors name the line.
        ValueError: `max_rows` is below 1.
    """
    kind = TASKS[task].rows
    columns = columns or kind.columns
    # The task's own come first where they are listed, and are read as such.
    formats = kind.formats if labelled else {**kind.formats, **PLAIN, **kind.formats}
    records = iter_records(path, columns.required, formats)
    return sample_records(
        str(path),
        records if arrange is None else arrange(str(path), records),
        columns,
        task=task,
        labelled=labelled,
        max_rows=max_rows,
        seed=seed,
    )


def sample_records(
    source: str,
    records: Records,
    columns: Columns,
    *,
    task: str = "single_label_classification",
    labelled: bool = True,
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
        task: what the rows are, a `Task.type`.
        labelled: whether labels are read; else they need not be there.
        max_rows: size of the sample; None for all.
        seed: seeds the sample.

    Raises:
        DataError: there are no records, or one has no text or no label of this task.
        ValueError: `max_rows` is below 1.
    """
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows is {max_rows}; give at least 1")
    kind = TASKS[task].rows
    rng = random.Random(seed)
    rows: list[Row] = []
    labels: set[str] = set()
    count = 0
    for count, row in enumerate(_iter_rows(source, records, columns, kind, labelled), start=1):
        labels.update(names_of(row.label) if labelled else ())
        if max_rows is None or count <= max_rows:
            rows.append(row)
        elif (slot := rng.randrange(count)) < max_rows:
            rows[slot] = row
    if not count:
        needed = "one labelled text" if labelled else "one text"
        raise DataError(f"data file {source} has no rows; it needs {needed} or more")
    return TextData(source, tuple(sorted(rows)), sorted_labels(labels), count, kind.whole_contexts)


def _iter_rows(
    source: str, records: Records, columns: Columns, kind: RowFormat, labelled: bool
) -> Iterator[Row]:
    """Yield the rows of records, read as they are asked for; errors as in `sample_records`."""
    first_line: dict[bool, int] = {}  # by whether the row has a second text
    unlabelled: tuple[int, Record] | None = None
    is_labelled = not labelled
    for line, record in records:
        row = kind.row(source, line, record, columns, labelled=labelled)
        first_line.setdefault(bool(row.text_pair), line)
        if len(first_line) == 2 and not kind.whole_contexts:
            raise DataError(
                f"{source}, line {first_line[False]}: the second text ('{columns.text_pair or TEXT_PAIR}') "
                f"is missing, but line {first_line[True]} has one; give every row a pair, or none"
            )
        is_labelled = is_labelled or kind.has_label(record, columns)
        unlabelled = unlabelled or (line, record)
        yield row
    if not is_labelled and unlabelled is not None:
        raise missing_label(source, *unlabelled, columns)


def hold_out(data: TextData, share: float, seed: int, least: int = 1) -> tuple[TextData, TextData]:
    """Split off a random `share` of the rows: the rest, and the part held out; `least` or more in both.

    Of questions whole contexts are held out, of about that share: a model has learned of a context what the
    others are asked.

    Raises:
        DataError: there are fewer rows than that takes.
    """
    size = len(data.rows)
    if size < 2 * least:
        raise DataError(
            f"data file {data.source} has {size} row{'s' if size > 1 else ''}; holding some out for "
            f"evaluation needs {2 * least} or more"
        )
    wanted = min(size - least, max(least, round(size * share)))
    rng = random.Random(seed)
    held = set(_of_contexts(data, wanted, rng) if data.whole_contexts else rng.sample(range(size), wanted))
    kept_rows = tuple(row for number, row in enumerate(data.rows) if number not in held)
    held_rows = tuple(data.rows[number] for number in sorted(held))
    return replace(data, rows=kept_rows), replace(data, rows=held_rows)


def _of_contexts(data: TextData, wanted: int, rng: random.Random) -> list[int]:
    """Return the numbers of the rows of contexts drawn at random: `wanted` at most, but one context or more.

    Raises:
        DataError: all rows are of one context.
    """
    groups: dict[str, list[int]] = {}
    for number, row in enumerate(data.rows):
        groups.setdefault(row.text_pair, []).append(number)
    if len(groups) < 2:
        raise DataError(
            f"data file {data.source} has questions on one context only; holding some out for evaluation "
            "needs two contexts or more: give other rows with --eval"
        )
    held: list[int] = []
    for context in rng.sample(list(groups), len(groups)):
        if len(held) + len(groups[context]) <= wanted:
            held += groups[context]
    return held or min(groups.values(), key=len)


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
