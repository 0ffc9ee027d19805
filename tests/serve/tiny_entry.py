"""The parts of tiny entries with the signature of real ones."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from sparse_serve.op_library import DOMAIN
from sparse_serve.repository.manifest import Attention
from sparse_serve.repository.measures import AXES
from sparse_serve.tasks import (
    TASK_IDS,
    Classification,
    Embedding,
    MultiLabel,
    QuestionAnswering,
    Regression,
    Several,
    Task,
    TokenClassification,
)

WORDS = [f"w{number}" for number in range(30)]
VOCABULARY = {token: number for number, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
MAX_LENGTH = 16
LONG = 4096
LAYERS = 2

CLASSES = Classification(("negative", "positive"))
PAIRS = Classification(("negative", "positive"), paired=True)
SPANS = QuestionAnswering(max_answer_tokens=4, stride=4)
TAGS = TokenClassification(("O", "B-PER", "I-PER", "B-LOC", "I-LOC"))
VECTORS = Embedding(size=3)
SEVERAL = Several(
    tasks={
        "sentiment": Classification(("awful", "bad", "so-so", "good", "great")),
        "paraphrase": Classification(("no", "yes")),
        "sts": Regression(),
        "topics": MultiLabel(("art", "law", "war")),
    }
)

AAA = Attention(normalizer="softmax", pattern="axis+local2")
LEGACY = Path(__file__).parent / "legacy"
"""A repository with an entry that an earlier version wrote: a front of its own, manifest schema 1."""
DOCKER = Path(__file__).parents[2] / "docker"
SAMPLE = Path(__file__).parents[2] / "model_repository" / "sample"
"""The entry in git, which `make_sample.py` writes."""


def tiny_graph(
    path: Path,
    *,
    task: Task = CLASSES,
    seed: int = 0,
    domain_nodes: bool = False,
    axes: bool = False,
) -> Path:
    """Write a graph that answers the task with sums of embeddings of tokens and segments.

    The sum is that of all unmasked tokens, or by token of it and of those before it. `rho` is the share of
    special tokens, in layer 2 of w0 to w3 as well. Of several tasks each adds numbers of its own to the sum,
    which are −inf where it has no label. With `domain_nodes` the answer passes through an identity
    of the op library's domain, which is a function of the file as well. With `axes` the rows of [CLS], in
    layer 2 of [SEP] too, are on, and the columns of both, in layer 2 of w0 too.
    """
    rng = np.random.default_rng(seed)
    width, output = task.width, task.graph_output
    constants: dict[str, npt.NDArray[Any]] = {
        "words": rng.standard_normal((len(VOCABULARY), width)).astype(np.float32),
        "segments": rng.standard_normal((2, width)).astype(np.float32),
        "last": np.array([-1], np.int64),
        "middle": np.array([1], np.int64),
        "axis": np.array(1, np.int64),
    }
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["word"]),
        helper.make_node("Gather", ["segments", "token_type_ids"], ["segment"]),
        helper.make_node("Add", ["word", "segment"], ["token"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", ["token", "column"], ["kept"]),
        helper.make_node("CumSum", ["kept", "axis"], ["summed"])
        if task.by_token
        else helper.make_node("ReduceSum", ["kept", "middle"], ["summed"], keepdims=0),
    ]
    if isinstance(task, Several):
        constants["of_task"] = _numbers_of_tasks(task, rng)
        nodes += [
            helper.make_node("Squeeze", [TASK_IDS, "middle"], ["row_task"]),
            helper.make_node("Gather", ["of_task", "row_task"], ["added"]),
            helper.make_node("Add", ["summed", "added"], ["answered"]),
        ]
    nodes.append(
        helper.make_node(
            "Same" if domain_nodes else "Identity",
            ["answered" if isinstance(task, Several) else "summed"],
            [output],
            domain=DOMAIN if domain_nodes else "",
        )
    )
    measures = ("rho", *AXES) if axes else ("rho",)
    constants |= MEASURE_CONSTANTS
    nodes += measure_nodes(measures, "mask")
    shape: list[str | int] = ["batch", "sequence", width] if task.by_token else ["batch", width]
    outputs = {output: shape} | {name: ["batch", LAYERS] for name in measures}
    inputs: dict[str, list[str | int]] = {
        name: ["batch", "sequence"] for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    if isinstance(task, Several):
        inputs[TASK_IDS] = ["batch", 1]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    same = helper.make_function(
        DOMAIN, "Same", ["x"], ["y"], [helper.make_node("Identity", ["x"], ["y"])], opsets[:1]
    )
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=[same] * domain_nodes)
    onnx.save(model, path)
    return path


def take_out_of_service(public: Path, version: int) -> None:
    """Delete the folders of a version in the models of an entry with a server-side tokenizer."""
    for model in (public, public.parent / f"{public.name}_model"):
        shutil.rmtree(model / str(version))


def tiny_text_graph(path: Path, inputs: Sequence[str] = ("TEXT",)) -> Path:
    """Write a graph with the signature of one that takes text: "w1" is positive."""
    constants: dict[str, npt.NDArray[Any]] = {
        "w1": np.array("w1", object),
        "labels": np.array(CLASSES.labels, object),
        "one": np.array(1, np.float32),
        "minus_one": np.array(-1, np.int32),
    }
    nodes = [
        helper.make_node("Equal", ["TEXT", "w1"], ["is_w1"]),
        helper.make_node("Cast", ["is_w1"], ["positive"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["one", "positive"], ["negative"]),
        helper.make_node("Concat", ["negative", "positive"], ["logits"], axis=1),
        helper.make_node("Softmax", ["logits"], ["scores"], axis=1),
        helper.make_node("ArgMax", ["logits"], ["best"], axis=1, keepdims=1),
        helper.make_node("Gather", ["labels", "best"], ["label"]),
        helper.make_node("Cast", ["positive"], ["token_count"], to=TensorProto.INT32),
        helper.make_node("Identity", ["is_w1"], ["truncated"]),
        helper.make_node("Add", ["token_count", "minus_one"], ["invalid_at"]),
        helper.make_node("Identity", ["scores"], ["rho"]),
    ]
    kinds = {
        "scores": (TensorProto.FLOAT, 2),
        "label": (TensorProto.STRING, 1),
        "logits": (TensorProto.FLOAT, 2),
        "token_count": (TensorProto.INT32, 1),
        "truncated": (TensorProto.BOOL, 1),
        "invalid_at": (TensorProto.INT32, 1),
        "rho": (TensorProto.FLOAT, LAYERS),
    }
    graph = helper.make_graph(
        nodes,
        "tiny_text",
        [helper.make_tensor_value_info(name, TensorProto.STRING, ["batch", 1]) for name in inputs],
        [
            helper.make_tensor_value_info(name, kind, ["batch", width])
            for name, (kind, width) in kinds.items()
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    return path


def _numbers_of_tasks(task: Several, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Numbers `(tasks, width)`, -inf where a task has no label."""
    numbers = rng.standard_normal((len(task.tasks), task.width)).astype(np.float32)
    for row, each in zip(numbers, task.tasks.values(), strict=True):
        row[each.width :] = -np.inf
    return numbers


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


def edit(path: Path, old: str, new: str) -> None:
    """Replace a part of a text file that has it, once."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def add(path: Path, text: str) -> None:
    """Put a text behind that of a file."""
    path.write_text(path.read_text() + text)
