"""Weights that are drawn by their names, and logits and nodes as text: how `before/` is kept small."""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from onnx import ModelProto, helper
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from sparse_serve.op_library import DOMAIN


def seeded_weights(shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Draw every weight from its name and shape alone, float32, far from where layers begin."""
    return {name: _drawn(name, tuple(shape)) for name, shape in shapes.items()}


def _drawn(name: str, shape: tuple[int, ...]) -> Tensor:
    drawn = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)
    if name.endswith("axis.weight"):
        drawn *= 0.3
    elif name.endswith(("axis.bias", "diagonals.logits")):
        drawn -= 1  # some are on, more are off
    elif len(shape) > 1:
        drawn *= 0.25
    elif name.endswith("weight"):  # of a norm
        drawn = 1 + 0.1 * drawn
    else:
        drawn *= 0.1
    return torch.from_numpy(drawn)


def write_weights(folder: Path, weights: Mapping[str, Tensor]) -> None:
    save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})


def stock_model(folder: Path) -> PreTrainedModel:
    """The checkpoint as Transformers alone loads it: no pattern, no sparsegen-lin."""
    model: PreTrainedModel = AutoModelForSequenceClassification.from_pretrained(
        folder, attn_implementation="eager"
    )
    return model.eval()


@torch.no_grad()
def logits_of(model: PreTrainedModel, batch: Mapping[str, Tensor]) -> Tensor:
    """Logits `(B, C)`."""
    logits: Tensor = model(**batch).logits
    return logits


def hex_of(tensor: Tensor) -> str:
    """The bytes of a float32 tensor."""
    return tensor.contiguous().numpy().astype("<f4").tobytes().hex()


def of_hex(text: str) -> Tensor:
    """The float32 values that `hex_of` wrote, `(n,)`."""
    return torch.from_numpy(np.frombuffer(bytes.fromhex(text), "<f4").copy())


def described_nodes(model: ModelProto) -> str:
    """Operators in order, those of our domains with their attributes."""
    described = []
    for node in model.graph.node:
        if not node.domain:
            described.append(node.op_type)
            continue
        attributes = sorted((each.name, helper.get_attribute_value(each)) for each in node.attribute)
        values = ",".join(f"{key}={_short(value)}" for key, value in attributes)
        described.append(f"{node.domain.removeprefix(DOMAIN)}:{node.op_type}({values})".replace(" ", ""))
    return " ".join(described)


def _short(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else f"{value}"
