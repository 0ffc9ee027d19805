"""A small BERT-like classifier with real attention, eager or fused, as entries and their twins have it."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from tiny_entry import MEASURE_CONSTANTS, VOCABULARY, measure_nodes

from sparse_serve.repository.measures import AXES

HEADS = 8
HEAD_SIZE = 4
WIDTH = HEADS * HEAD_SIZE
LAYERS = 2
MAX_LENGTH = 512

MICROSOFT = "com.microsoft"


def attention_graph(path: Path, kind: Literal["eager", "fused"], *, axes: bool = False) -> Path:
    """Write a graph of `LAYERS` attention layers over word embeddings; both kinds have the same weights.

    `eager` forms the scores `(B, H, L, L)` by MatMul, adds a broadcast mask, and takes their softmax; `fused`
    has ONNX Runtime's MultiHeadAttention. `rho` is 0: softmax gives no zeros. `axes` as in `tiny_graph`.
    """
    rng = np.random.default_rng(0)
    constants: dict[str, npt.NDArray[Any]] = {
        "words": rng.standard_normal((len(VOCABULARY), WIDTH)).astype(np.float32),
        "classifier": rng.standard_normal((WIDTH, 2)).astype(np.float32),
        "split": np.array([0, 0, HEADS, HEAD_SIZE], np.int64),
        "merge": np.array([0, 0, WIDTH], np.int64),
        "axes": np.array([1, 2], np.int64),
        "first": np.array(0, np.int64),
        "first_column": np.array([0], np.int64),
        "scale": np.array(HEAD_SIZE**-0.5, np.float32),
        "one": np.array(1, np.float32),
        "lowest": np.array(np.finfo(np.float32).min, np.float32),
        "no_zeros": np.zeros((1, LAYERS), np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["hidden_0"]),
        helper.make_node("Cast", ["attention_mask"], ["kept"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["attention_mask"], ["key_mask"], to=TensorProto.INT32),
        helper.make_node("Sub", ["one", "kept"], ["dropped"]),
        helper.make_node("Mul", ["dropped", "lowest"], ["flat_bias"]),
        helper.make_node("Unsqueeze", ["flat_bias", "axes"], ["bias"]),
    ]
    for layer in range(LAYERS):
        for name in ("query", "key", "value"):
            constants[f"{name}_weight_{layer}"] = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) * 0.1
        nodes += _projections(layer) + (_eager(layer) if kind == "eager" else [_fused(layer)])
        nodes.append(
            helper.make_node("Add", [f"attended_{layer}", f"hidden_{layer}"], [f"hidden_{layer + 1}"])
        )
    nodes += [
        helper.make_node("Gather", [f"hidden_{LAYERS}", "first"], ["pooled"], axis=1),
        helper.make_node("MatMul", ["pooled", "classifier"], ["logits"]),
        helper.make_node("Gather", ["kept", "first_column"], ["column"], axis=1),
        helper.make_node("Mul", ["column", "no_zeros"], ["rho"]),
    ]
    measures = ["rho"]
    if axes:
        constants |= MEASURE_CONSTANTS
        nodes += measure_nodes(AXES, "kept")
        measures += AXES
    graph = helper.make_graph(
        nodes,
        kind,
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
            for name in ("input_ids", "attention_mask")
        ],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2]),
            *(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", LAYERS]) for name in measures),
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(MICROSOFT, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def _projections(layer: int) -> list[onnx.NodeProto]:
    return [
        helper.make_node("MatMul", [f"hidden_{layer}", f"{name}_weight_{layer}"], [f"{name}_{layer}"])
        for name in ("query", "key", "value")
    ]


def _fused(layer: int) -> onnx.NodeProto:
    inputs = [f"query_{layer}", f"key_{layer}", f"value_{layer}", "", "key_mask"]
    return helper.make_node(
        "MultiHeadAttention", inputs, [f"attended_{layer}"], domain=MICROSOFT, num_heads=HEADS
    )


def _eager(layer: int) -> list[onnx.NodeProto]:
    nodes = []
    for name, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        source = f"{name}_{layer}"
        nodes += [
            helper.make_node("Reshape", [source, "split"], [f"{source}_split"]),
            helper.make_node("Transpose", [f"{source}_split"], [f"{source}_heads"], perm=order),
        ]
    return [
        *nodes,
        helper.make_node("MatMul", [f"query_{layer}_heads", f"key_{layer}_heads"], [f"raw_{layer}"]),
        helper.make_node("Mul", [f"raw_{layer}", "scale"], [f"scores_{layer}"]),
        helper.make_node("Add", [f"scores_{layer}", "bias"], [f"masked_{layer}"]),
        helper.make_node("Softmax", [f"masked_{layer}"], [f"weights_{layer}"], axis=-1),
        helper.make_node("MatMul", [f"weights_{layer}", f"value_{layer}_heads"], [f"context_{layer}"]),
        helper.make_node("Transpose", [f"context_{layer}"], [f"rows_{layer}"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", [f"rows_{layer}", "merge"], [f"attended_{layer}"]),
    ]
