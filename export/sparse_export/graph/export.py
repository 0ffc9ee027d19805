"""From a torch classifier to its ONNX graph."""

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import onnx
import torch
from onnx import ModelProto, helper
from torch import nn
from transformers import PreTrainedModel

from sparse_export.encoders.checkpoint import AttentionSpec
from sparse_export.encoders.families import input_names
from sparse_export.graph.functions import attach_functions
from sparse_export.graph.packed import PackedClassifier
from sparse_export.graph.padded import PaddedClassifier
from sparse_serve.repository.config import AXES
from sparse_serve.repository.manifest import Dtype

GraphKind = Literal["packed", "packed_dense", "padded_fused", "padded_eager", "unfused"]
MIN_OPSET, DEFAULT_OPSET = 18, 20
# Function attributes with defaults came with IR 9.
_MIN_IR = 9


@dataclass(frozen=True)
class GraphTarget:
    """What the file is written for.

    Attributes:
        opset: version of the standard ONNX operators.
        ir_version: version of the ONNX file format.
        dtype: type of the weights and of the tensors between the operators.
    """

    opset: int = DEFAULT_OPSET
    dtype: Dtype = "fp32"

    @property
    def ir_version(self) -> int:
        """The oldest file format that carries this opset and our functions, so that it loads widest."""
        return max(_MIN_IR, int(helper.find_min_ir_version_for([helper.make_opsetid("", self.opset)])))


def export_graph(model: PreTrainedModel, kind: GraphKind, target: GraphTarget) -> ModelProto:
    """Trace a classifier into an ONNX model with dynamic batch and sequence dimensions.

    Args:
        model: a classifier from `checkpoint.load_classifier`; it is not changed.
        kind: "packed" is the model itself on packed rows; "packed_dense" the same graph with softmax;
            "padded_fused" and "padded_eager" the padded softmax graphs with ONNX Runtime's fused attention
            and with N² scores; "unfused" the padded model with its own normaliser.
        target: opset, file format and type of the weights.

    Returns:
        Inputs `families.input_names`, `(batch, sequence)` int64 each; outputs `logits` `(batch, C)` float32
        and, of packed graphs, `rho` `(batch, layers)` float32, with a pattern `rows_on` and `columns_on` of
        the same shape too (see `packed.PackedClassifier`).

    Raises:
        ValueError: "unfused" of a model that has no sparsegen-lin over all keys to show.
    """
    example = torch.tensor([[1, 2, 3, 4, 5], [1, 2, 3, 0, 0]])
    names = input_names(model.config)
    inputs = (example, (example != 0).to(torch.int64), torch.zeros_like(example))[: len(names)]
    with warnings.catch_warnings(), _quiet("torch.onnx", "torch.export", "onnxscript", "onnx_ir"):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _wrap(model, kind, target.dtype),
            inputs,
            dynamo=True,
            verbose=False,
            input_names=list(names),
            output_names=_output_names(model, kind),
            dynamic_shapes={name: {0: "batch", 1: "sequence"} for name in names},
            opset_version=target.opset,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    proto = program.model_proto
    _strip_provenance(proto)
    _name_dimensions(proto)
    proto.ir_version = target.ir_version
    proto.producer_name, proto.producer_version = "sparse-serve", ""
    attach_functions(proto, target.opset)
    onnx.checker.check_model(proto)
    return proto


def _output_names(model: PreTrainedModel, kind: GraphKind) -> list[str]:
    measures = ["rho"] if kind.startswith("packed") else []
    if kind == "packed" and AttentionSpec.from_config(model.config).kind == "axis":
        measures += AXES
    return ["logits", *measures]


def _wrap(model: PreTrainedModel, kind: GraphKind, dtype: Dtype) -> nn.Module:
    if dtype == "fp16":
        twin = copy.deepcopy(model).half()
    else:
        # Parameters are shared with the original; the config, which names the attention, is the copy's own.
        memo = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        twin = copy.deepcopy(model, memo)
    if kind not in ("packed", "unfused"):
        AttentionSpec().store(twin.config)
    if kind.startswith("packed"):
        return PackedClassifier(twin).eval()
    return PaddedClassifier(twin, kind.removeprefix("padded_")).eval()  # type: ignore[arg-type]


def _strip_provenance(model: ModelProto) -> None:
    """Drop the exporter's per-node notes: stack traces with the paths of the machine that exported."""
    for node in model.graph.node:
        del node.metadata_props[:]
        node.ClearField("doc_string")
    del model.graph.metadata_props[:]
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        del value.metadata_props[:]


def _name_dimensions(model: ModelProto) -> None:
    """Call the batch dimension of every output "batch", as the inputs do, whatever the exporter derived."""
    for output in model.graph.output:
        output.type.tensor_type.shape.dim[0].dim_param = "batch"


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
