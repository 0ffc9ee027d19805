"""Whether the configurations of an entry are what this package writes, part by part.

Everything in a `config.pbtxt` that Triton would open or load for it must be as `export` wrote it; what
operators tune is theirs. What is held here needs no graph to be read, so that every start of a server can ask
for it.
"""

import re
from collections.abc import Iterator, Mapping

from tritonclient.grpc.model_config_pb2 import ModelConfig

from sparse_serve.errors import RepositoryError
from sparse_serve.op_library import LIBRARY_NAME
from sparse_serve.repository.config import (
    CONFIG_NAME,
    METRICS_PARAMETER,
    config_of_graph,
    fixed_parameters,
    graph_config,
    parameters,
    public_config,
    read_config,
)
from sparse_serve.repository.entries import Entry
from sparse_serve.repository.legacy import legacy_config
from sparse_serve.repository.signature import Signature, signature_in
from sparse_serve.repository.tunable import (
    ACCELERATOR,
    ACCELERATOR_PARAMETERS,
    FRONT_PARAMETERS,
    MOST,
    TUNABLE,
    WARMUP_FILE,
    read_limit,
)


def entry_faults(entry: Entry) -> Iterator[str]:
    """Yield what of an entry Triton would load or open, and this package has not written.

    Raises:
        RepositoryError: a configuration is missing or malformed.
    """
    graphs = {
        path.name: read_config(path / CONFIG_NAME) for path in (entry.graph_path, entry.token_path) if path
    }
    signatures = {name: signature_in(config) for name, config in graphs.items()}
    for name, signature in signatures.items():
        try:
            signature.answer(entry.manifest.task)
        except RepositoryError as error:
            yield f"{name}/{CONFIG_NAME}: {error}"
            return
        if signature.takes_text != (name == entry.name):
            yield f"{name}/{CONFIG_NAME} takes what another model of the entry takes"
            return
    public = read_config(entry.path / CONFIG_NAME)
    wanted = wanted_public_config(entry, public, signatures[entry.graph_path.name])
    yield from config_faults(public, wanted, entry.name)
    for name in graphs.keys() - {entry.name}:
        has_library = bool(graphs[name].model_operations.op_library_filename)
        wanted = graph_config(name, signatures[name], op_library=has_library)
        yield from config_faults(graphs[name], wanted, name)
    if not entry.takes_text:
        yield from batch_faults(public, graphs[entry.graph_path.name])


def wanted_public_config(entry: Entry, found: ModelConfig, signature: Signature) -> ModelConfig:
    """Return the configuration that the entry's public model is written with, as far as that is not tuned.

    `signature` is that of the graph that answers, as `found` says where it is the public model itself.
    """
    manifest = entry.manifest
    if entry.takes_text:
        return config_of_graph(entry.name, signature, manifest, public=entry.name)
    wanted = public_config(
        entry.name,
        signature,
        tasks=manifest.tasks,
        max_length=manifest.max_length,
        truncation=manifest.truncation,
        metrics=METRICS_PARAMETER in parameters(found),
    )
    measures = {tensor.name for tensor in signature.measures}
    if measures.issuperset(parameters(found).get(METRICS_PARAMETER, "").split(",")):
        wanted.parameters[METRICS_PARAMETER].CopyFrom(
            found.parameters[METRICS_PARAMETER]
        )  # some of them will do
    return legacy_config(wanted, manifest.task) if manifest.is_legacy else wanted


def config_faults(found: ModelConfig, wanted: ModelConfig, model: str) -> Iterator[str]:
    """Yield in which parts a model's configuration is not the wanted one; what is tunable may differ."""
    where = f"{model}/{CONFIG_NAME}"
    if found.name not in ("", wanted.name):
        yield f"{where} names the model {found.name!r:.80}, the folder is '{wanted.name}'"
    yield from library_faults(found, model)
    fields = [field.name for field in found.DESCRIPTOR.fields if field.name not in TUNABLE]
    for part in fields:
        if part in ("parameters", "model_operations"):
            continue
        if getattr(found, part) != getattr(wanted, part):
            yield f"{where} has another {part} than the export wrote{_shown(found, wanted, part)}"
    if bool(found.model_operations.op_library_filename) != bool(wanted.model_operations.op_library_filename):
        yield f"{where} and the graph disagree about model_operations"
    yield from _parameter_faults(fixed_parameters(found), fixed_parameters(wanted), where)
    yield from _limit_faults(parameters(found), where)
    yield from _accelerator_faults(found, where)
    yield from _warmup_faults(found, where)
    if found.max_batch_size < 1:
        yield f"{where} has max_batch_size {found.max_batch_size}, at least 1 is needed"


def batch_faults(public: ModelConfig, graph: ModelConfig) -> Iterator[str]:
    """Yield whether the public model takes more rows than the graph, which it asks for as many."""
    if public.max_batch_size > graph.max_batch_size:
        yield (
            f"max_batch_size {public.max_batch_size} is above the graph's {graph.max_batch_size}: "
            "full batches will be refused"
        )


def library_faults(config: ModelConfig, model: str) -> Iterator[str]:
    """Yield which op libraries a model's configuration names that are not this package's."""
    for name in config.model_operations.op_library_filename:
        if name != LIBRARY_NAME:
            yield (
                f"{model}/{CONFIG_NAME} names the op library {name!r:.80}, which Triton would load: only "
                f"{LIBRARY_NAME} is served"
            )


def _shown(found: ModelConfig, wanted: ModelConfig, part: str) -> str:
    values = [getattr(config, part) for config in (found, wanted)]
    return f": {values[0]!r:.80} for {values[1]!r}" if all(isinstance(each, str) for each in values) else ""


def _parameter_faults(found: Mapping[str, str], wanted: Mapping[str, str], where: str) -> Iterator[str]:
    for key in sorted(found.keys() - wanted.keys()):
        yield f"{where} has the parameter {key!r:.80}, which the export did not write"
    for key, value in wanted.items():
        if key not in found:
            yield f"{where} lacks the parameter '{key}' of the export"
        elif found[key] != value:
            yield f"{where} has {found[key]!r:.80} for the parameter '{key}', the export wrote {value!r:.80}"


def _limit_faults(found: Mapping[str, str], where: str) -> Iterator[str]:
    for name in sorted(FRONT_PARAMETERS & found.keys()):
        try:
            read_limit(found, name, MOST)
        except ValueError as error:
            yield f"{where} has a limit that is none: {error}"


def _accelerator_faults(config: ModelConfig, where: str) -> Iterator[str]:
    accelerators = config.optimization.execution_accelerators
    for each in (*accelerators.gpu_execution_accelerator, *accelerators.cpu_execution_accelerator):
        if each.name != ACCELERATOR:
            yield f"{where} asks for the accelerator {each.name!r:.80}: only {ACCELERATOR} is served"
        for key in sorted(each.parameters.keys() - ACCELERATOR_PARAMETERS):
            yield (
                f"{where} has the parameter {key!r:.80} of {ACCELERATOR}, served are "
                f"{', '.join(sorted(ACCELERATOR_PARAMETERS))}"
            )


def _warmup_faults(config: ModelConfig, where: str) -> Iterator[str]:
    for warmup in config.model_warmup:
        for sample in warmup.inputs.values():
            name = sample.input_data_file
            if name and not re.fullmatch(WARMUP_FILE, name):
                yield f"{where} warms up with {name!r:.80}: only files of the folder warmup are opened"
