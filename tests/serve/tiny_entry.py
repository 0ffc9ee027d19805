"""The parts of a tiny classifier with the signature of a real one."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from sparse_serve.op_library import DOMAIN

WORDS = [f"w{number}" for number in range(30)]
VOCABULARY = {token: number for number, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
MAX_LENGTH = 16
LAYERS = 2


def tiny_graph(path: Path, *, classes: int = 2, seed: int = 0, domain_nodes: bool = False) -> Path:
    """Write a graph whose logits are the sum of the embeddings of all unmasked tokens and segments.

    `rho` is the share of masked tokens, in every layer. With `domain_nodes` the logits pass through an
    identity of the op library's domain, which is a function of the file as well.
    """
    rng = np.random.default_rng(seed)
    constants = {
        "words": rng.standard_normal((len(VOCABULARY), classes)).astype(np.float32),
        "segments": rng.standard_normal((2, classes)).astype(np.float32),
        "last": np.array([-1], np.int64),
        "middle": np.array([1], np.int64),
        "one": np.array(1, np.float32),
        "layers": np.ones((1, LAYERS), np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["word"]),
        helper.make_node("Gather", ["segments", "token_type_ids"], ["segment"]),
        helper.make_node("Add", ["word", "segment"], ["token"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", ["token", "column"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "middle"], ["summed"], keepdims=0),
        helper.make_node("ReduceMean", ["mask", "middle"], ["share"], keepdims=1),
        helper.make_node("Sub", ["one", "share"], ["dropped"]),
        helper.make_node("Mul", ["dropped", "layers"], ["rho"]),
        helper.make_node("Same", ["summed"], ["logits"], domain=DOMAIN)
        if domain_nodes
        else helper.make_node("Identity", ["summed"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
            for name in ("input_ids", "attention_mask", "token_type_ids")
        ],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes]),
            helper.make_tensor_value_info("rho", TensorProto.FLOAT, ["batch", LAYERS]),
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
