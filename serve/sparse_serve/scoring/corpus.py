"""What a job reads: which files, in which order, and that each has the columns."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath

import pyarrow as pa
from pyarrow.fs import FileInfo, FileType

from sparse_serve.errors import DataError
from sparse_serve.records import TABLES
from sparse_serve.scoring.reading import PARQUET, InputColumns, InputFile, Seen, format_of, look
from sparse_serve.scoring.storage import Location, is_pattern

ACCEPTED = (PARQUET, *TABLES)
# Files are looked at many at a time: behind a URL that is waiting.
_AT_A_TIME = 16
# Small files are read together: a part may have the rows of several.
_GROUP_BYTES = 4 << 20


@dataclass(frozen=True)
class Corpus:
    """Files of one format, by path.

    Attributes:
        files: all of them.
        columns: what is read of each row.
        rows: how many there are; None where only reading tells.
    """

    files: tuple[InputFile, ...]
    columns: InputColumns
    rows: int | None

    def groups(self) -> list[tuple[InputFile, ...]]:
        """Return the files as they are read: one after the other within a group."""
        groups: list[list[InputFile]] = []
        size = _GROUP_BYTES
        for file in self.files:
            if size >= _GROUP_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(file)
            size += file.size
        return [tuple(group) for group in groups]


def find_corpus(inputs: Sequence[str], columns: InputColumns, output: Location | None = None) -> Corpus:
    """Return the files that paths, folders, patterns and URLs name.

    What a job has written to `output`, a folder among them, is no input: it goes on with the same command.

    Raises:
        DataError: there is none, they are of several formats or of none that is read here, cannot be read, or
            lack a column.
    """
    found = {file.name: file for name in inputs for file in _files(name, output)}
    files = tuple(found[name] for name in sorted(found))
    formats: dict[str, str] = {}
    for file in files:
        formats.setdefault(format_of(file.name), file.name)
    if len(formats) > 1:
        (one, first), (other, second), *_ = formats.items()
        raise DataError(
            f"--input has files of several formats, {one} ({first}) and {other} ({second}); give those of "
            f"one, such as --input '*{one}'"
        )
    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        seen = list(threads.map(lambda file: look(file, columns), files))
    _require_same_types(files, seen, columns)
    rows = [each.rows for each in seen]
    return Corpus(
        files, columns, sum(count for count in rows if count is not None) if None not in rows else None
    )


def _files(name: str, output: Location | None) -> Iterator[InputFile]:
    """Yield the files that one `--input` names, without those of an output folder inside it."""
    given = Location.of(name)
    is_there = given.info().type != FileType.NotFound
    if is_there or not is_pattern(given.path):
        places = [given]
    else:
        places = [each for each in given.matching() if not _is_of(output, each)]
    if not is_there and not is_pattern(given.path):
        raise DataError(
            f"--input {name} is not there; give a file, a folder or a quoted pattern of {', '.join(ACCEPTED)}"
        )
    count = 0
    for place in places:
        info = place.info()
        if info.type == FileType.Directory:
            for each in _inside(place, None if output is not None and place.path == output.path else output):
                count += 1
                yield _input_file(place, each)
        else:
            if format_of(str(place)) not in ACCEPTED:
                raise DataError(
                    f"data file {place} has suffix '{format_of(str(place))}'; accepted are "
                    f"{', '.join(ACCEPTED)}"
                )
            count += 1
            yield _input_file(place, info)
    if not count:
        raise DataError(
            f"--input {name} has no data file; give a file, a folder or a quoted pattern of "
            f"{', '.join(ACCEPTED)}"
        )


def _inside(folder: Location, output: Location | None) -> Iterator[FileInfo]:
    """Yield the data files in a folder and those below it.

    Names that begin with . or _ are no data, nor is what lies in the output folder.
    """
    for info in folder.files(recursive=True):
        names = PurePosixPath(info.path).relative_to(folder.path).parts
        if format_of(info.path) not in ACCEPTED or any(name.startswith((".", "_")) for name in names):
            continue
        if not _is_of(output, folder.at(info.path)):
            yield info


def _is_of(output: Location | None, place: Location) -> bool:
    """Tell whether a place is the output folder, or in it."""
    if output is None or output.scheme != place.scheme:
        return False
    own, path = PurePosixPath(output.path), PurePosixPath(place.path)
    return own == path or own in path.parents


def _input_file(place: Location, info: FileInfo) -> InputFile:
    return InputFile(place.at(info.path), info.size or 0, info.mtime_ns)


def _require_same_types(files: Sequence[InputFile], seen: Sequence[Seen], columns: InputColumns) -> None:
    """See that what is kept has one type in all files: the output has."""
    for column in columns.keep.values():
        types: dict[pa.DataType, str] = {}
        for file, each in zip(files, seen, strict=True):
            types.setdefault(each.types[column], file.name)
        if len(types) > 1:
            (one, first), (other, second), *_ = types.items()
            raise DataError(
                f"column '{column}' is {one} in {first} and {other} in {second}; it can be kept where it has "
                "one type: leave out --keep, or score the files apart"
            )
