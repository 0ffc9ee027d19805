"""Records of text files, one at a time.

    TABLES  .tsv        a header row, fields separated by tabs, no quoting at all
            .csv        a header row, RFC 4180 quoting
            .jsonl      one object per line
    PLAIN   .txt        one text per line
    SQUAD   .json       SQuAD 1.1 and 2.0: a record a question, with `id`, `question`, `context` and, where
                        the file has answers, the lists `answer` and `answer_start`
    CONLL   .conll .txt a line a token, which is its first column, its tag the last one; columns are separated
                        by tabs, or by blanks where a line has no tab. Blank lines and lines of -DOCSTART-
                        separate sentences. A record a sentence, with `tokens` and `tags`

All are UTF-8 and told apart by the file's suffix. Lines of comments before a sentence of CoNLL columns begin
with "# ", and are no tokens; "#" is one where a tag follows it: O, or a type with a prefix.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from sparse_serve.errors import DataError

Record = Mapping[str, object]

Format = Callable[[Path, Iterator[str], Sequence[str]], Iterator[tuple[int, Record]]]
"""Reads the records of a file from its lines; errors name the path and the required columns."""

_SQUAD_SUFFIX = ".json"
# The csv module takes 128 KiB unless told otherwise, and a context may be a book.
_LONGEST_FIELD = 2**31 - 1
_COLUMNS = re.compile(" +")
_DOCUMENT_START = "-DOCSTART-"
_TAG = re.compile("O|[A-Z]-.+")


def iter_records(
    path: Path, required: Sequence[str], formats: Mapping[str, Format] | None = None
) -> Iterator[tuple[int, Record]]:
    """Yield (line the record starts in, record) for each record of a file, as they are asked for.

    Values are strings, in JSON whatever the object holds. Of plain text each line, blank or not, is a record
    of the one required column. In the place of a line, a SQuAD file has the number of the question, from 1.

    Args:
        path: the file.
        required: the columns that every record must have.
        formats: what the file may be, by suffix; `TABLES` by default.

    Raises:
        DataError: the file is missing, unreadable, empty, of an unknown format, lacks a required column, or
            has a malformed record; errors name the line.
    """
    suffix = path.suffix.lower()
    accepted = TABLES if formats is None else formats
    if suffix not in accepted:
        raise DataError(f"data file {path} has suffix '{suffix}'; accepted are {', '.join(accepted)}")
    try:
        with path.open("rb") as stream:
            lines = _decoded_lines(path, stream)
            yield from accepted[suffix](path, lines, required)
    except OSError as error:
        raise DataError(
            f"data file {path} cannot be read: {error.strerror or error}; give a readable file"
        ) from None


def place(source: Path | str, number: int) -> str:
    """Return how messages name the record that `iter_records` gave this number."""
    is_squad = str(source).lower().endswith(_SQUAD_SUFFIX)
    return f"{source}, {'question' if is_squad else 'line'} {number}"


def text_of(source: Path | str, line: int, record: Record, column: str) -> str:
    """Return a record's text in `column`.

    Raises:
        DataError: the value is no text, or cannot be written as UTF-8.
    """
    value = record[column]
    if not isinstance(value, str):
        raise DataError(f"{place(source, line)}: column '{column}' holds {value!r:.80}; a text is needed")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DataError(f"{place(source, line)}: column '{column}' holds half a surrogate pair") from None
    return value


def object_of(source: Path | str, line: int, text: str) -> Record:
    """Return the record that a line of JSONL is.

    Raises:
        DataError: it is no JSON object.
    """
    record = _json(text, f"{source}, line {line}", "each line must be one object")
    if not isinstance(record, dict):
        raise DataError(f"{source}, line {line}: a JSON {type(record).__name__} where an object is needed")
    return record


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
        raise DataError(f"data file {path} is empty; it needs one record or more")


def table_rows(
    path: Path, lines: Iterator[str], check: Callable[[Sequence[str]], None]
) -> Iterator[tuple[int, Record | DataError]]:
    """Yield the rows of a TSV or CSV file as `iter_records` does, or what is wrong with the fields of one.

    `check` is given the header, and raises for one that lacks a column.

    Raises:
        DataError: the header has a column twice, or the quoting is malformed: it does not show where the next
            row begins.
    """
    csv.field_size_limit(_LONGEST_FIELD)
    if path.suffix.lower() == ".tsv":
        reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(lines, strict=True)
    line = 1
    try:
        header = next(reader)
        check(header)
        if len(set(header)) < len(header):
            raise DataError(
                f"{path}, line 1: a column name occurs twice ({', '.join(header)}); name each once"
            )
        line = reader.line_num + 1
        for fields in reader:
            if len(fields) == len(header):
                yield line, dict(zip(header, fields, strict=True))
            elif fields:
                yield (
                    line,
                    DataError(
                        f"{path}, line {line}: {len(fields)} fields where the header has {len(header)} "
                        f"({', '.join(header)})"
                    ),
                )
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}, line {line}: not a well-formed table: {error}") from None


def _rows(path: Path, lines: Iterator[str], required: Sequence[str]) -> Iterator[tuple[int, Record]]:
    for line, record in table_rows(path, lines, partial(_require, path, 1, required)):
        if isinstance(record, DataError):
            raise record
        yield line, record


def _objects(path: Path, lines: Iterator[str], required: Sequence[str]) -> Iterator[tuple[int, Record]]:
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        record = object_of(path, line, text)
        _require(path, line, required, list(record))
        yield line, record


def _lines(path: Path, lines: Iterator[str], required: Sequence[str]) -> Iterator[tuple[int, Record]]:
    column, *others = required
    if others:
        raise DataError(
            f"data file {path} is plain text, which has no column '{others[0]}'; leave out --text-pair-column"
        )
    for number, line in enumerate(lines, start=1):
        yield number, {column: line.rstrip("\r\n")}


def _questions(path: Path, lines: Iterator[str], required: Sequence[str]) -> Iterator[tuple[int, Record]]:
    squad = _json("".join(lines), str(path), "a SQuAD file is one object")
    number = 0
    for article_number, article in enumerate(_member(path, squad, "", "data")):
        article_place = f"data[{article_number}]"
        for paragraph_number, paragraph in enumerate(_member(path, article, article_place, "paragraphs")):
            where = f"{article_place}.paragraphs[{paragraph_number}]"
            for question in _member(path, paragraph, where, "qas"):
                number += 1
                record = _question(place(path, number), question)
                record["context"] = paragraph.get("context")
                _require(path, number, required, list(record))
                yield number, record


def _member(path: Path, part: object, where: str, name: str) -> list[Any]:
    """Return a list inside a SQuAD file.

    Raises:
        DataError: it is not there, or no list.
    """
    value = part.get(name) if isinstance(part, dict) else None
    if not isinstance(value, list):
        inside = f"{where} has no list '{name}'" if where else f"it has no list '{name}'"
        raise DataError(
            f"{path}: not SQuAD's JSON: {inside}; it is an object with data, a list of articles with "
            "paragraphs of a context and its qas"
        )
    return value


def _question(where: str, question: object) -> dict[str, object]:
    """Return the record of one entry of `qas`, without its context."""
    if not isinstance(question, dict):
        raise DataError(f"{where}: a JSON {type(question).__name__} where a question is needed, an object")
    record: dict[str, object] = {"question": question.get("question")}
    if "id" in question:
        record["id"] = question["id"]
    answers = question.get("answers")
    is_impossible = question.get("is_impossible", False)
    if not isinstance(is_impossible, bool):
        raise DataError(f"{where}: is_impossible is {is_impossible!r:.80}; true or false is needed")
    if answers is None:
        return record | {"answer": [], "answer_start": []} if is_impossible else record
    if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
        raise DataError(f"{where}: its answers are {answers!r:.80}; a list of objects is needed")
    if answers and is_impossible:
        raise DataError(f"{where}: it is_impossible, but has {len(answers)} answers; give one or the other")
    for answer in answers:
        for name in ("text", "answer_start"):
            if name not in answer:
                raise DataError(f"{where}: an answer has no '{name}', only {', '.join(answer) or 'nothing'}")
    return record | {
        "answer": [answer["text"] for answer in answers],
        "answer_start": [answer["answer_start"] for answer in answers],
    }


def _sentences(path: Path, lines: Iterator[str], required: Sequence[str]) -> Iterator[tuple[int, Record]]:
    _require(path, 1, required, ["tokens", "tags"])
    start, tokens, tags, width = 1, list[str](), list[str](), 2
    for number, raw in enumerate(lines, start=1):
        line = raw.strip(" \t\r\n")
        fields = _fields(raw)
        if not line or fields[0] == _DOCUMENT_START:
            if tokens:
                yield start, {"tokens": tokens, "tags": tags}
            tokens, tags = [], []
            continue
        if not tokens:
            if line.startswith("# ") and not (len(fields) == width and _TAG.fullmatch(fields[-1])):
                continue
            start = number
        if len(fields) < 2:
            raise DataError(
                f"{path}, line {number}: {line!r:.80} is one column; a token and its tag are needed, or a "
                "blank line between sentences"
            )
        width = len(fields)
        tokens.append(fields[0])
        tags.append(fields[-1])
    if tokens:
        yield start, {"tokens": tokens, "tags": tags}


def _fields(line: str) -> list[str]:
    line = line.rstrip("\r\n")
    return line.split("\t") if "\t" in line else _COLUMNS.split(line.strip(" "))


TABLES: dict[str, Format] = {".tsv": _rows, ".csv": _rows, ".jsonl": _objects}
PLAIN: dict[str, Format] = {".txt": _lines}
SQUAD: dict[str, Format] = {_SQUAD_SUFFIX: _questions}
CONLL: dict[str, Format] = {".conll": _sentences, ".txt": _sentences}
SUFFIXES = frozenset({*TABLES, *PLAIN, *SQUAD, *CONLL})


class _TwiceError(Exception):
    """A JSON object has a key twice, of which a parser would keep the last without a word."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _TwiceError(f"the key {next(n for n in found if names.count(n) > 1)!r:.80} is there twice")
    return found


def _json(text: str, where: str, needed: str) -> Any:
    """Return the JSON value that a text is.

    Raises:
        DataError: it is none.
    """
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise DataError(f"{where}: not JSON: nested too deeply") from None
    except _TwiceError as error:
        raise DataError(f"{where}: {error}; give each key once") from None
    except ValueError as error:  # of the decoder, or of Python about a number of thousands of digits
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error).split(";")[0]
        raise DataError(f"{where}: not JSON: {reason}; {needed}") from None


def _require(path: Path, line: int, required: Sequence[str], present: Sequence[str]) -> None:
    options = "--text-column" if len(required) == 1 else "--text-column and --text-pair-column"
    for name in required:
        if name not in present:
            raise DataError(
                f"{place(path, line)}: there is no column '{name}'; the columns are {', '.join(present)}: "
                f"name yours with {options}"
            )
