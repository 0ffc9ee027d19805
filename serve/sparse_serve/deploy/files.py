"""Files that a deployment consists of: made from templates, and written so that nobody's edits are lost."""

import json
import math
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from sparse_serve import __version__
from sparse_serve.digests import file_digest
from sparse_serve.errors import SparseServeError

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

    A folder that holds anything else than what was written before is left as it is, unless with `force`.

    Raises:
        SparseServeError: it holds something else, or cannot be written.
    """
    try:
        former = _record(folder)
        if not force:
            _refuse_others(folder, former)
        for name in former.keys() - content.keys():
            (folder / name).unlink(missing_ok=True)
        for name, text in content.items():
            _write(folder / name, text)
        digests = {name: file_digest(folder / name) for name in sorted(content)}
        record = {"sparse_serve": __version__, "files": digests}
        _write(folder / RECORD, json.dumps(record, indent=2) + "\n")
    except OSError as error:
        raise SparseServeError(
            f"--output-dir {folder} cannot be written: {error.strerror} ({error.filename}); give another"
        ) from error
    return [folder / name for name in (*content, RECORD)]


def _record(folder: Path) -> dict[str, str]:
    """Return the digests of what was written into the folder before; empty where nothing was."""
    try:
        recorded = json.loads((folder / RECORD).read_bytes())["files"]
    except (FileNotFoundError, NotADirectoryError, ValueError, LookupError, TypeError):
        return {}
    is_ours = isinstance(recorded, dict) and all(_is_inside(name) for name in recorded)
    return recorded if is_ours else {}


def _is_inside(name: str) -> bool:
    path = Path(name)
    return not path.is_absolute() and ".." not in path.parts


def _refuse_others(folder: Path, former: Mapping[str, str]) -> None:
    """Refuse a folder in which a file is not what was written there before.

    Raises:
        SparseServeError: one is not.
        OSError: the folder cannot be read.
    """
    if not folder.exists():
        return
    found = sorted(path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir())
    for path in found:
        if str(path) == RECORD and former:
            continue
        if former.get(str(path)) != file_digest(folder / path):
            raise SparseServeError(
                f"--output-dir {folder} holds {path}, which deploy did not write, or not as it is now: give "
                "another folder, or --force to write over what deploy writes"
            )


def _write(path: Path, text: str) -> None:
    """Write a file that users of containers can read; a folder that is there already keeps its mode."""
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True)
        path.parent.chmod(0o755)
    path.write_text(text, encoding="utf-8", newline="")
    path.chmod(0o644)
