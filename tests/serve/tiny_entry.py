"""The parts of a tiny classifier with the signature of a real one."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from sparse_serve.op_library import DOMAIN
from sparse_serve.repository.config import AXES

WORDS = [f"w{number}" for number in range(30)]
VOCABULARY = {token: number for number, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
MAX_LENGTH = 16
LONG = 4096
LAYERS = 2


def tiny_graph(
    path: Path, *, classes: int = 2, seed: int = 0, domain_nodes: bool = False, axes: bool = False
) -> Path:
    """Write a graph whose logits are the sum of the embeddings of all unmasked tokens and segments.

    `rho` is the share of special tokens, in layer 2 of w0 to w3 as well. With `domain_nodes` the logits
    pass through an identity of the op library's domain, which is a function of the file as well. With `axes`
    the rows of [CLS], in layer 2 of [SEP] too, are on, and the columns of both, in layer 2 of w0 too.
    """
    rng = np.random.default_rng(seed)
    constants = {
        "words": rng.standard_normal((len(VOCABULARY), classes)).astype(np.float32),
        "segments": rng.standard_normal((2, classes)).astype(np.float32),
        "last": np.array([-1], np.int64),
        "middle": np.array([1], np.int64),
    }
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["word"]),
        helper.make_node("Gather", ["segments", "token_type_ids"], ["segment"]),
        helper.make_node("Add", ["word", "segment"], ["token"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", ["token", "column"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "middle"], ["summed"], keepdims=0),
        helper.make_node("Same", ["summed"], ["logits"], domain=DOMAIN)
        if domain_nodes
        else helper.make_node("Identity", ["summed"], ["logits"]),
    ]
    measures = ("rho", *AXES) if axes else ("rho",)
    constants |= MEASURE_CONSTANTS
    nodes += measure_nodes(measures, "mask")
    outputs = {"logits": classes} | dict.fromkeys(measures, LAYERS)
    graph = helper.make_graph(
        nodes,
        "tiny",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
            for name in ("input_ids", "attention_mask", "token_type_ids")
        ],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])
            for name, width in outputs.items()
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    same = helper.make_function(
        DOMAIN, "Same", ["x"], ["y"], [helper.make_node("Identity", ["x"], ["y"])], opsets[:1]
    )
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=[same] * domain_nodes)
    onnx.save(model, path)
    return path


MEASURE_CONSTANTS = {
    "rho_below": np.array([4, 8], np.int64),
    "rows_on_below": np.array([3, 4], np.int64),
    "columns_on_below": np.array([4, 5], np.int64),
    "token_axis": np.array([1], np.int64),
    "layer_axis": np.array([2], np.int64),
}


def measure_nodes(measures: Sequence[str], mask: str) -> list[onnx.NodeProto]:
    """Nodes that give measures of two layers: each the share of unmasked tokens with a low enough id."""
    nodes = [
        helper.make_node("Unsqueeze", ["input_ids", "layer_axis"], ["id_by_layer"]),
        helper.make_node("Unsqueeze", [mask, "layer_axis"], ["mask_by_layer"]),
        helper.make_node("ReduceSum", [mask, "token_axis"], ["true_length"]),
    ]
    for name in measures:
        nodes += [
            helper.make_node("Less", ["id_by_layer", f"{name}_below"], [f"{name}_bool"]),
            helper.make_node("Cast", [f"{name}_bool"], [f"{name}_float"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"{name}_float", "mask_by_layer"], [f"{name}_kept"]),
            helper.make_node("ReduceSum", [f"{name}_kept", "token_axis"], [f"{name}_count"], keepdims=0),
            helper.make_node("Div", [f"{name}_count", "true_length"], [name]),
        ]
    return nodes


def tiny_tokenizer(path: Path) -> Path:
    """Write a WordPiece tokenizer that comes with padding and truncation of its own, as real ones do."""
    tokenizer = Tokenizer(models.WordPiece(VOCABULARY, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.enable_padding(length=12, pad_id=0, pad_token="[PAD]")
    tokenizer.enable_truncation(max_length=5)
    tokenizer.save(str(path))
    return path
