"""The entries of a model repository: found, read, and viewed with edited settings.

An entry is one Triton model or two. With the tokenizer in the graph, `NAME` is the graph: text in, answers
out, onnxruntime backend. With a server-side tokenizer `NAME` is on the backend that comes with this package,
and asks `NAME_model`, the graph of token ids, which may stand beside the other kind too. All are data alone.
Dense twins of the graph lie in `NAME/baselines/`, itself a Triton repository that the server of the outer one
does not see.
"""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from sparse_serve.errors import RepositoryError
from sparse_serve.repository.config import CONFIG_NAME, graph_name, read_config, to_text
from sparse_serve.repository.contents import MANIFEST_NAME, Contents
from sparse_serve.repository.manifest import Manifest, read_manifest

TOKENIZER_NAME = "tokenizer.json"
BASELINES_NAME = "baselines"


@dataclass(frozen=True)
class Entry:
    """One entry as found in a repository.

    Attributes:
        name: of the public model.
        path: its folder.
        token_path: the folder of `NAME_model`, which takes token ids; None where there is none.
        manifests: what each version is that it has, ascending.
        manifest: what the highest is, which answers where none is asked for.
        last_written: the manifest beside the versions: of that which was written last, with the files of all
            that were there then. It may have been taken out of service.
    """

    name: str
    path: Path
    token_path: Path | None
    manifests: Mapping[int, Manifest]
    manifest: Manifest
    last_written: Manifest

    @property
    def versions(self) -> tuple[int, ...]:
        """Those that it has."""
        return tuple(self.manifests)

    @property
    def highest(self) -> int:
        """The version that answers where none is asked for; 0 where it has none."""
        return max(self.manifests, default=0)

    def of_version(self, version: int) -> "Entry":
        """Return it as one of its versions describes it.

        Raises:
            RepositoryError: it has no such version.
        """
        if version not in self.manifests:
            raise RepositoryError(f"entry {self.path} has no version {version}, but {[*self.versions]}")
        return replace(self, manifest=self.manifests[version])

    @property
    def takes_text(self) -> bool:
        """Whether the public model is the graph itself."""
        return self.manifest.tokenizer == "graph"

    @property
    def graph_path(self) -> Path:
        """The folder of the graph that answers."""
        public = self.path.resolve()
        return public if self.takes_text else public.parent / graph_name(self.name)

    @property
    def folders(self) -> list[Path]:
        """The folders of its Triton models, the public one first."""
        rest = {path for path in (self.graph_path, self.token_path) if path is not None}
        return [self.path.resolve(), *sorted(rest - {self.path.resolve()})]

    @property
    def models(self) -> list[str]:
        """The names of its Triton models."""
        return [path.name for path in self.folders]

    @property
    def contents(self) -> Contents:
        """The files that it consists of, of which the configurations of its models may have been tuned."""
        tuned = frozenset(f"{model}/{CONFIG_NAME}" for model in self.models)
        return Contents(self.folders, self.last_written.files, self.last_written.version, tuned)


def find_entries(repository: Path) -> list[Entry]:
    """Return the repository's entries by name; Triton models that are no entries of ours are left out.

    Raises:
        RepositoryError: there is no such repository, or an entry's manifest is malformed.
    """
    return [
        read_entry(path.parent) for path in sorted(repository_path(repository).glob(f"*/{MANIFEST_NAME}"))
    ]


def read_entry(path: Path) -> Entry:
    """Read the entry whose public folder is `path`.

    Raises:
        RepositoryError: there is no entry, it cannot be read, or its manifest is malformed.
    """
    if not is_entry(path):
        raise RepositoryError(f"{path} is no entry of a model repository: it has no {MANIFEST_NAME}")
    name = path.resolve().name
    token_path = path.resolve().parent / graph_name(name)
    last_written = read_manifest(path / MANIFEST_NAME)
    manifests = {version: _manifest_of(path, version, last_written) for version in versions(path)}
    return Entry(
        name=name,
        path=path,
        token_path=token_path if (token_path / CONFIG_NAME).is_file() else None,
        manifests=manifests,
        manifest=manifests[max(manifests)] if manifests else last_written,
        last_written=last_written,
    )


def is_entry(path: Path) -> bool:
    """Return whether `path` is the public folder of an entry.

    Raises:
        RepositoryError: that cannot be told, as a folder on the way is closed or the name is too long.
    """
    try:
        return (path / MANIFEST_NAME).is_file()
    except OSError as error:
        raise RepositoryError(f"{path} cannot be read: {error.strerror}") from error


def manifest_path(path: Path, version: int) -> Path:
    """Return where the manifest of a version lies of the entry at `path`.

    Earlier versions of this package kept but that of the version written last, beside all of them.
    """
    own = path / str(version) / MANIFEST_NAME
    return own if own.is_file() else path / MANIFEST_NAME


def _manifest_of(path: Path, version: int, last_written: Manifest) -> Manifest:
    if version == last_written.version:
        return last_written
    return read_manifest(manifest_path(path, version)).model_copy(update={"version": version})


def repository_path(path: Path) -> Path:
    """Return `path` if it is a folder that can be read.

    Raises:
        RepositoryError: it is not.
    """
    try:
        is_folder = path.is_dir()
        if is_folder and not os.access(path, os.R_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise RepositoryError(f"model repository {path} cannot be read: {error.strerror}") from error
    if not is_folder:
        raise RepositoryError(f"model repository {path} is not a folder")
    return path


def find_models(repository: Path) -> list[Path]:
    """Return the folders of a repository that hold a Triton model, by name."""
    configs = repository_path(repository).glob(f"*/{CONFIG_NAME}")
    return sorted(path.parent for path in configs if not path.parent.name.startswith("."))


def entry_models(repository: Path) -> frozenset[str]:
    """Return the names of the Triton models, public and graph, that entries of the repository consist of."""
    names = [path.parent.name for path in repository.glob(f"*/{MANIFEST_NAME}")]
    return frozenset(names).union(map(graph_name, names))


def overlay_repository(
    source: Path,
    target: Path,
    edit: Callable[[ModelConfig], None],
    models: Sequence[str] | None = None,
) -> Path:
    """Make `target` a view of `source`: configurations edited, everything else by symbolic links.

    Dense twins are left out, as they are not served from there: Triton looks through all that lies beside a
    model, which takes memory, and a model is to be served as its twins are.
    `edit` changes each `ModelConfig` in place; `models` restricts the view to models of these names.
    """
    for model in find_models(source):
        if models is not None and model.name not in models:
            continue
        view = target / model.name
        view.mkdir(parents=True)
        config = read_config(model / CONFIG_NAME)
        edit(config)
        (view / CONFIG_NAME).write_text(to_text(config), encoding="utf-8")
        for path in model.iterdir():
            if path.name not in (CONFIG_NAME, BASELINES_NAME):
                (view / path.name).symlink_to(path.resolve())
    return target


def versions(model: Path) -> list[int]:
    """Return the numbers of the version folders of a Triton model, ascending."""
    if not model.is_dir():
        return []
    return sorted(int(path.name) for path in model.iterdir() if path.is_dir() and path.name.isdecimal())
