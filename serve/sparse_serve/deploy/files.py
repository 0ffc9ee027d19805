"""Files that a deployment consists of: made from templates, and written so that nobody's edits are lost."""

import json
import math
from collections.abc import Collection, Mapping
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from sparse_serve import __version__
from sparse_serve.digests import file_digest
from sparse_serve.errors import SparseServeError
from sparse_serve.files import is_unfinished, write_whole

RECORD = "deploy.json"


def render(template: str, **values: Any) -> str:
    """Return a template of this package with its values filled in.

    The filter `json` makes a value a string of YAML, as which an entry called `true` must be written too;
    `compose` makes it one of a Compose file, where a $ alone is a variable's. `ms` writes seconds as HAProxy
    and Compose read them, `mebi` bytes as Kubernetes does.
    """
    environment = Environment(
        loader=FunctionLoader(_source),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["json"] = lambda value: json.dumps(str(value), ensure_ascii=False)
    environment.filters["compose"] = lambda value: json.dumps(str(value), ensure_ascii=False).replace(
        "$", "$$"
    )
    environment.filters["ms"] = lambda seconds: f"{round(seconds * 1000)}ms"
    environment.filters["mebi"] = lambda size: f"{math.ceil(size / (1 << 20))}Mi"
    return environment.get_template(template).render(values)


def _source(template: str) -> str:
    return files("sparse_serve").joinpath("deploy", "templates", template).read_text(encoding="utf-8")


def write_files(folder: Path, content: Mapping[str, str], *, force: bool = False) -> list[Path]:
    """Write files, by path below `folder`, and a record of them; return their paths, the record last.

    Each is whole or as it was. A folder that holds anything else than what was written before, or was being
    written when it was interrupted, is left as it is, unless with `force`.

    Raises:
        SparseServeError: it holds something else, or cannot be written.
    """
    try:
        former = _record(folder)
        left = _unfinished_files(folder, {RECORD, *former, *content})
        if not force:
            _refuse_others(folder, former, left)
        digests = {name: sha256(text.encode()).hexdigest() for name, text in sorted(content.items())}
        # Until all are written, each file may be the former or the new one, and both are this command's.
        _write(folder, RECORD, _as_record(digests, former))
        for path in left:
            path.unlink(missing_ok=True)
        for name, text in content.items():
            _write(folder, name, text)
        for name in former.keys() - content.keys():
            (folder / name).unlink(missing_ok=True)
        _write(folder, RECORD, _as_record(digests))
    except OSError as error:
        raise SparseServeError(
            f"--output-dir {folder} cannot be written: {error.strerror} ({error.filename}); give another"
        ) from error
    return [folder / name for name in (*content, RECORD)]


def _as_record(digests: Mapping[str, str], former: Mapping[str, Collection[str]] | None = None) -> str:
    record: dict[str, Any] = {"sparse_serve": __version__, "files": digests}
    if former:
        record["former"] = {name: sorted(each) for name, each in sorted(former.items())}
    return json.dumps(record, indent=2) + "\n"


def _record(folder: Path) -> dict[str, set[str]]:
    """Return the digests that each file has that was written into the folder before; of none, nothing.

    Where the writing was interrupted, a file has any of several.
    """
    try:
        recorded = json.loads((folder / RECORD).read_bytes())
        found = {name: {*map(str, digests)} for name, digests in recorded.get("former", {}).items()}
        for name, digest in recorded["files"].items():
            found.setdefault(name, set()).add(str(digest))
    except (FileNotFoundError, NotADirectoryError, ValueError, LookupError, TypeError, AttributeError):
        return {}
    return found if all(_is_inside(name) for name in found) else {}


def _is_inside(name: str) -> bool:
    path = Path(name)
    return not path.is_absolute() and ".." not in path.parts


def _refuse_others(folder: Path, former: Mapping[str, Collection[str]], left: Collection[Path]) -> None:
    """Refuse a folder in which a file is not what was written there before, or left by a killed writer.

    Raises:
        SparseServeError: one is not.
        OSError: the folder cannot be read.
    """
    if not folder.exists():
        return
    found = sorted(path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir())
    for path in found:
        if folder / path in left or (str(path) == RECORD and former):
            continue
        if file_digest(folder / path) not in former.get(str(path), ()):
            raise SparseServeError(
                f"--output-dir {folder} holds {path}, which deploy did not write, or not as it is now: give "
                "another folder, or --force to write over what deploy writes"
            )


def _unfinished_files(folder: Path, names: Collection[str]) -> set[Path]:
    """Return what is left of files of these names, below `folder`, whose writer was killed."""
    paths = [folder / name for name in names]
    found = (left for path in paths for left in path.parent.glob(f".{path.name}.*.tmp"))
    return {path for path in found if is_unfinished(path.name)}


def _write(folder: Path, name: str, text: str) -> None:
    """Write a file below `folder` that users of containers can read."""
    path = folder / name
    _make_folder(folder, path.parent)
    write_whole(path, text, 0o644)


def _make_folder(outermost: Path, folder: Path) -> None:
    """Make a folder, and those that it is in, for all to read; one that is there already keeps its mode."""
    if folder.is_dir():
        return
    if folder != outermost:
        _make_folder(outermost, folder.parent)
    folder.mkdir(parents=True)
    folder.chmod(0o755)
