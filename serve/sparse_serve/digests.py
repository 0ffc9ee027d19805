"""Digests of files, by which records and manifests name them."""

import hashlib
from pathlib import Path


def file_digest(path: Path) -> str:
    """Return the sha256 of a file as 64 hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
