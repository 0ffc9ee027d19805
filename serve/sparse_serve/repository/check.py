"""Validates a repository entry offline: its parts against each other and against a Triton release."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import onnx

from sparse_serve.cuda import probe
from sparse_serve.digests import file_digest
from sparse_serve.errors import OpLibraryError, RepositoryError, TaskError, in_brief
from sparse_serve.op_library import (
    DOMAIN,
    OPSET_VERSION,
    TOKENIZERS,
    Device,
    library_version,
    verify_library,
)
from sparse_serve.processor import vnni_warning
from sparse_serve.repository import contents
from sparse_serve.repository.agreement import batch_faults, config_faults, wanted_public_config
from sparse_serve.repository.config import (
    CONFIG_NAME,
    GRAPH_NAME,
    LABELS_NAME,
    config_of_graph,
    device_of,
    read_config,
)
from sparse_serve.repository.entries import BASELINES_NAME, TOKENIZER_NAME, Entry, read_entry, versions
from sparse_serve.repository.manifest import Manifest
from sparse_serve.repository.measures import AXES
from sparse_serve.repository.releases import DEFAULT_RELEASE, Release, release
from sparse_serve.repository.signature import (
    Signature,
    graph_dtype,
    graph_signature,
    load_graph,
    nested,
    uses_op_library,
)
from sparse_serve.tasks.encoding import load_tokenizer


class Level(StrEnum):
    """How a check ended."""

    ok = "ok"
    warning = "warning"
    error = "error"


@dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    level: Level
    check: str
    message: str


def check_entry(path: Path, release_name: str | None = None) -> list[Finding]:
    """Check the entry whose public folder is `path` against a Triton release (default: the newest supported).

    Raises:
        RepositoryError: there is no entry at `path`, or its manifest is malformed.
        OptionError: the release is not known.
    """
    target = release(release_name or DEFAULT_RELEASE)
    entry = read_entry(path)
    findings = [
        Finding(Level.ok, "manifest", f"sha256 {file_digest(path / contents.MANIFEST_NAME)}"),
        *_findings("access", _access_faults(entry)),
        *_findings("digests", _digest_faults(entry)),
        *_findings("public model", _public_faults(entry)),
        *_findings("op library", _library_faults(entry)),
        *_findings("processor", processor_faults(entry)),
        *_findings("device", _device_faults(entry)),
    ]
    graphs = dict.fromkeys(path for path in (entry.graph_path, entry.token_path) if path is not None)
    baselines = [entry.path / BASELINES_NAME / name for name in entry.manifest.baselines.values()]
    for folder in (*graphs, *baselines):
        for version in versions(folder):
            faults = _graph_faults(entry, folder, version, target)
            findings += _findings(f"{folder.name} {version}", faults)
    return findings


Fault = tuple[Level, str]


def _findings(check: str, faults: Iterator[Fault]) -> list[Finding]:
    """Run one check to its end; a part that cannot be read is its last fault."""
    found: list[Finding] = []
    try:
        found += [Finding(level, check, message) for level, message in faults]
    except (RepositoryError, OSError) as error:
        found.append(Finding(Level.error, check, str(error)))
    return found or [Finding(Level.ok, check, "")]


def require_no_error(faults: Iterable[Fault], subject: str) -> None:
    """Refuse what has a fault that is more than a warning.

    Raises:
        RepositoryError: says of `subject` the first such fault, or which file cannot be read.
    """
    errors = (contents.Fault(message, "export it again") for level, message in faults if level is Level.error)
    require_none(errors, subject)


def require_none(faults: Iterable[contents.Fault], subject: str) -> None:
    """Refuse what has a fault.

    Raises:
        RepositoryError: says of `subject` the first one, or which file cannot be read.
    """
    try:
        fault = next(iter(faults), None)
    except OSError as error:
        fault = contents.Fault(f"{error.filename} cannot be read: {error.strerror}", "export it again")
    if fault is not None:
        raise RepositoryError(f"{subject}: {fault.message}; {fault.remedy}")


def require_files(entry: Entry, subject: str) -> None:
    """Refuse an entry whose files are not those of its export.

    Raises:
        RepositoryError: says of `subject` which one is missing, changed, not of the export, or not readable.
    """
    require_none(contents.file_faults(entry.contents), subject)


def _digest_faults(entry: Entry) -> Iterator[Fault]:
    """Yield which files are missing, changed, or not of the export; warn of configurations that are tuned."""
    yield from _fatal(contents.file_faults(entry.contents))
    repository = entry.graph_path.parent
    recorded = entry.contents.files
    for name in sorted(entry.contents.tuned & recorded.keys()):
        path = repository / name
        if path.is_file() and file_digest(path) != recorded[name]:
            yield Level.warning, f"{name} has been changed since it was exported"


def _access_faults(entry: Entry) -> Iterator[Fault]:
    if entry.path.is_symlink():  # which a server refuses, whatever it leads to
        yield from _fatal(contents.access_faults(entry.path))
    for model in entry.folders:
        yield from _fatal(contents.access_faults(model))


def _public_faults(entry: Entry) -> Iterator[Fault]:
    manifest = entry.manifest
    if manifest.name != entry.name:
        yield Level.error, f"the folder is '{entry.name}', the manifest says '{manifest.name}'"
    yield from label_faults(entry)
    yield from _fatal(contents.code_faults(entry.folders, is_legacy=manifest.is_legacy))
    try:
        load_tokenizer(entry.path / TOKENIZER_NAME)
    except TaskError as error:
        yield Level.error, str(error)
    graph = load_graph(entry.graph_path / str(manifest.version) / GRAPH_NAME)
    if graph_dtype(graph) != manifest.dtype:
        yield Level.error, f"the graph's weights are {graph_dtype(graph)}, the manifest says {manifest.dtype}"
    config = read_config(entry.path / CONFIG_NAME)
    signature = graph_signature(graph)
    signature.answer(manifest.task)
    yield from _measure_faults(manifest, signature)
    wanted = wanted_public_config(entry, config, signature)
    yield from _errors(config_faults(config, wanted, entry.name))
    if not entry.takes_text:
        yield from _errors(batch_faults(config, read_config(entry.graph_path / CONFIG_NAME)))


def _measure_faults(manifest: Manifest, signature: Signature) -> Iterator[Fault]:
    measures = [tensor.name for tensor in signature.measures]
    pattern = manifest.attention.pattern
    if set(AXES).issubset(measures) != (pattern is not None):
        yield (
            Level.error,
            f"the graph measures {', '.join(measures)}, the manifest says pattern {pattern or 'none'}",
        )


def label_faults(entry: Entry) -> Iterator[Fault]:
    """Yield whether the labels that Triton reads differ from the manifest's."""
    wanted = list(entry.manifest.task.labels)
    if not wanted:
        return
    try:
        labels = (entry.path / LABELS_NAME).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        yield Level.error, f"{LABELS_NAME} is not UTF-8: {error.reason} at byte {error.start}"
        return
    if labels != wanted:
        yield Level.error, f"{LABELS_NAME} has {labels!s:.200}, the manifest {wanted!s:.200}"


