"""The signature of a graph: its inputs and outputs, as its file or its configuration has them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from sparse_serve.errors import RepositoryError, in_brief
from sparse_serve.op_library import DOMAIN
from sparse_serve.repository.manifest import Dtype
from sparse_serve.repository.measures import AXES, MEASURES, RHO
from sparse_serve.tasks import TASK_IDS, Several, Task

TASK_INPUT = "TASK"
"""The input of a public model of several tasks that names the one of each text, BYTES [-1, 1]."""
TEXT_INPUT, TEXT_PAIR_INPUT = "TEXT", "TEXT_PAIR"
_DATA_TYPES: dict[int, int] = {
    onnx.TensorProto.FLOAT: DataType.TYPE_FP32,
    onnx.TensorProto.FLOAT16: DataType.TYPE_FP16,
    onnx.TensorProto.DOUBLE: DataType.TYPE_FP64,
    onnx.TensorProto.INT32: DataType.TYPE_INT32,
    onnx.TensorProto.INT64: DataType.TYPE_INT64,
    onnx.TensorProto.BOOL: DataType.TYPE_BOOL,
    onnx.TensorProto.STRING: DataType.TYPE_STRING,
}
_MOST_CHARACTERS = 200


@dataclass(frozen=True)
class Tensor:
    """One input or output of a graph; `dims` without the batch axis, -1 where free.

    Raises:
        RepositoryError: its name is no text, or longer than 200 characters.
    """

    name: str
    data_type: int
    dims: tuple[int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or len(self.name) > _MOST_CHARACTERS:  # bytes, where it is no UTF-8
            raise RepositoryError(
                f"graph tensor '{in_brief(self.name)}' has a name that is not served: UTF-8 of up to "
                f"{_MOST_CHARACTERS} characters is needed"
            )


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
                f"graph takes {in_brief(', '.join(found))}: {', '.join(wanted)}, BYTES [-1, 1] each, are "
                "needed"
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
        names = in_brief(", ".join(tensor.name for tensor in self.outputs))
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


def uses_op_library(model: onnx.ModelProto) -> bool:
    """Return whether the graph has nodes of the op library's domain."""
    bodies = (model.graph.node, *(function.node for function in model.functions))
    return any(node.domain == DOMAIN for body in bodies for node in nested(body))


def nested(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and those of the subgraphs that they have, such as the body of a loop."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nested(attribute.g.node)


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    tensor_type = value.type.tensor_type
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor_type.shape.dim)
    name = in_brief(value.name)
    if not shape or shape[0] != -1:
        raise RepositoryError(
            f"graph tensor '{name}' has shape {in_brief(list(shape))}, its first axis must be free"
        )
    if tensor_type.elem_type not in _DATA_TYPES:
        kind = _kind(onnx.TensorProto.DataType, tensor_type.elem_type)
        raise RepositoryError(f"graph tensor '{name}' is of type {kind}, which Triton does not serve")
    return Tensor(value.name, _DATA_TYPES[tensor_type.elem_type], shape[1:])


def _shown(tensor: Tensor) -> str:
    kind = _kind(DataType, tensor.data_type).removeprefix("TYPE_")
    return f"{kind} {in_brief([-1, *tensor.dims])}"


def _kind(kinds: Any, number: int) -> str:
    """Return the name of a number in an enumeration of protobuf's; a file may have one that is not in it."""
    return str(kinds.Name(number)) if number in kinds.values() else f"number {number}"
