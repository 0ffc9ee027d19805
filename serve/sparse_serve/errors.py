"""The error tree: every error a user can cause is one of these, and carries the exit status of the CLI.

    SparseServeError            1
    ├── OptionError             2   an option out of its range
    ├── GateError               3   parity or quality gate not met
    ├── TaskError               1   what a model is said to answer: unknown here, or malformed
    ├── DataError               1   a data file: missing columns, bad labels, unreadable
    ├── CheckpointError         1   a checkpoint that cannot be loaded or exported
    │   └── UnsupportedTokenizerError   its tokenizer does what no op does
    ├── RepositoryError         1   a model repository or one of its entries
    ├── OpLibraryError          1   the op library: missing, foreign digest, wrong version
    ├── DeviceError             1   what is to compute: a GPU that is not there, cannot be used, or is full
    ├── ServerError             1   Triton cannot be started, or stopped answering
    ├── RequestError            1   the server refused a request
    │   └── RefusedTextError    1   one of its texts
    ├── JobError                1   a job on a corpus: another's folder, workers that died
    └── MissingPackageError     1   a package of another role than what is installed here

Messages are one line and say what was wrong, what was received, what is accepted and what to do.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pydantic import ValidationError

_SHOWN_CHARACTERS = 40
_MOST_CHARACTERS = 300


class SparseServeError(Exception):
    """Base of all errors that are reported to a user as one line."""

    exit_status: ClassVar[int] = 1


class OptionError(SparseServeError):
    """An option or argument is out of its range."""

    exit_status: ClassVar[int] = 2


class GateError(SparseServeError):
    """A parity or quality gate was not met; nothing was written."""

    exit_status: ClassVar[int] = 3


class TaskError(SparseServeError):
    """A task is unknown, its description or tokenizer is malformed, or a text is none that it answers."""


class DataError(SparseServeError):
    """A data file is unreadable, lacks a column, or holds a bad label."""


class CheckpointError(SparseServeError):
    """A checkpoint cannot be loaded or exported."""


class UnsupportedTokenizerError(CheckpointError):
    """A tokenizer does something that the tokenizer ops do not."""


class RepositoryError(SparseServeError):
    """A model repository or an entry of it is missing, malformed or not writable."""


class OpLibraryError(SparseServeError):
    """The op library is missing, has another digest than the installed one, or another version."""


class DeviceError(SparseServeError):
    """A GPU was asked for, and none is here, something in front of it is missing, or its memory is full."""


class ServerError(SparseServeError):
    """Triton was not found, did not become ready, or stopped answering."""


class RequestError(SparseServeError):
    """The server refused a request or could not be reached."""


class RefusedTextError(RequestError):
    """The server refused one text; the message gives its number, from 1, and how it starts.

    Attributes:
        reason: what the server said.
        row: which of the texts asked about it is, from 0.
        text: the text.
    """

    def __init__(self, reason: str, row: int, text: str) -> None:
        start = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
        super().__init__(f"{reason}; it is text {row + 1}, '{start}'")
        self.reason, self.row, self.text = reason, row, text


class JobError(SparseServeError):
    """A job on a corpus cannot have its output folder, or lost its workers."""


class MissingPackageError(SparseServeError):
    """A package is not installed that what was asked for needs."""


def refuse_without_effect(*without_effect: tuple[str, bool, Mapping[str, bool]]) -> None:
    """Refuse options that nothing is done with.

    Args:
        without_effect: a cause, whether it holds, and of options whether they were given.

    Raises:
        OptionError: a cause holds, and one of its options was given.
    """
    for cause, holds, options in without_effect:
        for option in (name for name, is_given in options.items() if holds and is_given):
            raise OptionError(f"{option} has no effect with {cause}; leave one of the two out")


def in_brief(said: object) -> str:
    """Return what another library says, which may quote a file, as a line that can be read."""
    message = " ".join(str(said).split())
    message = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in message)
    return message if len(message) <= _MOST_CHARACTERS else f"{message[:_MOST_CHARACTERS]}…"


def first_fault(error: "ValidationError") -> str:
    """Return where in a file the first fault is, and what is wrong there, as a line that can be read."""
    fault = error.errors()[0]
    where = in_brief(".".join(map(str, fault["loc"]))) or "the file"
    return f"{where}: {in_brief(fault['msg'].removeprefix('Value error, '))}"


def first_line(error: BaseException) -> str:
    """Return what an error says, without the lines below; its type's name where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
