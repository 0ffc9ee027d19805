"""Entries are written into a model repository: a version whole or not at all, beside others that agree."""

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx
from tritonclient.grpc.model_config_pb2 import ModelConfig

from sparse_serve.digests import file_digest
from sparse_serve.errors import RepositoryError, TaskError
from sparse_serve.repository.computing import ALL_CORES, Computing
from sparse_serve.repository.config import (
    CONFIG_NAME,
    GRAPH_NAME,
    LABELS_NAME,
    config_of_graph,
    fixed_parameters,
    graph_name,
    public_config,
    read_config,
    to_text,
)
from sparse_serve.repository.contents import MANIFEST_NAME, MODEL_NAME
from sparse_serve.repository.entries import BASELINES_NAME, TOKENIZER_NAME, versions
from sparse_serve.repository.manifest import Manifest, read_manifest
from sparse_serve.repository.signature import Signature, graph_signature, load_graph, uses_op_library
from sparse_serve.repository.staging import replaced_folders
from sparse_serve.repository.warmup import warmup_files, warmups
from sparse_serve.tasks import TASK_IDS
from sparse_serve.tasks.encoding import load_tokenizer

_MOST_CHARACTERS = 100

# The parts of a configuration that may differ from what an export would write; fixed parameters do not.
_TUNED = ("max_batch_size", "instance_group", "dynamic_batching", "parameters")


@dataclass(frozen=True, kw_only=True)
class EntrySpec:
    """What an entry is made of.

    `graph` is an ONNX file, external weights beside it, of the kind that the manifest's `tokenizer` says;
    `token_graph` one of token ids beside a graph that takes text; `baselines` maps variants ("packed_dense")
    to ONNX files. `manifest` says what it is called and answers, and comes without `files` and `baselines`,
    which `write_entry` fills in. With `metrics` the public model sums up what the graph measures on Triton's
    metrics port. `warn` is told what has no effect, as other versions have settled it.
    """

    graph: Path
    tokenizer: Path
    manifest: Manifest
    max_batch_size: int = 64
    computing: Computing = ALL_CORES
    metrics: bool = False
    baselines: Mapping[str, Path] = field(default_factory=dict)
    token_graph: Path | None = None
    warn: Callable[[str], object] = lambda _: None

    @property
    def name(self) -> str:
        """The public model's name."""
        return self.manifest.name

    @property
    def version(self) -> int:
        """The version that is written."""
        return self.manifest.version


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


def refuse_unwritable(repository: Path) -> None:
    """Refuse a repository that is no folder, or that this user may not write into or make.

    Raises:
        RepositoryError: it is one.
    """
    with _disk_errors(repository):
        nearest = next(folder for folder in (repository, *repository.absolute().parents) if folder.exists())
        if not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(nearest))
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(nearest))


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
    except shutil.Error as error:  # of a whole folder: each file, where to, and why not
        (_, _, reason), *_ = error.args[0]
        raise RepositoryError(f"model repository {repository} cannot be written: {reason}") from error
    except OSError as error:
        place = error.filename2 or error.filename  # of a copy, where it goes
        where = f" ({place})" if place else ""
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
        _write_config(public, config, spec, keep_settings=keep_settings)
        _write_graph(beside, spec.graph, spec, keep_settings=keep_settings)
    baselines = {variant: f"{spec.name}_{variant}" for variant in spec.baselines}
    silent = replace(spec, warn=lambda _: None)  # the model has told of the same
    for variant, graph in spec.baselines.items():
        folder = public / BASELINES_NAME / baselines[variant]
        _write_graph(folder, graph, silent, keep_settings=(folder / CONFIG_NAME).exists())
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
    _write_config(folder, config, spec, keep_settings=keep_settings)
    warming = warmups(spec.computing.device, spec.max_batch_size, spec.manifest.max_length)
    if (files := warmup_files(config, signature, warming)) and not keep_settings:
        (folder / "warmup").mkdir()
        for name, content in files.items():
            (folder / "warmup" / name).write_bytes(content)


def _write_config(folder: Path, config: ModelConfig, spec: EntrySpec, *, keep_settings: bool) -> None:
    path = folder / CONFIG_NAME
    if not keep_settings:
        path.write_text(to_text(config), encoding="utf-8")
        return
    found = read_config(path)
    _require_same_interface(path, found, config)
    if other := [part for part in _TUNED if getattr(found, part) != getattr(config, part)]:
        spec.warn(
            f"{folder.name}/{CONFIG_NAME} stays as the entry's other versions have it, and so do its "
            f"{', '.join(other)}: change them there"
        )


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


def _require_same_interface(path: Path, found: ModelConfig, wanted: ModelConfig) -> None:
    """Compare what clients and the graph see; what is computed with may have been tuned since and is kept."""
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
