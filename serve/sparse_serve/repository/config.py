"""Triton model configurations, built as `ModelConfig` messages and written as protobuf text."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInstanceGroup

from sparse_serve.cuda import CUDA_OPTIONS
from sparse_serve.errors import RepositoryError, in_brief
from sparse_serve.op_library import LIBRARY_NAME, Device
from sparse_serve.repository.computing import ALL_CORES, FRONT, Computing
from sparse_serve.repository.health import Input, health_request
from sparse_serve.repository.manifest import Manifest
from sparse_serve.repository.measures import RHO
from sparse_serve.repository.signature import TASK_INPUT, TEXT_INPUT, TEXT_PAIR_INPUT, Signature, Tensor
from sparse_serve.repository.tunable import (
    ACCELERATOR,
    DEFAULT_REQUEST_BYTES,
    DEFAULT_TEXT_BYTES,
    DEFAULT_WINDOWED_BYTES,
    FRONT_PARAMETERS,
    REQUEST_BYTES_PARAMETER,
    RUN_TOKENS_PARAMETER,
    SESSION_PARAMETERS,
    TEXT_BYTES_PARAMETER,
    TEXT_PARAMETERS,
    THREADS_PARAMETER,
)
from sparse_serve.repository.warmup import WARMUP_MASK, WARMUP_TOKENS, add_warmup, warmups
from sparse_serve.runs import RUN_TOKENS, RUN_TOKENS_ON
from sparse_serve.tasks import Task, answered
from sparse_serve.tasks.encoding import Truncation

CONFIG_NAME = "config.pbtxt"
LABELS_NAME = "labels.txt"
GRAPH_NAME = "model.onnx"
CUDA_PARAMETERS = {"arena_extend_strategy": "1", "cudnn_conv_algo_search": "1"}
"""The arena grows by what is asked for (1) where it would double (0), and no convolutions are searched for.
As the accelerator's parameters Triton 26.06 would overwrite them by its defaults."""
METRICS_PARAMETER = "metrics"
TRUNCATION_PARAMETER = "truncation"
"""What becomes of long texts, where they are not cut from the right."""
TEXT_BACKEND = "sparse_serve_text"
GRAPH_BACKEND = "onnxruntime"

_WIRE_TYPES: dict[str, int] = {
    "FP32": DataType.TYPE_FP32,
    "INT32": DataType.TYPE_INT32,
    "BYTES": DataType.TYPE_STRING,
}


def device_of(config: ModelConfig) -> Device:
    """Return what a model is computed on: "cuda" where any of its instances are."""
    on_gpu = any(group.kind == ModelInstanceGroup.KIND_GPU for group in config.instance_group)
    return "cuda" if on_gpu else "cpu"


def graph_config(
    name: str,
    signature: Signature,
    *,
    max_length: int = WARMUP_TOKENS,
    max_batch_size: int = 64,
    op_library: bool = True,
    computing: Computing = ALL_CORES,
) -> ModelConfig:
    """Return the configuration of an ONNX graph on the `onnxruntime` backend.

    With `op_library` the bare name of the op library is registered: whoever starts Triton puts its folder
    on `LD_LIBRARY_PATH`, so that one repository serves everywhere. `max_length` is the tokens of the longest
    row that a GPU warms up with.
    """
    config = ModelConfig(name=name, backend=GRAPH_BACKEND, default_model_filename=GRAPH_NAME)
    _add_tensors(config.input, signature.inputs)
    _add_tensors(config.output, signature.outputs)
    _add_scheduling(config, max_batch_size, computing)
    if computing.threads is not None:
        config.parameters[THREADS_PARAMETER].string_value = str(computing.threads)
    if op_library:
        config.model_operations.op_library_filename.append(LIBRARY_NAME)
    if computing.device == "cuda":
        _add_cuda(config, computing)
    if signature.takes_text or any(tensor.name == WARMUP_MASK for tensor in signature.inputs):
        for warmup in warmups(computing.device, max_batch_size, max_length):
            add_warmup(config, signature, warmup, computing.device)
    return config


