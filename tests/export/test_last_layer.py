"""The last layer: of heads that read first tokens it computes no other row, but for keys and values."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper
from transformers import PreTrainedModel

from graph_session import open_graph
from graphs import GraphTable
from sparse_export.attention.spec import AttentionSpec
from sparse_export.encoders.families import input_names
from sparse_export.graph.export import GraphTarget
from sparse_export.tasks import head_of
from sparse_serve.tasks import Embedding, MultiLabel, QuestionAnswering, Regression, Task, TokenClassification
from tiny_models import CLASSES, FAMILIES, LAMBD, LAYERS, ROWS, make_model, masks, token_ids

# What a layer makes of all tokens: keys, values, and what a bottleneck gives them.
OF_ALL = ("key", "value", "k_lin", "v_lin", "bottleneck.attention")
TASKS: dict[Task, bool] = {
    CLASSES: True,
    MultiLabel(("art", "law")): True,
    Regression(): True,
    Embedding(size=64, pooling="first"): True,
    Embedding(size=64, pooling="mean"): False,
    Embedding(size=64, pooling="first", layers="second-to-last"): False,
    QuestionAnswering(): False,
    TokenClassification(("O", "B-ORG")): False,
}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.option}-{TASKS[task]}")
def test_heads_that_read_first_tokens_alone(task: Task) -> None:
    assert head_of(task).reads_first_tokens == TASKS[task]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return make_model(AttentionSpec(LAMBD), request.param).eval()


@pytest.fixture(scope="module")
def graph(model: PreTrainedModel, graphs: GraphTable) -> Path:
    return graphs.path(model, "packed", GraphTarget())


def inputs(model: PreTrainedModel) -> dict[str, npt.NDArray[np.int64]]:
    ids, segments = token_ids()
    mask = masks()["right_padded"]
    tensors = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
    return {name: tensors[name].numpy() for name in input_names(model.config)}


def test_rows_that_are_computed(model: PreTrainedModel, graph: Path) -> None:
    """Of everything in a layer that has a bias."""
    proto = onnx.load(graph)
    made: dict[str, list[str]] = {}
    for node in proto.graph.node:
        if biases := [name for name in node.input if ".layer." in name and name.endswith("bias")]:
            made[node.output[0]] = biases
    del proto.graph.output[:]
    proto.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in made)
    batch = inputs(model)
    tokens = int(batch["attention_mask"].sum())
    assert tokens != ROWS
    values: list[Any] = open_graph(proto).run(None, batch)
    rows: dict[str, set[int]] = {}
    for biases, value in zip(made.values(), values, strict=True):
        for bias in biases:
            rows.setdefault(bias, set()).add(value.shape[-2])
    last = {bias: counts for bias, counts in rows.items() if f".layer.{LAYERS - 1}." in bias}
    assert {bias for bias, counts in last.items() if tokens in counts} == {
        bias for bias in last if any(f".{part}." in bias for part in OF_ALL)
    }
    assert set().union(*last.values()) == {tokens, ROWS}
    assert all(counts == {tokens} for bias, counts in rows.items() if bias not in last)
    assert len(last) >= 8


def test_a_row_answers_the_same_bits_in_any_company(model: PreTrainedModel, graph: Path) -> None:
    running, batch = open_graph(graph), inputs(model)
    together = running.run(None, batch)
    for row in range(ROWS):
        alone = running.run(None, {name: values[row : row + 1] for name, values in batch.items()})
        for ours, theirs in zip(alone, together, strict=True):
            np.testing.assert_array_equal(ours[0], theirs[row])
