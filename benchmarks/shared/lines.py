"""The lines of a result, and the CSV file that they lie in; of the standard library alone."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Line = dict[str, str]


def read_lines(path: Path) -> list[Line]:
    """Return the lines of a file, none where it is not there."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write lines, with a column for every name that any of them has; the file is whole or as it was."""
    names = list(dict.fromkeys(name for line in lines for name in line))
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    with beside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    beside.replace(path)
