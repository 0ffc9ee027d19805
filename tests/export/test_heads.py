"""Heads that read all tokens, or a pooled state: packed and exported, they answer as Transformers' own do."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from graph_session import open_graph
from graphs import GraphTable
from sparse_export.attention.spec import AttentionSpec
from sparse_export.encoders.families import input_names
from sparse_export.encoders.packing import PaddedPacking
from sparse_export.graph.export import GraphTarget
from sparse_export.graph.packed import PaddedTokensModel
from sparse_export.tasks import model_head
from sparse_serve.tasks import Embedding, QuestionAnswering, Task, TokenClassification
from sparse_serve.tasks.embedding import LAYERS, POOLINGS
from tiny_models import FAMILIES, LAMBD, make_model, masks, token_ids

Array = npt.NDArray[np.float32]

WIDTH = 64
DEPTH = {"distilbert": "n_layers"}  # the name of the number of layers, in other families num_hidden_layers
TAGS = ("O", "B-place", "I-place", "B-film", "I-film")


def embedding(layers: str = "last", pooling: str = "mean", *, normalize: bool = False) -> Embedding:
    size = WIDTH * (4 if layers == "concat-last-four" else 1)
    return Embedding(size=size, layers=layers, pooling=pooling, normalize=normalize)


TASKS: dict[str, Task] = {
    "spans": QuestionAnswering(),
    "tags": TokenClassification(TAGS),
    "mean": embedding(normalize=True),
}
ATTENTIONS = {
    "softmax": AttentionSpec(),
    "sparsegen": AttentionSpec(LAMBD),
    "axis": AttentionSpec.parse("axis+global1", None),
    "axis_sparsegen": AttentionSpec.parse("axis+local1+random1", LAMBD, seed=3),
}


def tiny(task: Task, family: str, attention: AttentionSpec, depth: int = 2) -> PreTrainedModel:
    sizes: dict[str, Any] = {DEPTH.get(family, "num_hidden_layers"): depth}
    model = make_model(attention, family, task, **sizes).eval()
    model.set_attn_implementation("eager" if attention.is_dense else attention.implementation)
    return model


def batch_of(model: PreTrainedModel, mask: Tensor) -> dict[str, Tensor]:
    ids, segments = token_ids()
    tensors = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
    return {name: tensors[name] for name in input_names(model.config)}


@torch.no_grad()
def transformers_answer(model: PreTrainedModel, task: Task, batch: dict[str, Tensor]) -> Tensor:
    """What Transformers' own model answers, told of by the task alone; zeros where the mask is 0."""
    outputs = model(**batch, output_hidden_states=True)
    keep = batch["attention_mask"].bool()
    if isinstance(task, QuestionAnswering):
        return torch.stack([outputs.start_logits, outputs.end_logits], -1) * keep[:, :, None]
    if isinstance(task, TokenClassification):
        logits: Tensor = outputs.logits * keep[:, :, None]
        return logits
    assert isinstance(task, Embedding)
    rows = []
    states = outputs.hidden_states
    of_layers = {
        "last": states[-1],
        "second-to-last": states[-2],
        "sum-last-four": torch.stack(states[-4:]).sum(0),
        "concat-last-four": torch.cat(states[-4:], -1),
        "weighted-all": torch.stack(states[1:]).mean(0),
    }[task.layers]
    for state, tokens in zip(of_layers, keep, strict=True):
        vector = state[0] if task.pooling == "first" else state[tokens].mean(0)
        vector = vector / vector.norm() if task.normalize else vector
        rows.append(vector if tokens.any() else torch.zeros_like(vector))
    return torch.stack(rows)


def rows_with_tokens(answer: Tensor, mask: Tensor) -> Tensor:
    return answer[mask.any(1)]


# Every family with every attention, and every head with each of both: no code is of all three at once.
PAIRS = [
    (family, attention, [*TASKS][(row + column) % len(TASKS)])
    for row, family in enumerate(FAMILIES)
    for column, attention in enumerate(ATTENTIONS)
]


def test_every_head_is_seen_with_every_family_and_attention() -> None:
    for place, names in enumerate((FAMILIES, ATTENTIONS)):
        assert {(each[place], each[2]) for each in PAIRS} == {*product(names, TASKS)}


@pytest.mark.parametrize(("family", "attention", "name"), PAIRS)
def test_packed_equals_transformers(family: str, attention: str, name: str) -> None:
    task = TASKS[name]
    model = tiny(task, family, ATTENTIONS[attention]).double()
    assert_packed_equals_transformers(model, task)


@pytest.mark.parametrize(
    ("layers", "pooling", "normalize"),
    [*product(LAYERS, POOLINGS, [False]), ("concat-last-four", "mean", True)],
)
def test_every_way_to_embed(layers: str, pooling: str, normalize: bool) -> None:
    task = embedding(layers, pooling, normalize=normalize)
    assert_packed_equals_transformers(tiny(task, "bert", ATTENTIONS["axis"], depth=5).double(), task)


@torch.no_grad()
def assert_packed_equals_transformers(model: PreTrainedModel, task: Task) -> None:
    packed = PaddedTokensModel(copy.deepcopy(model), model_head(model)).eval()
    for mask in masks().values():
        batch = batch_of(model, mask)
        answer, *_ = packed(**batch)
        expected = transformers_answer(model, task, batch)
        assert answer.dtype == torch.float32
        torch.testing.assert_close(
            rows_with_tokens(answer, mask), rows_with_tokens(expected, mask).float(), rtol=1e-5, atol=1e-6
        )
        assert not answer[~mask.any(1)].any()
        if task.by_token:
            assert not answer[mask == 0].any()
            assert answer.shape == (*mask.shape, task.width)


