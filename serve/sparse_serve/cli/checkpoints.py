"""Checkpoints in the place of entries: exported with their twins for one command, and removed after it."""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from sparse_serve.cli.options import Program
from sparse_serve.errors import OptionError, RepositoryError, SparseServeError
from sparse_serve.profiling.options import FromCheckpoint
from sparse_serve.repository.contents import MANIFEST_NAME

_CONFIG = "config.json"


def is_checkpoint(name: str, repository: Path) -> bool:
    """Return whether a name is a checkpoint's: a path or a hub id, or a folder that no entry is called as.

    Raises:
        OptionError: it is the path of an entry.
        RepositoryError: it cannot be told, as a folder on the way is closed or the name is too long.
    """
    path = Path(name)
    try:
        if "/" in name and (path / MANIFEST_NAME).is_file() and not (path / _CONFIG).is_file():
            raise OptionError(
                f"'{name}' is the path of an entry, where its name is taken: give {path.name} with "
                f"--model-repository {path.parent}"
            )
        return "/" in name or (not (repository / name).exists() and (path / _CONFIG).is_file())
    except OSError as error:
        raise RepositoryError(
            f"'{name}' cannot be read: {error.strerror}; give the name of an entry, or a checkpoint"
        ) from error


@contextmanager
def exported(
    checkpoints: Sequence[str], entries: Collection[str], repository: Path, program: Program | None
) -> Iterator[Mapping[str, FromCheckpoint]]:
    """Export checkpoints into a temporary repository; yield them by the names that their entries have.

    Args:
        checkpoints: folders, or ids of the hub.
        entries: those that are profiled beside them, which have other names.
        repository: the one of the line that makes them for good.
        program: exports, in a process of its own: torch is not to share this one.

    Raises:
        SparseServeError: one cannot be exported: the extra is missing, or what the export says.
        OptionError: two models have one name.
    """
    found: dict[str, FromCheckpoint] = {}
    with tempfile.TemporaryDirectory(prefix="sparse-serve-") as folder:
        made, scratch = Path(folder, "repository"), Path(folder, "scratch")
        made.mkdir()
        scratch.mkdir()
        for checkpoint in checkpoints:
            name = Path(checkpoint).resolve().name
            if name in found or name in entries:
                raise OptionError(
                    f"checkpoint {checkpoint} would be called '{name}' as another model is: export it under "
                    "another --name, and give that"
                )
            if program is None:
                raise SparseServeError(
                    f"checkpoint {checkpoint} cannot be exported here: export it, and give the entry's name"
                )
            print(f"exporting {checkpoint} with its dense twins", file=sys.stderr)
            line = ["export", checkpoint, "--name", name, "--with-baselines"]
            _run([*program.arguments, *line, "--model-repository", str(made)], checkpoint, scratch)
            shown = ["sparse-serve", *line, "--model-repository", str(repository)]
            found[name] = FromCheckpoint(checkpoint, made, shlex.join(shown))
        yield found


def _run(command: Sequence[str], checkpoint: str, scratch: Path) -> None:
    # Options of this command's from the environment, such as --label-column, are not meant for that one.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SPARSE_SERVE_")}
    # Where it is killed, as Ctrl-C does, it leaves its temporary files to be removed with this folder.
    variables["TMPDIR"] = str(scratch)
    done = subprocess.run(
        command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
    if done.returncode:
        raise SparseServeError(
            f"checkpoint {checkpoint} could not be exported: {said[-1].removeprefix('error: ')}"
        )
    for line in said:
        if line.startswith("warning: "):
            print(line, file=sys.stderr)
