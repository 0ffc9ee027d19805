"""Rows of files, cut into parts.

A row is read as far as it can be: what is no text stays in it, as bytes or with a reason. What becomes of it
is decided where it is answered. A part has the next rows of its group of files, so many at most and about
`PART_BYTES` of text, whatever the machine: a job that is started again cuts its corpus as before.
"""

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparse_serve.errors import DataError, first_line
from sparse_serve.records import Record, object_of, table_rows
from sparse_serve.scoring.storage import Location

PARQUET = ".parquet"
PART_BYTES = 1 << 20
"""Of text: some minutes of a large model on one core. So much is done again where a worker was killed."""

FILE, ROW, TEXT, TEXT_PAIR, TASK, ERROR = "file", "row", "text", "text_pair", "task", "error"
KEPT = "kept:"
"""What the name of a column that is kept begins with in a part: whatever it is called, it is no other one."""
MALFORMED = "malformed record"

_OBJECTS = ".jsonl"
_COMPRESSIONS = frozenset({".gz", ".bz2", ".zst"})
_BUFFER_BYTES = 1 << 20
_CHUNK_ROWS = 4096
_BYTES = pa.large_binary()


class InputFile(NamedTuple):
    """A file; `modified` is in nanoseconds since 1970, None where the filesystem does not tell."""

    place: Location
    size: int
    modified: int | None

    @property
    def name(self) -> str:
        """Its path or URL."""
        return str(self.place)


class Seen(NamedTuple):
    """What a first look at a file tells: how many rows, where the format says so, and types by column."""

    rows: int | None
    types: Mapping[str, pa.DataType]


@dataclass(frozen=True)
class InputColumns:
    """The columns that are read.

    Attributes:
        text: of the texts.
        text_pair: of second texts; None where the model reads none.
        task: of the names of tasks; None where a model has one, or all texts are of one.
        keep: what else is kept, by the name that it gets in the output.
    """

    text: str
    text_pair: str | None
    task: str | None
    keep: Mapping[str, str]

    @property
    def texts(self) -> dict[str, str]:
        """The columns that the model reads, by what they are to it."""
        named = {TEXT: self.text, TEXT_PAIR: self.text_pair, TASK: self.task}
        return {name: column for name, column in named.items() if column is not None}

    @property
    def options(self) -> dict[str, str]:
        """Every column, by the option that names it."""
        options = {TEXT: "--text-column", TEXT_PAIR: "--text-pair-column", TASK: "--task-column"}
        return {
            **dict.fromkeys(self.keep.values(), "--keep"),
            **{column: options[name] for name, column in self.texts.items()},
        }


class Part(NamedTuple):
    """The rows of one part.

    `rows` has the columns `file` (string), `row` (int64, from 0 within the file), `text` and, where they are
    read, `text_pair` and `task`, as bytes (large_binary), `error` (string), why a record could not be read,
    and what is kept, of any type, its names behind `KEPT`.
    """

    number: int
    rows: pa.Table
    is_last: bool


def format_of(name: str) -> str:
    """Return a file's suffix, before that of a compression."""
    path = PurePosixPath(name.lower())
    return PurePosixPath(path.stem).suffix if path.suffix in _COMPRESSIONS else path.suffix


def look(file: InputFile, columns: InputColumns) -> Seen:
    """See that a file can be read and has the columns.

    Raises:
        DataError: it cannot, or has not.
    """
    if format_of(file.name) == PARQUET:
        parquet = _parquet(file)
        schema = parquet.schema_arrow
        _require_columns(file.name, columns, schema.names)
        for column in columns.texts.values():
            if not _is_text(schema.field(column).type):
                raise DataError(
                    f"{file.name}: column '{column}' is of type {schema.field(column).type}, strings are "
                    f"needed: name another with {columns.options[column]}"
                )
        return Seen(
            parquet.metadata.num_rows, {name: schema.field(name).type for name in columns.keep.values()}
        )
    for record in _tables(file, columns):  # which looks for the columns
        if not isinstance(record, DataError):
            break
    return Seen(None, {name: pa.string() for name in columns.keep.values()})


def read_parts(
    files: Sequence[InputFile], columns: InputColumns, part_rows: int, finished: frozenset[int]
) -> Iterator[Part]:
    """Yield the parts of files that are read one after the other, without those that are finished.

    Raises:
        DataError: a file cannot be read, or a table in it is malformed.
    """
    cut = _cut((chunk for file in files for chunk in _chunks(file, columns)), part_rows)
    number, rows = 0, next(cut, None)
    while rows is not None:
        following = next(cut, None)
        if number not in finished:
            yield Part(number, rows, following is None)
        number, rows = number + 1, following


def _cut(chunks: Iterator[pa.Table], most: int) -> Iterator[pa.Table]:
    """Yield tables of as many rows as a part has."""
    rest: pa.Table | None = None
    for chunk in chunks:
        rest = chunk if rest is None else pa.concat_tables([rest, chunk])
        while (count := _part_rows(rest, most)) < rest.num_rows:
            yield rest.slice(0, count)
            rest = rest.slice(count)
    if rest is not None and rest.num_rows:
        yield rest


def _part_rows(rows: pa.Table, most: int) -> int:
    """Return how many of the first rows make a part, if it is full: all where it is not."""
    sizes = np.zeros(rows.num_rows, np.int64)
    for name in (TEXT, TEXT_PAIR):
        if name in rows.column_names:
            sizes += pc.fill_null(pc.binary_length(rows[name]), 0).to_numpy()
    full = int(np.searchsorted(np.cumsum(sizes), PART_BYTES)) + 1
    return min(int(rows.num_rows), most, full)


