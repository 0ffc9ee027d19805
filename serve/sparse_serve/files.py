"""Files that are written whole or not at all: beside, then renamed into place."""

import re
from contextlib import suppress
from pathlib import Path
from uuid import uuid4


def write_whole(path: Path, text: str, mode: int | None = None) -> None:
    """Write a text file in UTF-8, with permissions that are given; whoever reads it sees the old or the new.

    Raises:
        OSError: it cannot be written; it is as it was then.
    """
    beside = path.with_name(unfinished(path.name))
    try:
        beside.write_bytes(text.encode())
        if mode is not None:
            beside.chmod(mode)
        beside.replace(path)
    finally:  # where it has not become the file
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def unfinished(name: str) -> str:
    """Return what a file is called until it is whole, another name each time."""
    return f".{name}.{uuid4().hex}.tmp"


def is_unfinished(name: str) -> bool:
    """Whether a file of this name is one that its writer has not come to the end of, or was killed before."""
    return re.fullmatch(r"\..+\.[0-9a-f]{32}\.tmp", name, re.DOTALL) is not None
