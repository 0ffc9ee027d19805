"""Records of text files, one at a time.

    TSV     a header row, fields separated by tabs, no quoting at all
    CSV     a header row, RFC 4180 quoting
    JSONL   one object per line
    TXT     one text per line, where `iter_records` is told that it may be

All are UTF-8 and told apart by the file's suffix.
"""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from sparse_serve.errors import DataError

SUFFIXES = (".tsv", ".csv", ".jsonl")
PLAIN_SUFFIX = ".txt"

Record = Mapping[str, object]


def iter_records(path: Path, required: Sequence[str], *, plain: bool = False) -> Iterator[tuple[int, Record]]:
    """Yield (line the record starts in, record) for each record of a file, as they are asked for.

    Values are strings, in JSONL whatever the object holds. With `plain` also files of plain text: each line,
    blank or not, is a record of the one required column.

    Raises:
        DataError: the file is missing, unreadable, empty, of an unknown format, lacks a required column, or
            has a malformed record; errors name the line.
    """
    suffix = path.suffix.lower()
    accepted = (PLAIN_SUFFIX, *SUFFIXES) if plain else SUFFIXES
    if suffix not in accepted:
        raise DataError(f"data file {path} has suffix '{suffix}'; accepted are {', '.join(accepted)}")
    try:
        with path.open("rb") as stream:
            lines = _decoded_lines(path, stream)
            yield from _READERS[suffix](path, lines, required)
    except OSError as error:
        raise DataError(
            f"data file {path} cannot be read: {error.strerror or error}; give a readable file"
        ) from None


def text_of(source: Path | str, line: int, record: Record, column: str) -> str:
    """Return a record's text in `column`.

    Raises:
        DataError: the value is no text, or cannot be written as UTF-8.
    """
    value = record[column]
    if not isinstance(value, str):
        raise DataError(f"{source}, line {line}: column '{column}' holds {value!r:.80}; a text is needed")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DataError(f"{source}, line {line}: column '{column}' holds half a surrogate pair") from None
    return value


def _decoded_lines(path: Path, stream: IO[bytes]) -> Iterator[str]:
    number = 0
    for number, raw in enumerate(stream, start=1):
        try:
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}, line {number}: not UTF-8 (byte 0x{raw[error.start]:02x} at position "
                f"{error.start}); convert the file to UTF-8"
            ) from None
    if not number:
        needed = "one text" if path.suffix.lower() == PLAIN_SUFFIX else "a header and one record"
        raise DataError(f"data file {path} is empty; it needs {needed} per line")


def _rows(path: Path, lines: Iterator[str], required: Sequence[str]) -> Iterator[tuple[int, Record]]:
    if path.suffix.lower() == ".tsv":
        reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(lines, strict=True)
    line = 1
    try:
        header = next(reader)
        _require(path, line, header, required)
        if len(set(header)) < len(header):
            raise DataError(
                f"{path}, line 1: a column name occurs twice ({', '.join(header)}); name each once"
            )
        line = reader.line_num + 1
        for fields in reader:
            if fields and len(fields) != len(header):
                raise DataError(
                    f"{path}, line {line}: {len(fields)} fields where the header has {len(header)} "
                    f"({', '.join(header)})"
                )
            if fields:
                yield line, dict(zip(header, fields, strict=True))
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}, line {line}: not a well-formed table: {error}") from None


def _objects(path: Path, lines: Iterator[str], required: Sequence[str]) -> Iterator[tuple[int, Record]]:
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except RecursionError:
            raise DataError(f"{path}, line {line}: not JSON: nested too deeply") from None
        except ValueError as error:  # of the decoder, or of Python about a number of thousands of digits
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error).split(";")[0]
            raise DataError(
                f"{path}, line {line}: not JSON: {reason}; each line must be one object"
            ) from None
        if not isinstance(record, dict):
            raise DataError(f"{path}, line {line}: a JSON {type(record).__name__} where an object is needed")
        _require(path, line, list(record), required)
        yield line, record


def _lines(path: Path, lines: Iterator[str], required: Sequence[str]) -> Iterator[tuple[int, Record]]:
    column, *others = required
    if others:
        raise DataError(
            f"data file {path} is plain text, which has no column '{others[0]}'; leave out --text-pair-column"
        )
    for number, line in enumerate(lines, start=1):
        yield number, {column: line.rstrip("\r\n")}


_Reader = Callable[[Path, Iterator[str], Sequence[str]], Iterator[tuple[int, Record]]]
_READERS: Mapping[str, _Reader] = {".tsv": _rows, ".csv": _rows, ".jsonl": _objects, PLAIN_SUFFIX: _lines}


def _require(path: Path, line: int, present: Sequence[str], required: Sequence[str]) -> None:
    options = "--text-column" if len(required) == 1 else "--text-column and --text-pair-column"
    for name in required:
        if name not in present:
            raise DataError(
                f"{path}, line {line}: there is no column '{name}'; the columns are {', '.join(present)}: "
                f"name yours with {options}"
            )
