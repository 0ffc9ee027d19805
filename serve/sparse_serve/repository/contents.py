"""Whether the files of a model repository are those that were exported, and nobody else can change them.

    every file     that a manifest records is there and has its digest; a version that none of the entry's
                   models has any more has been taken out of service
    no other       lies in the folders of an entry, and no code but the fronts that earlier versions wrote
    every link     leads to a file of the repository
    nothing        can be written by everybody
    a manifest     that is pinned from outside has that digest

Standard library only: `serve` and the image's entry point run the same.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path, PurePosixPath
from stat import S_IWOTH
from typing import NamedTuple

from sparse_serve.digests import file_digest

MANIFEST_NAME = "manifest.json"
# What can name a model: one folder, and nothing that a shell, a URL or a configuration reads in its own way.
MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
FRONT_NAME = "model.py"

FRONT_DIGESTS = frozenset(
    {
        "9c7bd59e86ea89e6fd984ee3da70cf67f6a053dbce1c8a780220c4ad34294380",
        "1d6da2df42db824c58d0ef81f019d6870cb11719080ec381f036d10a71ad9919",
        "2823364176fb31180648780c09f85f2fa7c1d9c132b8520db6025f72a62e69bc",
    }
)
"""sha256 of every `model.py` that a version of this package has written."""

_CODE = (".py", ".pyc", ".so")
_EXPORT_AGAIN = "export it again"


class Fault(NamedTuple):
    """What is wrong with a file, and what to do."""

    message: str
    remedy: str


class Contents(NamedTuple):
    """What an entry consists of.

    Attributes:
        models: the folders of its Triton models, the public one first.
        files: the manifest's: path relative to the repository → sha256.
        version: the manifest's.
        tuned: the files that may differ from their digest, as what counts in them is checked by itself.
    """

    models: Sequence[Path]
    files: Mapping[str, str]
    version: int
    tuned: Set[str]


def access_faults(model: Path) -> Iterator[Fault]:
    """Yield which links of a model lead elsewhere, and what of it everybody can write.

    Raises:
        OSError: something cannot be read.
    """
    repository = model.parent.resolve()
    for path in _below(model):
        name = _shown(path.relative_to(model.parent))
        if path.is_symlink() and (reason := _link_fault(path, repository)):
            yield Fault(f"{name} is a link to {_shown(path.readlink())}, {reason}", "put a copy in its place")
        elif path.stat().st_mode & S_IWOTH:
            yield Fault(f"{name} can be written by everybody", f"chmod -R o-w {model.parent}")


def file_faults(contents: Contents) -> Iterator[Fault]:
    """Yield which files of an entry are missing, changed, or not of the export.

    Raises:
        OSError: something cannot be read.
    """
    public = contents.models[0]
    repository = public.parent
    present = {
        path.relative_to(repository).as_posix()
        for model in contents.models
        for path in _below(model)
        if path.is_symlink() or not path.is_dir()
    }
    versions = [_versions(model) for model in contents.models]
    served = set().union(*versions)
    for name, digest in contents.files.items():
        if name not in present or not (repository / name).is_file():
            if not _is_out_of_service(name, served):
                yield Fault(f"{_shown(name)} is missing", _EXPORT_AGAIN)
        elif name not in contents.tuned and file_digest(repository / name) != digest:
            yield Fault(f"{name} has been changed since it was exported", _EXPORT_AGAIN)
    own = public / MANIFEST_NAME
    of_version = public / str(contents.version) / MANIFEST_NAME
    if of_version.is_file() and of_version.read_bytes() != own.read_bytes():
        yield Fault(f"{of_version.relative_to(repository)} is not the entry's {MANIFEST_NAME}", _EXPORT_AGAIN)
    manifests = {path.relative_to(repository).as_posix() for path in (own, of_version)}
    for name in sorted(present - contents.files.keys() - manifests):
        yield Fault(f"{_shown(name)} is not of the export", "remove it")
    for model, found in zip(contents.models, versions, strict=True):
        if found != versions[0]:
            yield Fault(
                f"{model.name} has the versions {_listed(found)}, {public.name} has {_listed(versions[0])}",
                _EXPORT_AGAIN,
            )


def read_pins(values: Iterable[str]) -> dict[str, str]:
    """Return the digests of manifests by the names of their entries, from `NAME=SHA256`.

    Raises:
        ValueError: one is none, or two pin the same entry to different digests.
    """
    pins: dict[str, str] = {}
    for value in values:
        if not re.fullmatch(f"{MODEL_NAME}=[0-9a-fA-F]{{64}}", value):
            raise ValueError(
                f"{value!r:.200} pins no manifest: give NAME=SHA256, whose 64 digits sparse-serve check shows"
            )
        name, digest = value.split("=")
        if pins.setdefault(name, digest.lower()) != digest.lower():
            raise ValueError(f"entry '{name}' is pinned to two manifests: give one of them")
    return pins


def pin_faults(repository: Path, pins: Mapping[str, str]) -> Iterator[Fault]:
    """Yield which entries are pinned to another manifest than they have, by name.

    Raises:
        OSError: a manifest cannot be read.
    """
    for name, digest in pins.items():
        manifest = repository / name / MANIFEST_NAME
        if not manifest.is_file():
            yield Fault(f"there is no entry '{name}', whose manifest is pinned", "export it, or pin another")
        elif (found := file_digest(manifest)) != digest:
            yield Fault(
                f"the manifest of '{name}' has the sha256 {found}, pinned is {digest}",
                "serve the one that was pinned, or pin this one if you trust it",
            )


def code_faults(models: Sequence[Path], *, is_legacy: bool) -> Iterator[Fault]:
    """Yield which files of an entry Triton would take for code; entries of earlier versions have a front.

    Raises:
        OSError: something cannot be read.
    """
    for model in models:
        for path in sorted(_reachable(model)):
            name = _shown(path.relative_to(model.parent))
            is_front = is_legacy and path.name == FRONT_NAME and model == models[0]
            if is_front and file_digest(path) in FRONT_DIGESTS:
                continue
            if is_front:
                yield Fault(f"{name} is no front that a version of sparse-serve wrote", _EXPORT_AGAIN)
            elif ".so" in path.suffixes or path.suffix in _CODE:
                yield Fault(f"{name} is code, which no entry has", "remove it")


def _below(path: Path) -> Iterator[Path]:
    """Yield a path and, in order, everything below it; what lies behind a link is not."""
    waiting = [path]  # and no recursion: folders can be nested deeper than that goes
    while waiting:
        path = waiting.pop()
        yield path
        if path.is_dir() and not path.is_symlink():
            waiting += sorted(path.iterdir(), reverse=True)


def _link_fault(link: Path, repository: Path) -> str | None:
    if not link.exists():
        return "which is not there"
    if not link.resolve().is_relative_to(repository):
        return "which is not in the repository"
    return "which is a folder" if link.is_dir() else None


def _is_out_of_service(name: str, served: Set[str]) -> bool:
    """Whether a file is of a version that none of the entry's models has any more."""
    folders = PurePosixPath(name).parts[1:-1]
    return any(folder.isdecimal() and folder not in served for folder in folders)


def _shown(path: Path | str) -> str:
    """Return a path as it stands in one line that somebody reads, whatever is in it."""
    return f"{str(path) if str(path).isprintable() else ascii(str(path)):.1000}"


def _versions(model: Path) -> set[str]:
    return {path.name for path in model.iterdir() if path.name.isdecimal() and path.is_dir()}


def _listed(versions: Set[str]) -> str:
    return ", ".join(sorted(versions, key=int)) or "none"


def _reachable(model: Path) -> Iterator[Path]:
    """Yield the files that Triton looks at in a model's folder: its own and those of its versions."""
    for path in model.iterdir():
        if path.is_dir() and path.name.isdecimal():
            yield from (inner for inner in path.iterdir() if inner.is_file())
        elif path.is_file():
            yield path
