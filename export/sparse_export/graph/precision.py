"""The precision of an exported model: the type of its weights and of what it computes on.

It is an axis of what is exported, like the kind of graph: `export` chooses one by name, the graph is traced
from a copy of the model in it, and the gate accepts the difference from float32 that it brings.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from sparse_serve.errors import CheckpointError, OptionError
from sparse_serve.op_library import Device
from sparse_serve.repository.manifest import Dtype

# Of the weights of a graph: a protobuf message ends at 2 GiB, and nodes and a tokenizer stand in it too.
MOST_BYTES = 2**31 - 2**24


@dataclass(frozen=True)
class Precision:
    """One precision.

    Attributes:
        name: what `export --dtype` and the manifest call it.
        torch_dtype: of the model that is traced.
        atol: the difference of an answer from torch's in float32 that is accepted of the graph as it is
            traced, unless told otherwise.
        devices: what computes it.
        is_quantized: whether linear layers and embeddings become integers once it is traced (see `int8`).
    """

    name: Dtype
    torch_dtype: torch.dtype
    atol: float
    devices: tuple[Device, ...] = ("cpu", "cuda")
    is_quantized: bool = False

    def copy_of(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return a copy in this precision; in that of the model it shares the weights.

        The config, which names the attention, is the copy's own.
        """
        if model.dtype != self.torch_dtype:
            return copy.deepcopy(model).to(self.torch_dtype)
        memo = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        return copy.deepcopy(model, memo)

    def require_in_one_file(self, checkpoint: str | Path, model: PreTrainedModel) -> None:
        """See that a model is not too large for a graph: ONNX checks one as a single protobuf message.

        Raises:
            CheckpointError: its weights leave no place for the rest of the graph.
        """
        count = sum(weight.numel() for weight in model.parameters())
        size = count * self.torch_dtype.itemsize
        if size <= MOST_BYTES:
            return
        advice = "give --dtype fp16" if 2 * count <= MOST_BYTES else "export a smaller model"
        raise CheckpointError(
            f"{checkpoint} has {count:,} weights, {size:,} bytes in {self.name}, in which it is traced; a "
            f"graph takes at most {MOST_BYTES:,}: {advice}"
        )


FP32 = Precision("fp32", torch.float32, atol=1e-4)
# Float16 rounds every tensor between two operators to 11 bits: measured up to 0.003 on fine-tuned encoders.
FP16 = Precision("fp16", torch.float16, atol=1e-2)
# Bfloat16 to 8: as many times as much.
BF16 = Precision("bf16", torch.bfloat16, atol=8e-2, devices=("cuda",))
INT8 = Precision("int8", torch.float32, atol=FP32.atol, devices=("cpu",), is_quantized=True)

PRECISIONS: Mapping[str, Precision] = {each.name: each for each in (FP32, FP16, BF16, INT8)}
_ELSEWHERE = {
    "bf16": "ONNX Runtime has no bfloat16 MatMul on CPUs, bf16 models need a GPU (--device cuda); ",
    "int8": "its integers are those of processors (--device cpu); ",
}


def precision_of(name: str, device: Device = "cpu") -> Precision:
    """Return the precision that a command line names for a device.

    Raises:
        OptionError: there is none of this name, or it is not for this device.
    """
    precision = PRECISIONS.get(name)
    if precision is not None and device in precision.devices:
        return precision
    why = "" if precision is None else _ELSEWHERE[name]
    names = ", ".join(each.name for each in PRECISIONS.values() if device in each.devices)
    on = " on GPUs" if device == "cuda" else ""
    raise OptionError(f"--dtype {name} is not supported{on}: {why}choose one of {names}")