def _graph_faults(entry: Entry, folder: Path, version: int, target: Release) -> Iterator[Fault]:
    path = folder / str(version) / GRAPH_NAME
    model = load_graph(path)
    uses_library = uses_op_library(model)
    signature = graph_signature(model)
    wanted = config_of_graph(
        folder.name, signature, entry.manifest, public=entry.name, op_library=uses_library
    )
    yield from _errors(config_faults(read_config(folder / CONFIG_NAME), wanted, folder.name))
    try:
        onnx.checker.check_model(str(path))
    except (onnx.checker.ValidationError, OSError, ValueError) as error:  # it may quote what is no UTF-8
        yield Level.error, f"{GRAPH_NAME} is not valid ONNX: {in_brief(error)}"
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    if opsets.get("", 0) > target.opset:
        yield (
            Level.error,
            f"opset {opsets['']} is above {target.opset}, the newest that ONNX Runtime {target.onnxruntime} "
            f"of Triton {target.name} runs: export with --triton {target.name}",
        )
    if model.ir_version > target.ir_version:
        yield (
            Level.error,
            f"IR version {model.ir_version} is above {target.ir_version}, the newest that ONNX Runtime "
            f"{target.onnxruntime} of Triton {target.name} loads: export with --triton {target.name}",
        )
    if uses_library and opsets.get(DOMAIN) != OPSET_VERSION:
        yield Level.error, f"version {opsets.get(DOMAIN)} of {DOMAIN}, this package has {OPSET_VERSION}"
    functions = {function.name for function in model.functions if function.domain == DOMAIN}
    missing = {node.op_type for node in nested(model.graph.node) if node.domain == DOMAIN} - functions
    if signature.takes_text:
        missing -= set(TOKENIZERS)  # nobody expects a function of them
    if missing:
        yield Level.warning, f"no fallback for {', '.join(sorted(missing))}: --portable cannot serve it"


def require_library_version(entries: Iterable[Entry], version: int, found: str, remedy: str) -> None:
    """Hold the version of an op library against what each entry was made for.

    Raises:
        OpLibraryError: an entry was made for another; says that `found` this version, and the `remedy`.
    """
    for entry in entries:
        wanted = entry.manifest.op_library
        if wanted is not None and wanted.version != version:
            raise OpLibraryError(
                f"entry '{entry.name}' was made for version {wanted.version} of the op library, {found} "
                f"version {version}: {remedy}"
            )


def _library_faults(entry: Entry) -> Iterator[Fault]:
    wanted = entry.manifest.op_library
    if wanted is None:
        return
    device = served_on(entry)
    try:
        library = verify_library(device)
    except OpLibraryError as error:
        # A processor's comes with the package; a GPU's need not be where an entry is looked at.
        yield Level.error if device == "cpu" else Level.warning, str(error)
        return
    if library_version(library) != wanted.version:
        yield (
            Level.error,
            f"installed is version {library_version(library)}, the entry was made for {wanted.version}",
        )
    elif file_digest(library) != wanted.sha256:
        yield (
            Level.warning,
            "the installed library is another build than the one that passed the export's gates",
        )


def served_on(entry: Entry) -> Device:
    """Return what computes an entry, as the configuration of its graph has it."""
    return device_of(read_config(entry.graph_path / CONFIG_NAME))


def _device_faults(entry: Entry) -> Iterator[Fault]:
    """Warn of an entry that is not computed on what it was made for, or not on this machine."""
    made_for, device = entry.manifest.device, served_on(entry)
    if device != made_for:
        yield Level.warning, f"it was exported for {made_for}, and {CONFIG_NAME} has it computed on {device}"
    if device == "cuda" and (obstacle := probe().server_obstacle) is not None:
        yield Level.warning, f"it needs a GPU, but {obstacle}"


def processor_faults(entry: Entry) -> Iterator[Fault]:
    """Warn of int8 weights of any version that this processor computes wrong with."""
    warnings = (vnni_warning(entry.name, each.target_cpu) for each in entry.manifests.values())
    for warning in dict.fromkeys(each for each in warnings if each is not None):
        yield Level.warning, warning


def _errors(messages: Iterable[str]) -> Iterator[Fault]:
    return ((Level.error, message) for message in messages)


def _fatal(faults: Iterable[contents.Fault]) -> Iterator[Fault]:
    return ((Level.error, fault.message) for fault in faults)
