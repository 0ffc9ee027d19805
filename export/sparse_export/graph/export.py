"""From a torch model to its ONNX graph."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import onnx
import torch
from onnx import ModelProto, helper
from transformers import PreTrainedModel

from sparse_export.attention.spec import AttentionSpec
from sparse_export.encoders.spec import store_attention
from sparse_export.graph.attention_biases import fold_attention_biases
from sparse_export.graph.fewer_nodes import rewrite_in_fewer_nodes
from sparse_export.graph.functions import attach_functions
from sparse_export.graph.fused_rows import fuse_rows
from sparse_export.graph.inputs import (
    BATCH,
    BORDERS,
    SEQUENCE,
    TOKENS,
    GraphInput,
    graph_inputs,
    token_inputs,
)
from sparse_export.graph.packed import PackedModel, PackedTokensModel, PaddedTokensModel
from sparse_export.graph.padded import PaddedModel
from sparse_export.graph.precision import FP32, Precision
from sparse_export.tasks import model_head
from sparse_serve.op_library import Device
from sparse_serve.runs import RUN_TOKENS_ON

GraphKind = Literal[
    "tokens", "tokens_dense", "packed", "packed_dense", "padded_fused", "padded_eager", "padded_sparse"
]
MIN_OPSET, DEFAULT_OPSET = 18, 20
# Function attributes with defaults came with IR 9.
_MIN_IR = 9


@dataclass(frozen=True)
class GraphTarget:
    """What the file is written for.

    Attributes:
        opset: version of the standard ONNX operators.
        precision: of the weights and of what is computed on.
        device: what computes it.
    """

    opset: int = DEFAULT_OPSET
    precision: Precision = FP32
    device: Device = "cpu"

    @property
    def run_tokens(self) -> int:
        """How many tokens are computed at a time."""
        return RUN_TOKENS_ON[self.device]

    @property
    def ir_version(self) -> int:
        """The oldest file format that carries this opset and our functions, so that it loads widest."""
        return max(_MIN_IR, int(helper.find_min_ir_version_for([helper.make_opsetid("", self.opset)])))


def export_graph(model: PreTrainedModel, kind: GraphKind, target: GraphTarget) -> ModelProto:
    """Trace a model into an ONNX graph with dynamic batch and sequence dimensions.

    Args:
        model: as `checkpoint.load_checkpoint` gives it, with a task; it is not changed.
        kind: "tokens" is the model itself on packed tokens; "packed" takes a padded batch, and drops the
            padding; "tokens_dense" and "packed_dense" are the same graphs with softmax; "padded_fused" and
            "padded_eager" the padded softmax graphs with ONNX Runtime's fused attention and with N² scores,
            without nodes of ours between products, as a stock ONNX Runtime fuses them by itself;
            "padded_sparse" is the padded model with its own sparsegen-lin on N² scores.
        target: opset, file format and precision.

    Returns:
        Inputs `inputs.token_inputs` or `inputs.graph_inputs`; the task's `graph_output`, `(batch, width)`
        float32 or by token `(batch, sequence, width)`, and, of packed graphs, measures of the attention,
        `(batch, layers)` float32 (see `packed.PackedModel.answers`).

    Raises:
        ValueError: the model has no task; "padded_sparse" of a model that has no sparsegen-lin over all keys.
    """
    inputs = (token_inputs if kind.startswith("tokens") else graph_inputs)(model.config)
    wrapped = _wrap(model, kind, target.precision)
    with warnings.catch_warnings(), _quiet("torch.onnx", "torch.export", "onnxscript", "onnx_ir"):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            wrapped,
            kwargs={each.name: _example(each) for each in inputs},
            dynamo=True,
            verbose=False,
            input_names=[each.name for each in inputs],
            output_names=[_unlike_others(name) for name in wrapped.output_names],
            dynamic_shapes={each.name: each.free_axes for each in inputs},
            opset_version=target.opset,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    if kind.startswith("tokens"):
        rewrite_in_fewer_nodes(program.model)
        fold_attention_biases(program.model)
    if kind.startswith(("tokens", "packed")) and target.device == "cpu":
        fuse_rows(program.model)
    proto = program.model_proto
    _strip_provenance(proto)
    _name_outputs(proto, wrapped.output_names)
    _name_dimensions(proto)
    proto.ir_version = target.ir_version
    proto.producer_name, proto.producer_version = "sparse-serve", ""
    attach_functions(proto, target.opset)
    onnx.checker.check_model(proto)
    return proto


def _example(graph_input: GraphInput) -> torch.Tensor:
    """Return what is traced with: rows of five tokens and of three, side by side or packed."""
    if TOKENS in graph_input.axes or BORDERS in graph_input.axes:
        packed = {"input_ids": [1, 2, 3, 4, 5, 1, 2, 3], "positions": [0, 1, 2, 3, 4, 0, 1, 2]}
        values = {**packed, "cu_seqlens": [0, 5, 8]}.get(graph_input.name, [0] * 8)
        return torch.tensor(values, dtype=graph_input.dtype)
    example = graph_input.example({BATCH: 2, SEQUENCE: 5})
    ids = torch.tensor([[1, 2, 3, 4, 5], [1, 2, 3, 0, 0]])
    if graph_input.name == "input_ids":
        return ids
    return (ids != 0).to(torch.int64) if graph_input.name == "attention_mask" else example


def _wrap(model: PreTrainedModel, kind: GraphKind, precision: Precision) -> PackedModel | PaddedModel:
    head = model_head(model)
    twin = precision.copy_of(model)
    if kind not in ("tokens", "packed", "padded_sparse"):
        store_attention(twin.config, AttentionSpec())
    wrapped: PackedModel | PaddedModel
    if kind in ("tokens", "tokens_dense"):
        wrapped = PackedTokensModel(twin, head)
    elif kind in ("packed", "packed_dense"):
        wrapped = PaddedTokensModel(twin, head)
    else:
        wrapped = PaddedModel(twin, head, kind.removeprefix("padded_"))  # type: ignore[arg-type]
    return wrapped.eval()


def _strip_provenance(model: ModelProto) -> None:
    """Drop the exporter's per-node notes: stack traces with the paths of the machine that exported."""
    for node in model.graph.node:
        del node.metadata_props[:]
        node.ClearField("doc_string")
    del model.graph.metadata_props[:]
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        del value.metadata_props[:]


def _unlike_others(name: str) -> str:
    """Return a name for an output that no value within the graph has: the exporter does not look."""
    return f"output.{name}"


def _name_outputs(model: ModelProto, names: Sequence[str]) -> None:
    """Call the outputs by their names, and what is called so within the graph otherwise."""
    renamed = {name: f"{name}.inner" for name in names} | {_unlike_others(name): name for name in names}
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    for value in (*model.graph.value_info, *model.graph.output):
        value.name = renamed.get(value.name, value.name)


def _name_dimensions(model: ModelProto) -> None:
    """Call the free dimensions of every output as the inputs do, whatever the exporter derived."""
    for output in model.graph.output:
        dims = output.type.tensor_type.shape.dim
        dims[0].dim_param = BATCH
        if len(dims) == 3:
            dims[1].dim_param = SEQUENCE


@contextmanager
def _quiet(*loggers: str) -> Iterator[None]:
    """Silence the exporter's notes about its own passes; errors still raise."""
    before = {name: logging.getLogger(name).level for name in loggers}
    try:
        for name in loggers:
            logging.getLogger(name).setLevel(logging.ERROR)
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