def public_config(
    name: str,
    signature: Signature,
    *,
    tasks: Mapping[str, Task],
    max_length: int,
    truncation: Truncation = "right",
    max_batch_size: int = 64,
    metrics: bool = False,
    device: Device = "cpu",
) -> ModelConfig:
    """Return the configuration of the public model: text in, answers out, by way of `NAME_model`.

    With several tasks, each text comes with the name of its own. That input is optional, so that a request
    without it is refused alone, by the public model. With `metrics` it asks the graph for its measures with
    every batch, and sums them up on Triton's metrics port. What it asks the graph for at a time is by the
    `device` that computes that; it tokenizes on the processor anyway.
    """
    task = answered(tasks)
    config = ModelConfig(name=name, backend=TEXT_BACKEND)
    config.input.add(name=TEXT_INPUT, data_type=DataType.TYPE_STRING, dims=[1])
    pair = config.input.add(name=TEXT_PAIR_INPUT, data_type=DataType.TYPE_STRING, dims=[1])
    pair.optional = any(each.text_pair != "required" for each in tasks.values())
    if len(tasks) > 1:
        config.input.add(name=TASK_INPUT, data_type=DataType.TYPE_STRING, dims=[1], optional=True)
    for output in task.outputs:
        tensor = config.output.add(name=output.name, data_type=_WIRE_TYPES[output.datatype], dims=output.dims)
        if output.is_labelled:
            tensor.label_filename = LABELS_NAME
    rho = signature.output(RHO)
    config.output.add(name="token_count", data_type=DataType.TYPE_INT32, dims=[1])
    config.output.add(name="truncated", data_type=DataType.TYPE_BOOL, dims=[1])
    config.output.add(name=RHO, data_type=rho.data_type, dims=rho.dims)
    _add_scheduling(config, max_batch_size, FRONT)
    parameters = {
        "model": graph_name(name),
        "inputs": ",".join(tensor.name for tensor in signature.inputs),
    }
    if metrics:
        parameters[METRICS_PARAMETER] = ",".join(tensor.name for tensor in signature.measures)
    if RUN_TOKENS_ON[device] != RUN_TOKENS:
        parameters[RUN_TOKENS_PARAMETER] = str(RUN_TOKENS_ON[device])
    told = _told(tasks, max_length, truncation)
    for key, value in {**parameters, **told, **_text_limits(task)}.items():
        config.parameters[key].string_value = value
    return config


def text_graph_config(
    name: str,
    signature: Signature,
    *,
    tasks: Mapping[str, Task],
    max_length: int,
    truncation: Truncation = "right",
    max_batch_size: int = 64,
    computing: Computing = ALL_CORES,
    is_twin: bool = False,
) -> ModelConfig:
    """Return the configuration of a public model that is its graph, or its twin's: text in, answers out.

    What its parameters tell is read by clients alone; the limits of texts are kept where the backend is this
    package's. A twin has no labels for Triton's classification extension.
    """
    config = graph_config(
        name, signature, max_length=max_length, max_batch_size=max_batch_size, computing=computing
    )
    task = answered(tasks)
    outputs = [] if is_twin else task.outputs
    labelled = {output.name for output in outputs if output.is_labelled}
    for tensor in config.output:
        if tensor.name in labelled:
            tensor.label_filename = LABELS_NAME
    for key, value in {**_told(tasks, max_length, truncation), **_text_limits(task)}.items():
        config.parameters[key].string_value = value
    return config


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


def _told(tasks: Mapping[str, Task], max_length: int, truncation: Truncation) -> dict[str, str]:
    """Return the parameters that tell a client of a public model what it answers."""
    descriptions = {key: each.to_json() for key, each in tasks.items()}
    told = {"max_length": str(max_length), "tasks": json.dumps(descriptions)}
    return told if truncation == "right" else told | {TRUNCATION_PARAMETER: truncation}


def _text_limits(task: Task) -> dict[str, str]:
    """Return the parameters that say how much text is read, as they are before an operator changes them."""
    of_text = DEFAULT_WINDOWED_BYTES if task.in_windows else DEFAULT_TEXT_BYTES
    return {TEXT_BYTES_PARAMETER: str(of_text), REQUEST_BYTES_PARAMETER: str(DEFAULT_REQUEST_BYTES)}


