"""Triton model configurations, built as `ModelConfig` messages and written as protobuf text."""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInstanceGroup

from sparse_serve.errors import OptionError, RepositoryError, in_brief
from sparse_serve.op_library import LIBRARY_NAME, Device
from sparse_serve.repository.manifest import Dtype
from sparse_serve.repository.measures import AXES, MEASURES, RHO
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
from sparse_serve.stub.runs import RUN_TOKENS, RUN_TOKENS_ON
from sparse_serve.tasks import TASK_IDS, Several, Task, answered
from sparse_serve.tasks.encoding import Truncation

CONFIG_NAME = "config.pbtxt"
LABELS_NAME = "labels.txt"
GRAPH_NAME = "model.onnx"
WARMUP_TOKENS = 16
WARMUP_MASK = "attention_mask"
CUDA_OPTIONS = {"use_tf32": "0"}
"""Of the accelerator: float32 is computed as such, or it is not within the gate's error."""
CUDA_PARAMETERS = {"arena_extend_strategy": "1", "cudnn_conv_algo_search": "1"}
"""The arena grows by what is asked for (1) where it would double (0), and no convolutions are searched for.
As the accelerator's parameters Triton 26.06 would overwrite them by its defaults."""
METRICS_PARAMETER = "metrics"
TRUNCATION_PARAMETER = "truncation"
"""What becomes of long texts, where they are not cut from the right."""
TEXT_BACKEND = "sparse_serve_text"
GRAPH_BACKEND = "onnxruntime"
TASK_INPUT = "TASK"
"""The input of a public model of several tasks that names the one of each text, BYTES [-1, 1]."""
TEXT_INPUT, TEXT_PAIR_INPUT = "TEXT", "TEXT_PAIR"

# Of a row, at most.
_SPECIAL_TOKENS = 8
_DATA_TYPES: dict[int, int] = {
    onnx.TensorProto.FLOAT: DataType.TYPE_FP32,
    onnx.TensorProto.FLOAT16: DataType.TYPE_FP16,
    onnx.TensorProto.DOUBLE: DataType.TYPE_FP64,
    onnx.TensorProto.INT32: DataType.TYPE_INT32,
    onnx.TensorProto.INT64: DataType.TYPE_INT64,
    onnx.TensorProto.BOOL: DataType.TYPE_BOOL,
    onnx.TensorProto.STRING: DataType.TYPE_STRING,
}
_WIRE_TYPES: dict[str, int] = {
    "FP32": DataType.TYPE_FP32,
    "INT32": DataType.TYPE_INT32,
    "BYTES": DataType.TYPE_STRING,
}


@dataclass(frozen=True, kw_only=True)
class Computing:
    """What a graph is computed with; how the defaults were found is in `docs/serving_defaults.md`.

    Attributes:
        instances: copies of the model that compute at the same time, each with weights of its own; on GPUs
            those of each.
        threads: of each instance; None for one on each core that the server sees.
        queue_delay_us: microseconds that a request may wait for others to share its run.
        device: what computes.
        gpu_mem_limit: bytes of device memory that the arena of each instance may take; None for all.
    """

    instances: int = 1
    threads: int | None = None
    queue_delay_us: int = 0
    device: Device = "cpu"
    gpu_mem_limit: int | None = None

    @classmethod
    def on(
        cls,
        cores: int | None,
        instances: int = 1,
        queue_delay_us: int = 0,
        *,
        device: Device = "cpu",
        gpu_mem_limit: int | None = None,
    ) -> "Computing":
        """Return what makes use of so many cores; of those that the server sees, where they are None.

        Raises:
            OptionError: there are fewer cores than instances, a number is out of range, or memory of a GPU is
                limited where none computes.
        """
        if gpu_mem_limit is not None and device != "cuda":
            raise OptionError("--gpu-mem-limit is for --device cuda: leave it out")
        if instances < 1 or queue_delay_us < 0 or (cores is not None and cores < instances):
            raise OptionError(
                f"{instances} instances on {cores or 'all'} cores, waiting {queue_delay_us} µs: at least one "
                "instance is needed, a core for each, and no wait below 0"
            )
        if cores is None and instances > 1 and device == "cpu":
            raise OptionError(f"{instances} instances share the cores: say with --cores how many there are")
        threads = None if cores is None else cores // instances
        return cls(
            instances=instances,
            threads=threads,
            queue_delay_us=queue_delay_us,
            device=device,
            gpu_mem_limit=gpu_mem_limit,
        )


ALL_CORES = Computing()
"""One instance with all cores that the server sees, which waits for nothing."""


FRONT = Computing(instances=2)
"""What a server-side tokenizer is served with: one tokenizes while the other waits for the graph."""


@dataclass(frozen=True)
class Warmup:
    """What an instance computes before its model is called ready.

    Attributes:
        name: what the configuration calls it.
        rows: of the batch, all alike.
        tokens: of each row.
    """

    name: str
    rows: int
    tokens: int

    @property
    def mask_file(self) -> str:
        """The file with a row's mask, ones alone, for a graph of token ids."""
        return WARMUP_MASK if self.tokens == WARMUP_TOKENS else f"{WARMUP_MASK}_{self.tokens}"

    @property
    def text_file(self) -> str:
        """The file with a row's text, for a graph that takes text."""
        return f"text_{self.tokens}"


