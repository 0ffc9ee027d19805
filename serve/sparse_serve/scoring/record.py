"""`job.json`: which job an output folder belongs to, and whether it is done."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Self

import pyarrow as pa
from pyarrow.fs import FileType, LocalFileSystem
from pydantic import BaseModel, ConfigDict, ValidationError

from sparse_serve.digests import file_digest
from sparse_serve.errors import JobError, first_line
from sparse_serve.files import is_unfinished
from sparse_serve.repository.entries import Entry, manifest_path
from sparse_serve.scoring.storage import Location

RECORD_NAME = "job.json"
SCHEMA_VERSION: Literal[1] = 1


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileRecord(_Record):
    """A file of the input; `modified` in nanoseconds since 1970, where the filesystem tells."""

    name: str
    size: int
    modified: int | None


class EntryRecord(_Record):
    """The entry that answers; `sha256` is of its version's manifest, which has those of its files."""

    name: str
    version: int
    sha256: str

    @classmethod
    def of(cls, entry: Entry, version: int) -> Self:
        """Return the record of a version, which stays the same where another one is exported."""
        digest = file_digest(manifest_path(entry.path, version))
        return cls(name=entry.name, version=version, sha256=digest)


class Summary(_Record):
    """What became of a job's rows.

    Attributes:
        rows: in the output.
        parts: files that they are in.
        kept: of these, files that were there when this run began.
        tokens: that the model saw.
        truncated: rows whose text the model did not see whole.
        refused: rows that were not answered, by reason.
        scored: rows that this run answered or refused.
        seconds: that this run took, from the first reader's start to the last part.
        texts_per_second: of this run; None where it had nothing to do.
        tokens_per_second: of this run; None where it had nothing to do.
    """

    rows: int
    parts: int
    kept: int
    tokens: int
    truncated: int
    refused: dict[str, int]
    scored: int
    seconds: float
    texts_per_second: float | None
    tokens_per_second: float | None


class JobRecord(_Record):
    """A job.

    Attributes:
        package: the version of sparse-serve.
        entry: that answers.
        columns: read from the input, by what they are to the model.
        task: that all texts are of, if one was named.
        keep: further columns of the input, by their names in the output.
        part_rows: how many rows a part has at most.
        files: of the input, in the order of the output's parts.
        state: `finished` once every row is in the output.
        summary: of the run that finished it.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    state: Literal["running", "finished"] = "running"
    package: str
    entry: EntryRecord
    columns: dict[str, str]
    task: str | None
    keep: dict[str, str]
    part_rows: int
    files: tuple[FileRecord, ...]
    summary: Summary | None = None


def claim_folder(folder: Location, job: JobRecord) -> JobRecord:
    """Make a folder this job's, or find that it is; return its record: that of an earlier run, or `job`.

    Raises:
        JobError: it belongs to another job or to none, or cannot be written.
    """
    try:
        if folder.info().type == FileType.File:
            raise JobError(f"--output {folder} is a file; give a folder")
        folder.filesystem.create_dir(folder.path, recursive=True)
        names = [info.base_name for info in folder.files() if not is_unfinished(info.base_name)]
        if RECORD_NAME in names:
            return _same(folder, job)
        if names:
            more = " and other files" if names[1:] else ""
            raise JobError(
                f"--output {folder} has {names[0]}{more}, but no {RECORD_NAME}: it is no job's; give a new "
                "or empty folder"
            )
        write_record(folder, job)
    except OSError as error:
        raise JobError(f"--output {folder} cannot be written: {first_line(error)}; give another") from error
    return job


@contextmanager
def alone_in(folder: Location) -> Iterator[None]:
    """Keep other runs of the job, which would do the same parts, out of its folder on this machine.

    However the run ends, the folder is free again.

    Raises:
        JobError: another run is at work in it.
    """
    if not isinstance(folder.filesystem, LocalFileSystem):
        yield
        return
    lock = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise JobError(f"another run of this job is at work in --output {folder}: wait for its end") from None
    except OSError:  # a network's filesystem without locks
        pass
    try:
        yield
    finally:
        os.close(lock)


def write_record(folder: Location, job: JobRecord) -> None:
    """Write a folder's record.

    Raises:
        OSError: it cannot be written.
    """
    folder.child(RECORD_NAME).write((job.model_dump_json(indent=2) + "\n").encode())


def remove_unfinished(folder: Location) -> None:
    """Remove what killed workers left beside the parts, once no part is missing."""
    for info in folder.files():
        if is_unfinished(info.base_name):
            folder.filesystem.delete_file(info.path)


def _same(folder: Location, job: JobRecord) -> JobRecord:
    """Return the record of a folder whose job this is.

    Raises:
        JobError: it is another's, or its record cannot be read.
    """
    place = folder.child(RECORD_NAME)
    try:
        with folder.filesystem.open_input_file(place.path) as file:
            found = JobRecord.model_validate_json(file.read())
    except (pa.ArrowException, ValidationError) as error:
        raise JobError(
            f"{place} is no record of a job ({first_line(error)}); give another --output"
        ) from error
    difference = next(_differences(found, job), None)
    if difference is not None:
        raise JobError(
            f"--output {folder} is of another job, {difference}; give a new or empty folder, or the options "
            "of that job"
        )
    return found


def _differences(found: JobRecord, job: JobRecord) -> Iterator[str]:
    """Yield what two jobs differ in."""
    if found.entry != job.entry:
        yield f"of {_named(found.entry)} where this one is of {_named(job.entry)}"
    for what, before, now in (
        ("reads the columns", found.columns, job.columns),
        ("keeps", found.keep, job.keep),
        ("has parts of so many rows:", found.part_rows, job.part_rows),
        ("is of task", found.task, job.task),
        ("is of sparse-serve", found.package, job.package),
    ):
        if before != now:
            yield f"which {what} {_shown(before)}, this one {_shown(now)}"
    before_files, files = ({file.name: file for file in record.files} for record in (found, job))
    for name in sorted({*before_files, *files}):
        if name not in files:
            yield f"which reads {name} too"
        elif name not in before_files:
            yield f"which does not read {name}"
        elif before_files[name] != files[name]:
            yield f"which read {name} before it was changed"


def _named(entry: EntryRecord) -> str:
    return f"entry {entry.name}, version {entry.version}, sha256 {entry.sha256[:8]}…"


def _shown(value: object) -> str:
    return ", ".join(map(str, value.values())) or "none" if isinstance(value, dict) else str(value)
