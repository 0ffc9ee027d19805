"""Labels of rows: what may name a class, and how names become indices of a model's labels."""

import json
import re
import reprlib
from collections.abc import Iterable

from sparse_serve.errors import DataError
from sparse_serve.rows import TextData, names_of
from sparse_serve.tasks.task import is_line

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def json_array(text: str) -> list[object] | None:
    """Return the JSON array that a text is, None where it is none."""
    if not text.lstrip().startswith("["):
        return None
    try:
        array = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return array if isinstance(array, list) else None


def sorted_labels(names: Iterable[str]) -> tuple[str, ...]:
    """Sort labels: by value where all are whole numbers, else by name."""
    known = set(names)
    if all(_INTEGER.fullmatch(name) for name in known):
        return tuple(sorted(known, key=lambda name: (int(name), name)))
    return tuple(sorted(known))


def name_in(value: object) -> str | None:
    """Return a JSON value as the name of a label, None where it is none."""
    name = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    return name if is_line(name) else None


def label_index(labels: tuple[str, ...], data: TextData) -> dict[str, int]:
    """Return the index among `labels` of each name in the file's rows.

    Where no label of the file is a known name and none of the model's is a number, whole numbers are
    taken as indices: a model that says negative/positive can be judged on a file that says 0/1.

    Raises:
        DataError: a label that the model does not know, with its line and value.
    """
    index = {name: number for number, name in enumerate(labels)}
    numbered = any(_INTEGER.fullmatch(name) for name in labels)
    if not numbered and not any(name in index for name in data.labels):
        index = {
            name: int(name)
            for name in data.labels
            if _INTEGER.fullmatch(name) and 0 <= int(name) < len(labels)
        }
    for row in data.rows:
        for name in names_of(row.label):
            if name not in index:
                raise DataError(
                    f"{data.source}, line {row.line}: label {reprlib.repr(name)} is not one of the "
                    f"model's {len(labels)} labels {reprlib.repr(list(labels))}, nor are its "
                    "labels their indices"
                )
    return index