def warmups(device: Device, max_batch_size: int, max_length: int) -> list[Warmup]:
    """Return what instances on a device warm up with.

    On a GPU the longest row and the fullest batch too: kernels are loaded for them, and the arena takes the
    memory that they need, before a request does, or the model does not load.
    """
    short = Warmup("one_short_row", 1, WARMUP_TOKENS)
    if device == "cpu":
        return [short]
    return [short, Warmup("one_long_row", 1, max_length), Warmup("full_batch", max_batch_size, max_length)]


@dataclass(frozen=True)
class Tensor:
    """One input or output of a graph; `dims` without the batch axis, -1 where free."""

    name: str
    data_type: int
    dims: tuple[int, ...]


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a graph, in the file's order."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def takes_text(self) -> bool:
        """Whether the tokenizer is in the graph."""
        return any(tensor.name == TEXT_INPUT for tensor in self.inputs)

    def answer(self, task: Task) -> Tensor:
        """Return the output that `task` is answered from.

        Raises:
            RepositoryError: it is missing, or of another type or shape; or so is an input that says of which
                task a row is, or, where the graph takes text, any other.
        """
        if self.takes_text:
            self._check_texts(task)
        else:
            self._check_task_ids(task)
        tensor = self.output(task.graph_output)
        wanted = (-1, task.width) if task.by_token else (task.width,)
        if tensor.data_type != DataType.TYPE_FP32 or tensor.dims != wanted:
            raise RepositoryError(
                f"graph gives {tensor.name} {_shown(tensor)} for {task.type.replace('_', ' ')}: "
                f"FP32 {[-1, *wanted]} is needed"
            )
        return tensor

    def _check_texts(self, task: Task) -> None:
        wanted = text_inputs(task)
        found = [tensor.name for tensor in self.inputs]
        are_texts = all((each.data_type, each.dims) == (DataType.TYPE_STRING, (1,)) for each in self.inputs)
        if found != wanted or not are_texts:
            raise RepositoryError(
                f"graph takes {', '.join(found)}: {', '.join(wanted)}, BYTES [-1, 1] each, are needed"
            )

    def _check_task_ids(self, task: Task) -> None:
        found = next((tensor for tensor in self.inputs if tensor.name == TASK_IDS), None)
        if not isinstance(task, Several):
            if found is not None:
                raise RepositoryError(
                    f"graph has the input {TASK_IDS}, but one task: export the checkpoint again, all of its "
                    "tasks or one with --single-task"
                )
            return
        if found is None:
            raise RepositoryError(
                f"graph has no input {TASK_IDS}, by which rows of the tasks {', '.join(task.tasks)} are told "
                "apart: INT64 [-1, 1] is needed"
            )
        if found.data_type != DataType.TYPE_INT64 or found.dims != (1,):
            raise RepositoryError(f"graph input {TASK_IDS} is {_shown(found)}: INT64 [-1, 1] is needed")

    def output(self, name: str) -> Tensor:
        """Return the output called `name`.

        Raises:
            RepositoryError: the graph has no such output.
        """
        for tensor in self.outputs:
            if tensor.name == name:
                return tensor
        names = ", ".join(tensor.name for tensor in self.outputs)
        raise RepositoryError(f"graph has no output '{name}', only {names}")

    @property
    def measures(self) -> tuple[Tensor, ...]:
        """What the graph measures of its attention, by layer: those of `MEASURES` that it has.

        Each is FP32 [-1, layers], and computed only when asked for.

        Raises:
            RepositoryError: one is missing, or of another type or shape.
        """
        rho = self.output(RHO)
        has_pattern = any(tensor.name in AXES for tensor in self.outputs)
        wanted = (measure for measure in MEASURES if has_pattern or not measure.with_pattern)
        measures = tuple(self.output(measure.name) for measure in wanted)
        for tensor in measures:
            is_by_layer = len(tensor.dims) == 1 and tensor.dims == rho.dims
            if tensor.data_type != DataType.TYPE_FP32 or not is_by_layer:
                raise RepositoryError(
                    f"graph output '{tensor.name}' is {_shown(tensor)}: FP32 [-1, layers] is needed, with as "
                    "many layers as rho"
                )
        return measures


def _shown(tensor: Tensor) -> str:
    return f"{DataType.Name(tensor.data_type).removeprefix('TYPE_')} {[-1, *tensor.dims]}"


def load_graph(path: Path) -> onnx.ModelProto:
    """Load an ONNX file without its external weights.

    Raises:
        RepositoryError: the file is missing or is not ONNX.
    """
    try:
        return onnx.load(path, load_external_data=False)
    except OSError as error:
        raise RepositoryError(f"graph {path} cannot be read: {error.strerror}") from error
    except Exception as error:  # protobuf's DecodeError differs between its implementations
        raise RepositoryError(f"graph {path} is not an ONNX file: {in_brief(error)}") from error


