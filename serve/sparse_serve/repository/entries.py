"""The model repository: entries written whole, found again, and viewed with edited settings.

An entry is one Triton model or two. With the tokenizer in the graph, `NAME` is the graph: text in, answers
out, onnxruntime backend. With a server-side tokenizer `NAME` is on the backend that comes with this package,
and asks `NAME_model`, the graph of token ids, which may stand beside the other kind too. All are data alone.
Dense twins of the graph lie in `NAME/baselines/`, itself a Triton repository that the server of the outer one
does not see.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx
from tritonclient.grpc.model_config_pb2 import ModelConfig

from sparse_serve.digests import file_digest
from sparse_serve.errors import RepositoryError, TaskError
from sparse_serve.op_library import DOMAIN
from sparse_serve.repository.computing import ALL_CORES, Computing
from sparse_serve.repository.config import (
    CONFIG_NAME,
    GRAPH_NAME,
    LABELS_NAME,
    fixed_parameters,
    graph_config,
    graph_name,
    public_config,
    read_config,
    text_graph_config,
    to_text,
)
from sparse_serve.repository.contents import MANIFEST_NAME, MODEL_NAME, Contents
from sparse_serve.repository.manifest import Manifest, read_manifest
from sparse_serve.repository.signature import Signature, graph_signature, load_graph, nested
from sparse_serve.repository.staging import replaced_folders
from sparse_serve.repository.warmup import warmup_files, warmups
from sparse_serve.tasks import TASK_IDS
from sparse_serve.tasks.encoding import load_tokenizer

TOKENIZER_NAME = "tokenizer.json"
BASELINES_NAME = "baselines"

_MOST_CHARACTERS = 100


@dataclass(frozen=True, kw_only=True)
class EntrySpec:
    """What an entry is made of.

    `graph` is an ONNX file, external weights beside it, of the kind that the manifest's `tokenizer` says;
    `token_graph` one of token ids beside a graph that takes text; `baselines` maps variants ("packed_dense")
    to ONNX files. `manifest` says what it is called and answers, and comes without `files` and `baselines`,
    which `write_entry` fills in. With `metrics` the public model sums up what the graph measures on Triton's
    metrics port.
    """

    graph: Path
    tokenizer: Path
    manifest: Manifest
    max_batch_size: int = 64
    computing: Computing = ALL_CORES
    metrics: bool = False
    baselines: Mapping[str, Path] = field(default_factory=dict)
    token_graph: Path | None = None

    @property
    def name(self) -> str:
        """The public model's name."""
        return self.manifest.name

    @property
    def version(self) -> int:
        """The version that is written."""
        return self.manifest.version


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
        RepositoryError: there is no entry, or its manifest is malformed.
    """
    if not (path / MANIFEST_NAME).is_file():
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


def _manifest_of(path: Path, version: int, last_written: Manifest) -> Manifest:
    """Return the manifest of a version; earlier versions of this package kept but that of the last."""
    own = path / str(version) / MANIFEST_NAME
    if version != last_written.version and own.is_file():
        return read_manifest(own)
    return last_written.model_copy(update={"version": version})


def repository_path(path: Path) -> Path:
    """Return `path` if it is a folder.

    Raises:
        RepositoryError: it is not.
    """
    if not path.is_dir():
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


def validate_name(name: str) -> str:
    """Return `name` if it can name an entry.

    Raises:
        RepositoryError: it cannot.
    """
    is_safe = re.fullmatch(MODEL_NAME, name) is not None and len(name) <= _MOST_CHARACTERS
    if not is_safe or name.endswith(graph_name("")):
        raise RepositoryError(
            f"entry name '{name}' is not allowed: use up to {_MOST_CHARACTERS} letters, digits, '.', '_' and "
            "'-', beginning with a letter or digit and not ending in '_model'"
        )
    return name


def refuse_occupied(repository: Path, name: str, version: int) -> None:
    """Refuse a place that only a replacement could take.

    Raises:
        RepositoryError: the entry has the version, something else is in its place, or it cannot be read.
    """
    public = repository / name
    with _disk_errors(repository):
        present = versions(public)
        if version in present:
            raise RepositoryError(
                f"entry {public} has version {version} already: replace it with --force, "
                "or choose another --name or --model-version"
            )
        if not present:
            for path in (public, repository / graph_name(name)):
                if path.exists():
                    raise RepositoryError(f"{path} is in the way of entry '{name}': replace it with --force")


def refuse_other_models(repository: Path, name: str, version: int, *, has_beside: bool) -> None:
    """Refuse a version that has `NAME_model` where the others have none, or the other way round.

    Raises:
        RepositoryError: the entry's other versions differ in it.
    """
    beside = repository / graph_name(name)
    if {*versions(repository / name)} - {version} and beside.exists() != has_beside:
        raise RepositoryError(
            f"the other versions of the entry have {'' if beside.exists() else 'no '}{beside.name}: versions "
            "share the place of the tokenizer and --token-model; export under another --name"
        )


def write_entry(repository: Path, spec: EntrySpec, *, force: bool = False) -> Path:
    """Write an entry's version into a repository, whole or not at all, and return its public folder.

    Other versions of the entry stay beside it, and must have the same labels, tokenizer and signature. An
    existing version is replaced only with `force`.

    Raises:
        RepositoryError: the name or a part of the entry is not usable, the version exists, the other versions
            differ, or the repository cannot be written.
    """
    public = repository / validate_name(spec.name)
    signature = _checked_signature(spec)
    if not force:
        refuse_occupied(repository, spec.name, spec.version)
    others = [version for version in versions(public) if version != spec.version]
    with _disk_errors(repository), replaced_folders(repository, spec.name) as new:
        if others:
            _link_versions(repository, new, spec)
        _write_models(new, spec, signature, keep_settings=bool(others))
    return public


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


def config_of_graph(
    name: str,
    signature: Signature,
    manifest: Manifest,
    *,
    public: str,
    max_batch_size: int = 64,
    op_library: bool = True,
    computing: Computing = ALL_CORES,
) -> ModelConfig:
    """Return the configuration of the model `name` of an entry, whose public one is `public`.

    It is a graph: of token ids, with `op_library` where it has nodes of it, or one that takes text.
    """
    if signature.takes_text:
        config = text_graph_config(
            name,
            signature,
            tasks=manifest.tasks,
            max_length=manifest.max_length,
            truncation=manifest.truncation,
            max_batch_size=max_batch_size,
            computing=computing,
            is_twin=name != public,
        )
    else:
        config = graph_config(
            name,
            signature,
            max_length=manifest.max_length,
            max_batch_size=max_batch_size,
            op_library=op_library,
            computing=computing,
        )
    return config


def uses_op_library(model: onnx.ModelProto) -> bool:
    """Return whether the graph has nodes of the op library's domain."""
    bodies = (model.graph.node, *(function.node for function in model.functions))
    return any(node.domain == DOMAIN for body in bodies for node in nested(body))


