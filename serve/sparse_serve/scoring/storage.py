"""Files and folders by path or URL, on any filesystem that Arrow or fsspec knows."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Self

import pyarrow as pa
from pyarrow.fs import (
    FileInfo,
    FileSelector,
    FileSystem,
    FileType,
    FSSpecHandler,
    LocalFileSystem,
    PyFileSystem,
)

from sparse_serve.errors import DataError, first_line
from sparse_serve.files import unfinished

_URL = "://"
_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True)
class Location:
    """A file or folder.

    Attributes:
        filesystem: that it is on.
        path: its name there.
        scheme: of its URL; empty on this machine's own filesystem.
    """

    filesystem: FileSystem
    path: str
    scheme: str = ""

    @classmethod
    def of(cls, name: str) -> Self:
        """Return what a path or a URL names, whether it is there or not; a path becomes absolute.

        Raises:
            DataError: it is not UTF-8, or nothing here knows the URL's scheme.
        """
        if _URL not in name:
            return cls(LocalFileSystem(), _utf8(str(Path(name).absolute())))
        _utf8(name)
        scheme = name.partition(_URL)[0]
        try:
            filesystem, path = FileSystem.from_uri(name)
        except pa.ArrowInvalid:
            filesystem, path = _of_fsspec(name)
        except (OSError, ValueError) as error:
            raise DataError(f"{name} cannot be reached: {first_line(error)}") from error
        return cls(filesystem, path, "" if isinstance(filesystem, LocalFileSystem) else scheme)

    def __str__(self) -> str:
        return f"{self.scheme}{_URL}{self.path}" if self.scheme and _URL not in self.path else self.path

    def at(self, path: str) -> "Location":
        """Return another path of the same filesystem."""
        return Location(self.filesystem, path, self.scheme)

    def child(self, name: str) -> "Location":
        """Return what is inside a folder."""
        return self.at(f"{self.path.rstrip('/')}/{name}")

    def info(self) -> FileInfo:
        """Return what is known of it.

        Raises:
            DataError: the filesystem cannot be asked.
        """
        try:
            return self.filesystem.get_file_info([self.path])[0]
        except OSError as error:
            raise DataError(f"{self} cannot be reached: {first_line(error)}") from error

    def files(self, *, recursive: bool = False) -> list[FileInfo]:
        """Return what a folder holds, by path; nothing where there is none.

        Raises:
            DataError: it cannot be read.
        """
        return sorted(
            (info for info in self._listed(recursive) if info.type == FileType.File),
            key=lambda info: info.path,
        )

    def matching(self) -> Iterator["Location"]:
        """Yield what a pattern names: `*`, `?` and `[…]` stand for characters of one name, `?` in no URL.

        Raises:
            DataError: a folder cannot be read.
        """
        parts = self.path.split("/")
        first = next((number for number, part in enumerate(parts) if _WILDCARDS & {*part}), None)
        if first is None:
            yield self
            return
        rest = parts[first + 1 :]
        for info in self.at("/".join(parts[:first]) or "/")._listed(recursive=False):
            is_hidden = info.base_name.startswith(".")
            leads_on = not rest or info.type == FileType.Directory
            if leads_on and not is_hidden and fnmatchcase(info.base_name, parts[first]):
                yield from self.at("/".join([info.path.rstrip("/"), *rest])).matching()

    def write(self, content: bytes) -> None:
        """Write a file whole: beside, then renamed into place.

        Raises:
            OSError: it cannot be written.
        """
        folder, _, name = self.path.rpartition("/")
        beside = self.at(f"{folder}/{unfinished(name)}")
        with self.filesystem.open_output_stream(beside.path, compression=None) as stream:
            stream.write(content)
        self.filesystem.move(beside.path, self.path)

    def _listed(self, recursive: bool) -> list[FileInfo]:
        try:
            selector = FileSelector(self.path, allow_not_found=True, recursive=recursive)
            found = list(self.filesystem.get_file_info(selector))
            for info in found:
                info.path  # noqa: B018  decoded only where it is read
        except OSError as error:
            raise DataError(f"folder {self} cannot be read: {first_line(error)}") from error
        except UnicodeDecodeError as error:
            raise DataError(
                f"folder {self} holds {error.object!r}, a name that is not UTF-8; rename it, or move it "
                "elsewhere"
            ) from error
        return found


def is_pattern(name: str) -> bool:
    """Whether a path has wildcards."""
    return bool(_WILDCARDS & {*name})


def _utf8(name: str) -> str:
    """Return a path or URL, which Arrow takes in UTF-8 alone.

    Raises:
        DataError: it is not.
    """
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"the name {name} is not UTF-8; rename what it is of") from error
    return name


def _of_fsspec(name: str) -> tuple[FileSystem, str]:
    import fsspec  # noqa: PLC0415  not needed by who has no such URL

    try:
        filesystem, path = fsspec.core.url_to_fs(name)
    except (ImportError, ValueError, OSError) as error:
        raise DataError(f"{name} cannot be reached: {first_line(error)}") from error
    return PyFileSystem(FSSpecHandler(filesystem)), path