def graph_name(name: str) -> str:
    """Return the name of the graph model behind the public model `name`."""
    return f"{name}_model"


def _add_tensors(target: Any, tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        target.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)


def _add_scheduling(config: ModelConfig, max_batch_size: int, computing: Computing = ALL_CORES) -> None:
    config.max_batch_size = max_batch_size
    config.version_policy.all.SetInParent()
    kinds = {"cpu": ModelInstanceGroup.KIND_CPU, "cuda": ModelInstanceGroup.KIND_GPU}
    config.instance_group.add(count=computing.instances, kind=kinds[computing.device])
    # No max_queue_size: with one, Triton stops preparing batches ahead, and a request that comes right after
    # an answer can wait out a timer of 500 ms.
    config.dynamic_batching.SetInParent()
    if computing.queue_delay_us:
        config.dynamic_batching.max_queue_delay_microseconds = computing.queue_delay_us


def _add_cuda(config: ModelConfig, computing: Computing) -> None:
    """Say how ONNX Runtime uses a GPU.

    No CUDA graphs: the shapes within a graph hang on how many of a batch's tokens are padding, and its runs
    are a loop, neither of which can be captured.
    """
    for key, value in CUDA_PARAMETERS.items():
        config.parameters[key].string_value = value
    if computing.gpu_mem_limit is not None:
        config.parameters["gpu_mem_limit"].string_value = str(computing.gpu_mem_limit)
    accelerator = config.optimization.execution_accelerators.gpu_execution_accelerator.add(name=ACCELERATOR)
    for key, value in CUDA_OPTIONS.items():
        accelerator.parameters[key] = value


def to_text(config: ModelConfig) -> str:
    """Return the configuration as `config.pbtxt`."""
    text: str = text_format.MessageToString(config)
    if config.max_batch_size == 0:
        # proto3 leaves zeros out, and Triton reads an absent max_batch_size as "complete it for me".
        text += "max_batch_size: 0\n"
    return text


def read_config(path: Path) -> ModelConfig:
    """Read a `config.pbtxt`.

    Raises:
        RepositoryError: the file is missing or does not follow Triton's schema.
    """
    try:
        return text_format.Parse(path.read_text(encoding="utf-8"), ModelConfig())
    except OSError as error:
        raise RepositoryError(f"configuration {path} cannot be read: {error.strerror}") from error
    except (text_format.ParseError, ValueError) as error:  # no UTF-8, a number out of its range
        raise RepositoryError(f"configuration {path} is malformed: {in_brief(error)}") from error


def parameters(config: ModelConfig) -> Mapping[str, str]:
    """Return the configuration's string parameters."""
    return {key: value.string_value for key, value in config.parameters.items()}


def fixed_parameters(config: ModelConfig) -> dict[str, str]:
    """Return those of the configuration's parameters that are not the operator's."""
    is_graph = config.backend == GRAPH_BACKEND
    tunable = TEXT_PARAMETERS | SESSION_PARAMETERS if is_graph else FRONT_PARAMETERS
    return {key: value for key, value in parameters(config).items() if key not in tunable}


def task_names(config: ModelConfig) -> list[str]:
    """Return the names that TASK can have on a public model of several tasks; none on any other model.

    A model of others may have an input of that name too.
    """
    if not any(tensor.name == TASK_INPUT for tensor in config.input):
        return []
    try:
        tasks = json.loads(parameters(config).get("tasks", ""))
    except ValueError:
        return []
    return list(tasks) if isinstance(tasks, dict) else []


def health_request_of(config: ModelConfig, output: str | None = None) -> dict[str, Any]:
    """Return the JSON of an inference by which it is seen that a model answers, see `health_request`."""
    inputs = [
        Input(each.name, DataType.Name(each.data_type), tuple(each.dims), each.optional)
        for each in config.input
    ]
    return health_request(inputs, task_names(config), is_batched=config.max_batch_size > 0, output=output)


def backend_of(config: ModelConfig) -> str:
    """Return the name of a model's backend; "" for an ensemble."""
    backend: str = config.backend or config.platform.partition("_")[0]  # such as onnxruntime_onnx
    return "" if backend == "ensemble" else backend