def versions(model: Path) -> list[int]:
    """Return the numbers of the version folders of a Triton model, ascending."""
    if not model.is_dir():
        return []
    return sorted(int(path.name) for path in model.iterdir() if path.is_dir() and path.name.isdecimal())


def _checked_signature(spec: EntrySpec) -> Signature:
    """Return the graph's signature after holding all parts of the entry against each other."""
    manifest = spec.manifest
    signature = graph_signature(load_graph(spec.graph))
    try:
        signature.answer(manifest.task)
    except RepositoryError as error:
        raise RepositoryError(f"graph {spec.graph}: {error}") from None
    layers = signature.measures[0].dims
    if layers != (manifest.layers,):
        raise RepositoryError(f"graph {spec.graph} gives rho {list(layers)} for {manifest.layers} layers")
    _require_inputs(spec, signature)
    if spec.token_graph is not None:
        beside = graph_signature(load_graph(spec.token_graph))
        beside.answer(manifest.task)
        if beside.takes_text:
            raise RepositoryError(f"graph {spec.token_graph} takes text: one of token ids is needed")
    try:
        tokenizer = load_tokenizer(spec.tokenizer)
    except TaskError as error:
        raise RepositoryError(f"tokenizer {spec.tokenizer}: {error}") from error
    special = tokenizer.num_special_tokens_to_add(True)
    if manifest.max_length <= special:
        raise RepositoryError(
            f"max_length {manifest.max_length} leaves no room beside {special} special tokens"
        )
    return signature


def _require_inputs(spec: EntrySpec, signature: Signature) -> None:
    """Refuse a graph of another kind than the manifest says, or with inputs that nobody gives."""
    if signature.takes_text != (spec.manifest.tokenizer == "graph"):
        kinds = {True: "text", False: "token ids"}
        raise RepositoryError(
            f"graph {spec.graph} takes {kinds[signature.takes_text]}, the manifest says that the tokenizer "
            f"is in the {spec.manifest.tokenizer}"
        )
    known = {"input_ids", "attention_mask", "token_type_ids", TASK_IDS}
    unknown = {tensor.name for tensor in signature.inputs} - known
    if unknown and not signature.takes_text:
        raise RepositoryError(
            f"graph {spec.graph} has inputs no tokenizer gives: {', '.join(sorted(unknown))}"
        )


