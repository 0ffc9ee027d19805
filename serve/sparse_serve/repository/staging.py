"""Folders that appear in a repository whole or not at all, even when the writer is killed half-way.

The new state of an entry's folders is prepared in a staging folder, flushed to disk and marked complete;
then the folders are renamed into place, the replaced ones first moved out. Whatever an interruption leaves,
`heal` finishes (complete) or discards (incomplete).

The staging folder lies beside the repository, because Triton takes any folder inside for a model and
refuses to start; only where that is another file system or not writable does it lie inside.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from sparse_serve.errors import RepositoryError

_COMPLETE = "complete"
_NEW = "new"
_OLD = "old"
# Others remove a folder once: who comes after them finds it locked.
_ATTEMPTS = 2


@contextmanager
def replaced_folders(repository: Path, name: str) -> Iterator[Path]:
    """Yield an empty folder; the folders put into it replace the repository's folders of those names.

    In the place of an empty one there is none afterwards.

    Folders leave the repository in alphabetical order and come in reversed, so the public `NAME` never
    stands beside a `NAME_model` it was not written with. On an exception nothing is changed.

    Raises:
        RepositoryError: another process is writing the same entry, or another user began to.
        OSError: the repository cannot be written.
    """
    repository.mkdir(parents=True, exist_ok=True)
    heal(repository)
    staging = _home(repository) / name
    with ExitStack() as stack:
        if not any(stack.enter_context(_made(staging)) for _ in range(_ATTEMPTS)):
            raise RepositoryError(
                f"another process is writing entry '{name}' in {repository}: wait for it to end"
            )
        if _is_of_others(staging, repository):
            raise RepositoryError(
                f"{staging} is of another user, whose export of entry '{name}' was interrupted: have them "
                "export it again, or remove the folder"
            )
        try:
            new = staging / _NEW
            new.mkdir()
            yield new
            _flush(new)
            (staging / _COMPLETE).touch()
            _flush(staging)
        except BaseException:
            _discard(staging)
            raise
        _install(repository, staging)


def heal(repository: Path) -> None:
    """Finish or discard what interrupted writers left; leave alone what a live one is working on.

    What others than this user and the owner of the repository have left beside it is left alone too: whoever
    may write there could put an entry into the repository.

    Raises:
        OSError: the repository cannot be written.
    """
    for staging in sorted(_home(repository).glob("*")):
        with suppress(FileNotFoundError):
            if _is_of_others(staging, repository):
                continue
        with _locked(staging) as owned:
            if owned and (staging / _COMPLETE).exists():
                _install(repository, staging)
            elif owned:
                _discard(staging)


def _is_of_others(staging: Path, repository: Path) -> bool:
    """Whether a staging folder beside a repository is neither this user's nor the repository's owner's."""
    is_inside = staging.parent.parent == repository.resolve()
    return not is_inside and staging.stat().st_uid not in (os.geteuid(), repository.stat().st_uid)


def _home(repository: Path) -> Path:
    repository = repository.resolve()
    parent = repository.parent
    is_beside = os.access(parent, os.W_OK) and not _is_mount(repository)
    return parent / f".{repository.name}.staging" if is_beside else repository / ".staging"


def _is_mount(folder: Path) -> bool:
    """Whether something is mounted at `folder`; `Path.is_mount` overlooks binds of the same file system."""
    if folder.is_mount():
        return True
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    # The fifth field is the mount point, with blanks in octal.
    points = {line.split(" ")[4] for line in mounts.splitlines()}
    return str(folder).replace("\\", "\\134").replace(" ", "\\040") in points


@contextmanager
def _made(folder: Path) -> Iterator[bool]:
    """Make a folder and lock it: another process that heals, or ends, may remove it before, or its parent."""
    with suppress(FileNotFoundError):
        folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder) as owned:
        yield owned


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Yield whether this process got the folder's lock, which the kernel releases if it dies."""
    with ExitStack() as stack:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, descriptor)
            flock(descriptor, LOCK_EX | LOCK_NB)
            # A lock on a folder that its former owner has just removed guards nothing.
            owned = os.path.samestat(os.fstat(descriptor), folder.stat())
        except (BlockingIOError, FileNotFoundError):
            owned = False
        yield owned


def _install(repository: Path, staging: Path) -> None:
    """Rename complete folders into place; run again after an interruption, it ends in the same state."""
    new, old = staging / _NEW, staging / _OLD
    old.mkdir(exist_ok=True)
    names = sorted(path.name for path in new.iterdir())
    for name in names:
        if (repository / name).exists():
            (repository / name).rename(old / name)
    for name in reversed(names):
        if any((new / name).iterdir()):
            (new / name).rename(repository / name)
    _flush_one(repository)
    # What is left has no value any more, and must not look complete while it goes.
    (staging / _COMPLETE).unlink()
    _discard(staging)


def _discard(staging: Path) -> None:
    shutil.rmtree(staging, ignore_errors=True)
    with suppress(OSError):  # other entries may be in the making
        staging.parent.rmdir()


def _flush(folder: Path) -> None:
    for root, _, names in os.walk(folder):
        for path in (*(Path(root, name) for name in names), Path(root)):
            _flush_one(path)


def _flush_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