def _chunks(file: InputFile, columns: InputColumns) -> Iterator[pa.Table]:
    """Yield a file's rows, some at a time."""
    read = _parquet_chunks if format_of(file.name) == PARQUET else _table_chunks
    first = 0
    for chunk in read(file, columns):
        place = {
            FILE: pa.array([file.name], pa.string()).take(pa.array(np.zeros(chunk.num_rows, np.int32))),
            ROW: pa.array(np.arange(first, first + chunk.num_rows)),
        }
        yield pa.table({**place, **dict(zip(chunk.column_names, chunk.columns, strict=True))})
        first += chunk.num_rows


def _parquet_chunks(file: InputFile, columns: InputColumns) -> Iterator[pa.Table]:
    wanted = list(dict.fromkeys([*columns.texts.values(), *columns.keep.values()]))
    try:
        for batch in _parquet(file).iter_batches(_CHUNK_ROWS, columns=wanted):
            yield pa.table(
                {
                    **{name: _as_bytes(batch[column]) for name, column in columns.texts.items()},
                    ERROR: pa.nulls(batch.num_rows, pa.string()),
                    **{KEPT + name: batch[column] for name, column in columns.keep.items()},
                }
            )
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _unreadable(file, error) from error


def _parquet(file: InputFile) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file.place.filesystem.open_input_file(file.place.path))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _unreadable(file, error) from error


def _is_text(kind: pa.DataType) -> bool:
    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    checks: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_null,
    )
    return any(check(values) for check in checks)


def _as_bytes(values: pa.Array) -> pa.Array:
    """Return strings as the bytes that they are: Arrow does not see to it that they are UTF-8."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return values.cast(_BYTES)


def _table_chunks(file: InputFile, columns: InputColumns) -> Iterator[pa.Table]:
    records = _tables(file, columns)
    texts, kept = columns.texts, columns.keep
    while chunk := list(islice(records, _CHUNK_ROWS)):
        rows = [_Row(record, texts.values()) for record in chunk]
        yield pa.table(
            {
                **{
                    name: pa.array([row.texts.get(column) for row in rows], _BYTES)
                    for name, column in texts.items()
                },
                ERROR: pa.array([_as_kept(row.error) for row in rows], pa.string()),
                **{
                    KEPT + name: pa.array([_as_kept(row.record.get(column)) for row in rows], pa.string())
                    for name, column in kept.items()
                },
            }
        )


class _Row:
    """A record of a table: its texts as bytes, and why it has none."""

    def __init__(self, record: Record | DataError, columns: Iterable[str]) -> None:
        self.record: Record = {}
        self.texts: dict[str, bytes] = {}
        self.error: str | None = None
        if isinstance(record, DataError):
            self.error = f"{MALFORMED}: {record}"
            return
        self.record = record
        for column in columns:
            value = record.get(column)
            if isinstance(value, str):
                self.texts[column] = _encoded(value)
            elif value is not None:
                self.error = f"{MALFORMED}: column '{column}' holds {value!r:.80}; a text is needed"


def _encoded(text: str) -> bytes:
    """Return a text's bytes as they were in the file, or half a surrogate pair as bytes that are no UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _as_kept(value: object) -> str | None:
    """Return a string as it is, with � for what is not UTF-8, and any other value of JSON as its JSON."""
    text = (
        value if isinstance(value, str) else None if value is None else json.dumps(value, ensure_ascii=False)
    )
    return None if text is None else _encoded(text).decode("utf-8", "replace")


def _tables(file: InputFile, columns: InputColumns) -> Iterator[Record | DataError]:
    """Yield the records of a file; in the place of a malformed row or object, what is wrong with it.

    Raises:
        DataError: the file cannot be read, its header, or the first object that is one, lacks a column, or it
            does not show where the next row begins.
    """
    suffix = format_of(file.name)
    check = partial(_require_columns, file.name, columns)
    try:
        with file.place.filesystem.open_input_stream(file.place.path, buffer_size=_BUFFER_BYTES) as stream:
            lines = _lines(io.BufferedReader(stream, _BUFFER_BYTES))
            if suffix == _OBJECTS:
                yield from _objects(file.name, lines, check)
                return
            header = next(lines, None)
            if header is None:
                raise DataError(f"data file {file.name} is empty; it needs a header row")
            # Of the name, messages show all and the format is told by the suffix.
            named = Path(file.name.removesuffix("".join(_COMPRESSIONS & {PurePosixPath(file.name).suffix})))
            for _, record in table_rows(named, chain([header], lines), check):
                yield record
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _unreadable(file, error) from error


def _lines(stream: io.BufferedReader) -> Iterator[str]:
    """Yield decoded lines; bytes that are no UTF-8 become code points that no text has."""
    for number, raw in enumerate(stream):
        yield raw.decode("utf-8" if number else "utf-8-sig", "surrogateescape")


def _objects(
    name: str, lines: Iterator[str], check: Callable[[Sequence[str]], None]
) -> Iterator[Record | DataError]:
    is_checked = False
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = object_of(name, number, line)
        except DataError as error:
            yield error
            continue
        if not is_checked:
            check([*record])
            is_checked = True
        yield record


def _require_columns(name: str, columns: InputColumns, present: Sequence[str]) -> None:
    for column, option in columns.options.items():
        if column not in present:
            raise DataError(
                f"{name}: there is no column '{column}'; the columns are {', '.join(present)}: name yours "
                f"with {option}"
            )
        if present.count(column) > 1:
            raise DataError(f"{name}: the column name '{column}' occurs twice; name each once")


def _unreadable(file: InputFile, error: Exception) -> DataError:
    return DataError(f"data file {file.name} cannot be read: {first_line(error)}; give a readable file")