# The encoder in front of a head is the family's and the attention's, whatever the head: each is seen once,
# where it can be as `test_served_heads` exports it. XLM-R and CamemBERT are RoBERTa but for their tokenizers.
EXPORTED = {
    "spans_bert": ("spans", "bert", "softmax"),
    "spans_distilbert": ("spans", "distilbert", "sparsegen"),
    "tags_electra": ("tags", "electra", "sparsegen"),
    "mean_mobilebert": ("mean", "mobilebert", "softmax"),
}
LAST_FOUR = embedding("concat-last-four", "mean")


@dataclass(frozen=True)
class Graph:
    task: Task
    model: PreTrainedModel
    path: Path

    def session(self, *, op_library: bool) -> onnxruntime.InferenceSession:
        return open_graph(self.path, op_library=op_library)

    def feeds(self) -> Iterator[dict[str, Tensor]]:
        return (batch_of(self.model, mask) for mask in masks().values())


@pytest.fixture(
    scope="module",
    params=[
        "spans_bert",
        *(pytest.param(name, marks=pytest.mark.slow) for name in EXPORTED if name != "spans_bert"),
        "last_four",
    ],
)
def graph(request: pytest.FixtureRequest, graphs: GraphTable) -> Graph:
    if request.param == "last_four":
        task: Task = LAST_FOUR
        model = tiny(task, "camembert", ATTENTIONS["axis_sparsegen"], depth=4)
    else:
        name, family, attention = EXPORTED[request.param]
        task = TASKS[name]
        model = tiny(task, family, ATTENTIONS[attention])
    return Graph(task, model, graphs.path(model, "packed", GraphTarget()))


def numpy_of(batch: dict[str, Tensor]) -> dict[str, npt.NDArray[np.int64]]:
    return {name: tensor.numpy() for name, tensor in batch.items()}


def test_signature(graph: Graph) -> None:
    proto = onnx.load(graph.path)
    onnx.checker.check_model(proto, full_check=True)
    answer = proto.graph.output[0]
    dims = [dim.dim_param or dim.dim_value for dim in answer.type.tensor_type.shape.dim]
    assert answer.name == graph.task.graph_output
    assert dims == ["batch", *(["sequence"] if graph.task.by_token else []), graph.task.width]


@pytest.mark.parametrize("op_library", [True, False], ids=["op_library", "portable"])
def test_exported_answers_as_transformers(graph: Graph, op_library: bool) -> None:
    running = graph.session(op_library=op_library)
    for batch in graph.feeds():
        (answer,) = running.run([graph.task.graph_output], numpy_of(batch))
        expected = transformers_answer(graph.model, graph.task, batch)
        has_token = batch["attention_mask"].any(1).numpy()
        np.testing.assert_allclose(answer[has_token], expected[has_token], rtol=1e-5, atol=1e-4)
        assert not answer[~has_token].any()
        if graph.task.by_token:
            assert not answer[batch["attention_mask"].numpy() == 0].any()


@pytest.mark.parametrize("op_library", [True, False], ids=["op_library", "portable"])
def test_no_row_depends_on_its_companions(graph: Graph, op_library: bool) -> None:
    running = graph.session(op_library=op_library)
    batch = numpy_of(batch_of(graph.model, masks()["some_rows_empty"]))
    batch["input_ids"][batch["attention_mask"] == 0] = graph.model.config.pad_token_id
    (together,) = running.run([graph.task.graph_output], batch)
    for row, length in enumerate(batch["attention_mask"].sum(1)):
        own = {name: values[row : row + 1, : max(length, 1)] for name, values in batch.items()}
        (alone,) = running.run([graph.task.graph_output], own)
        beside = together[row, : max(length, 1)] if graph.task.by_token else together[row]
        np.testing.assert_allclose(alone[0], beside, rtol=0, atol=2e-5)


@pytest.mark.parametrize("length", [1, 4, 5, 9, 33, 100])
def test_means_are_the_same_to_the_bit_in_any_company(length: int) -> None:
    """By ONNX Runtime too: of its operators the running sum alone adds in one order, whatever is behind."""

    class Means(torch.nn.Module):
        def forward(self, values: Tensor, attention_mask: Tensor) -> Tensor:
            return PaddedPacking.of(attention_mask).means(values.reshape(-1, values.shape[-1]))

    program = _means_graph(Means().eval())
    generator = np.random.default_rng(length)
    values = generator.standard_normal((1, length, 24), dtype=np.float32)
    alone = program.run(None, {"values": values, "attention_mask": np.ones((1, length), np.int64)})[0]
    np.testing.assert_allclose(alone[0], values[0].mean(0), rtol=0, atol=1e-6)
    for longer in (length + 1, length + 6, 3 * length + 64):
        mask = np.ones((3, longer), np.int64)
        mask[1, length:] = 0
        packed = generator.standard_normal((1, int(mask.sum()), 24), dtype=np.float32)
        packed[0, longer : longer + length] = values[0]
        together = program.run(None, {"values": packed, "attention_mask": mask})[0]
        np.testing.assert_array_equal(together[1], alone[0])


_MEANS: list[onnxruntime.InferenceSession] = []


def _means_graph(module: torch.nn.Module) -> onnxruntime.InferenceSession:
    if not _MEANS:
        program = torch.onnx.export(
            module,
            (torch.zeros(1, 5, 24), torch.tensor([[1, 1, 1], [1, 1, 0]])),
            dynamo=True,
            verbose=False,
            input_names=["values", "attention_mask"],
            dynamic_shapes={"values": {1: "tokens"}, "attention_mask": {0: "batch", 1: "sequence"}},
            opset_version=20,
        )
        assert program is not None
        content = program.model_proto.SerializeToString()
        _MEANS.append(onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]))
    return _MEANS[0]