def nested(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and those of the subgraphs that they have, such as the body of a loop."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nested(attribute.g.node)


def graph_signature(model: onnx.ModelProto) -> Signature:
    """Read the signature of a batched graph.

    Raises:
        RepositoryError: a tensor has no free first axis or a type Triton does not know.
    """
    initialized = {tensor.name for tensor in model.graph.initializer}
    return Signature(
        inputs=tuple(_tensor(value) for value in model.graph.input if value.name not in initialized),
        outputs=tuple(_tensor(value) for value in model.graph.output),
    )


def signature_in(config: ModelConfig) -> Signature:
    """Return the signature of a graph as its configuration has it."""
    return Signature(
        inputs=tuple(Tensor(each.name, each.data_type, tuple(each.dims)) for each in config.input),
        outputs=tuple(Tensor(each.name, each.data_type, tuple(each.dims)) for each in config.output),
    )


def text_inputs(task: Task) -> list[str]:
    """Return the inputs of a graph that takes text, in order."""
    pair, several = task.reads_pairs, isinstance(task, Several)
    return [TEXT_INPUT, *([TEXT_PAIR_INPUT] if pair else []), *([TASK_INPUT] if several else [])]


def graph_dtype(model: onnx.ModelProto) -> Dtype:
    """Return the type of a graph's weights: "int8", "bf16" or "fp16" where any of them is."""
    types = {tensor.data_type for tensor in model.graph.initializer}
    kinds: dict[int, Dtype] = {
        onnx.TensorProto.INT8: "int8",
        onnx.TensorProto.BFLOAT16: "bf16",
        onnx.TensorProto.FLOAT16: "fp16",
    }
    return next((name for kind, name in kinds.items() if kind in types), "fp32")


def device_of(config: ModelConfig) -> Device:
    """Return what a model is computed on: "cuda" where any of its instances are."""
    on_gpu = any(group.kind == ModelInstanceGroup.KIND_GPU for group in config.instance_group)
    return "cuda" if on_gpu else "cpu"


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    tensor_type = value.type.tensor_type
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor_type.shape.dim)
    if not shape or shape[0] != -1:
        raise RepositoryError(
            f"graph tensor '{value.name}' has shape {list(shape)}, its first axis must be free"
        )
    if tensor_type.elem_type not in _DATA_TYPES:
        kind = onnx.TensorProto.DataType.Name(tensor_type.elem_type)
        raise RepositoryError(f"graph tensor '{value.name}' is of type {kind}, which Triton does not serve")
    return Tensor(value.name, _DATA_TYPES[tensor_type.elem_type], shape[1:])


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
            _add_warmup(config, signature, warmup, computing.device)
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


def _add_warmup(config: ModelConfig, signature: Signature, warmup: Warmup, device: Device) -> None:
    """Rows of tokens, or texts: a mask of zeros would warm nothing up, so its ones come from a file.

    On a processor the text is empty; on a GPU it comes from a file too.
    """
    added = config.model_warmup.add(name=warmup.name, batch_size=warmup.rows)
    for tensor in signature.inputs:
        sample = added.inputs[tensor.name]
        sample.data_type = tensor.data_type
        sample.dims.extend(warmup.tokens if dim == -1 else dim for dim in tensor.dims)
        if tensor.name == WARMUP_MASK:
            sample.input_data_file = warmup.mask_file
        elif tensor.name == TEXT_INPUT and device == "cuda":
            sample.input_data_file = warmup.text_file
        else:
            sample.zero_data = True


def warmup_files(config: ModelConfig, signature: Signature, warming: Iterable[Warmup]) -> dict[str, bytes]:
    """Return the files, by name, that a model's configuration warms up with, as Triton reads them."""
    named = {
        sample.input_data_file for warmup in config.model_warmup for sample in warmup.inputs.values()
    } - {""}
    if signature.takes_text:
        found = {each.text_file: _text_of(each.tokens) for each in warming}
    else:
        found = {each.mask_file: struct.pack(f"<{each.tokens}q", *[1] * each.tokens) for each in warming}
    return {name: content for name, content in found.items() if name in named}


def _text_of(tokens: int) -> bytes:
    """Return a text of about so many tokens, and not more, behind its length in four bytes."""
    text = b"a " * max(1, tokens - _SPECIAL_TOKENS)
    return struct.pack("<I", len(text)) + text


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
    except (text_format.ParseError, UnicodeDecodeError) as error:
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
    """Return the names that TASK can have on a public model of several tasks; none on any other model."""
    if not any(tensor.name == TASK_INPUT for tensor in config.input):
        return []
    return list(json.loads(parameters(config)["tasks"]))


def backend_of(config: ModelConfig) -> str:
    """Return the name of a model's backend; "" for an ensemble."""
    backend: str = config.backend or config.platform.partition("_")[0]  # such as onnxruntime_onnx
    return "" if backend == "ensemble" else backend