@contextmanager
def _disk_errors(repository: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise RepositoryError(
            f"model repository {repository} cannot be written: {error.strerror}{where}"
        ) from error


def _link_versions(repository: Path, new: Path, spec: EntrySpec) -> None:
    """Carry the entry's other versions and its shared files over, sharing their bytes on disk."""
    # A server that ran from here has left compiled files.
    not_carried = shutil.ignore_patterns(str(spec.version), "__pycache__")
    for name in (spec.name, graph_name(spec.name)):
        if (repository / name).is_dir():
            shutil.copytree(repository / name, new / name, ignore=not_carried, copy_function=_link)
    manifest = new / spec.name / MANIFEST_NAME
    former = new / spec.name / str(read_manifest(manifest).version)
    if former.is_dir() and not (former / MANIFEST_NAME).exists():  # of an earlier version of this package
        _link(manifest, former / MANIFEST_NAME)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _write_models(new: Path, spec: EntrySpec, signature: Signature, *, keep_settings: bool) -> None:
    """Write the entry's own version below `new`; with `keep_settings`, beside others that must agree."""
    public, manifest = new / spec.name, spec.manifest
    (public / str(spec.version)).mkdir(parents=True)
    for name, content in _shared_files(spec).items():
        if keep_settings:
            _require_same_bytes(public / name, content)
        else:
            (public / name).write_bytes(content)
    beside = new / graph_name(spec.name)
    if keep_settings:
        has_beside = manifest.tokenizer == "server" or spec.token_graph is not None
        refuse_other_models(new, spec.name, spec.version, has_beside=has_beside)
    if signature.takes_text:
        _write_graph(public, spec.graph, spec, keep_settings=keep_settings)
        if spec.token_graph is not None:
            _write_graph(beside, spec.token_graph, spec, keep_settings=keep_settings)
        else:
            beside.mkdir()  # so that none is left of an entry that is replaced
    else:
        config = public_config(
            spec.name,
            signature,
            tasks=manifest.tasks,
            max_length=manifest.max_length,
            truncation=manifest.truncation,
            max_batch_size=spec.max_batch_size,
            metrics=spec.metrics,
            device=spec.computing.device,
        )
        _write_config(public, config, keep_settings=keep_settings)
        _write_graph(beside, spec.graph, spec, keep_settings=keep_settings)
    baselines = {variant: f"{spec.name}_{variant}" for variant in spec.baselines}
    for variant, graph in spec.baselines.items():
        folder = public / BASELINES_NAME / baselines[variant]
        _write_graph(folder, graph, spec, keep_settings=(folder / CONFIG_NAME).exists())
    digests = {
        str(path.relative_to(new)): file_digest(path) for path in sorted(new.rglob("*")) if path.is_file()
    }
    digests.pop(f"{spec.name}/{MANIFEST_NAME}", None)
    complete = manifest.model_copy(update={"files": digests, "baselines": baselines}).to_json()
    # Each version keeps its own; the one beside them is that of the version written last.
    for folder in (public, public / str(spec.version)):
        (folder / MANIFEST_NAME).unlink(missing_ok=True)
        (folder / MANIFEST_NAME).write_text(complete, encoding="utf-8")


def _shared_files(spec: EntrySpec) -> dict[str, bytes]:
    """Return the files, by name, that all versions of the public model have in common."""
    shared = {TOKENIZER_NAME: spec.tokenizer.read_bytes()}
    if labels := spec.manifest.task.labels:
        shared[LABELS_NAME] = "".join(f"{label}\n" for label in labels).encode()
    return shared


def _write_graph(folder: Path, graph: Path, spec: EntrySpec, *, keep_settings: bool) -> None:
    model = load_graph(graph)
    version = folder / str(spec.version)
    version.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(graph, version / GRAPH_NAME)
    for location in _external_locations(model):
        shutil.copyfile(graph.parent / location, version / location)
    signature = graph_signature(model)
    config = config_of_graph(
        folder.name,
        signature,
        spec.manifest,
        public=spec.name,
        max_batch_size=spec.max_batch_size,
        op_library=uses_op_library(model),
        computing=spec.computing,
    )
    _write_config(folder, config, keep_settings=keep_settings)
    warming = warmups(spec.computing.device, spec.max_batch_size, spec.manifest.max_length)
    if (files := warmup_files(config, signature, warming)) and not keep_settings:
        (folder / "warmup").mkdir()
        for name, content in files.items():
            (folder / "warmup" / name).write_bytes(content)


def _write_config(folder: Path, config: ModelConfig, *, keep_settings: bool) -> None:
    if keep_settings:
        _require_same_interface(folder / CONFIG_NAME, config)
    else:
        (folder / CONFIG_NAME).write_text(to_text(config), encoding="utf-8")


def _external_locations(model: onnx.ModelProto) -> list[str]:
    locations = sorted(
        {
            entry.value
            for tensor in model.graph.initializer
            if tensor.data_location == onnx.TensorProto.EXTERNAL
            for entry in tensor.external_data
            if entry.key == "location"
        }
    )
    for location in locations:
        if Path(location).name != location:
            raise RepositoryError(
                f"graph keeps weights in '{location}': external data must lie beside the graph"
            )
    return locations


def _require_same_bytes(path: Path, content: bytes) -> None:
    if path.read_bytes() != content:
        raise _disagreement(path)


def _require_same_interface(path: Path, wanted: ModelConfig) -> None:
    """Compare what clients and the graph see; what is computed with may have been tuned since and is kept."""
    found = read_config(path)
    if fixed_parameters(found) != fixed_parameters(wanted) or any(
        getattr(found, part) != getattr(wanted, part)
        for part in ("backend", "input", "output", "model_operations")
    ):
        raise _disagreement(path)


def _disagreement(path: Path) -> RepositoryError:
    return RepositoryError(
        f"the other versions of the entry have another {path.parent.name}/{path.name}: "
        "versions share labels, tokenizer, signature and --metrics; export under another --name"
    )
