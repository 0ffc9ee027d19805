"""A graph answers a batch as it does in one run, however little of it is computed at a time."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import ModelProto
from transformers import PreTrainedModel

from graph_session import open_graph
from graphs import GraphTable
from sparse_export.attention.spec import AttentionSpec
from sparse_export.graph.export import GraphTarget
from sparse_export.graph.guarded import guarded_graph
from sparse_export.graph.runs import in_runs
from sparse_serve.tasks import Embedding, TokenClassification
from tiny_models import ADAPTERS, LAMBD, PAIRED_TASKS, make_model

Array = npt.NDArray[Any]

RUN_TOKENS = 16
# As long as a run, longer, some that fit into one together, and one that does not fit behind them.
LENGTHS = (16, 3, 4, 9, 1, 22, 2, 2, 2, 11, 30, 1)
PACKED = {
    "sparsegen": lambda: make_model(AttentionSpec(LAMBD)),
    "axis": lambda: make_model(
        AttentionSpec.parse("axis+local1+global1+random1", LAMBD, seed=3), "roberta", Embedding(size=64)
    ),
    "several tasks": lambda: make_model(AttentionSpec(LAMBD), "bert", PAIRED_TASKS, ADAPTERS),
}
PADDED = {
    "rows": lambda: make_model(AttentionSpec(LAMBD)),
    "joined neighbours": lambda: make_model(AttentionSpec(LAMBD), "mobilebert"),
    "tokens": lambda: make_model(AttentionSpec(LAMBD), "bert", TokenClassification(("O", "B-X", "I-X"))),
}


def ids_of(*lengths: int) -> list[Array]:
    draw = np.random.default_rng(0)
    return [draw.integers(5, 40, length) for length in lengths]


def packed(*lengths: int) -> dict[str, Array]:
    ids = np.concatenate([np.zeros(0, np.int64), *ids_of(*lengths)])
    return {
        "input_ids": ids,
        "token_type_ids": ids % 2,
        "positions": np.concatenate([np.zeros(0, np.int64), *map(np.arange, lengths)]),
        "cu_seqlens": np.array([*accumulate(lengths, initial=0)], np.int32),
        "task_ids": np.arange(len(lengths))[:, None] % len(PAIRED_TASKS),
    }


def padded(*lengths: int) -> dict[str, Array]:
    """Return rows with tokens at either end, and holes between them."""
    width = max(lengths) + 2
    mask = np.zeros((len(lengths), width), np.int64)
    for row, length in enumerate(lengths):
        mask[row, np.random.default_rng(row).permutation(width)[:length]] = 1
    ids = np.random.default_rng(1).integers(5, 40, mask.shape)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2}


def ask(graph: ModelProto, feeds: Mapping[str, Array], *, has_library: bool = True) -> dict[str, Array]:
    session = open_graph(graph, op_library=has_library, log_severity_level=3)
    taken = {each.name: feeds[each.name] for each in session.get_inputs()}
    return dict(zip([each.name for each in session.get_outputs()], session.run(None, taken), strict=True))


def assert_same(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> None:
    """But for the last bits: a product of one row is rounded otherwise than one of several."""
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        assert (values.dtype, values.shape) == (theirs[name].dtype, theirs[name].shape)
        np.testing.assert_allclose(values, theirs[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", PACKED)
def test_packed_rows(kind: str, graphs: GraphTable) -> None:
    core = graphs.path(PACKED[kind]().eval(), "tokens", GraphTarget())
    whole, divided = onnx.load(core), in_runs(onnx.load(core), RUN_TOKENS)
    for lengths in (LENGTHS, (5,), (RUN_TOKENS + 1,)):
        assert_same(ask(divided, packed(*lengths)), ask(whole, packed(*lengths)))


@pytest.mark.parametrize("kind", PADDED)
def test_padded_rows(kind: str, graphs: GraphTable) -> None:
    """Left padding, holes, rows without a token, and a row with an id that is none."""
    model: PreTrainedModel = PADDED[kind]().eval()
    core = graphs.path(model, "packed", GraphTarget())
    whole, divided = (guarded_graph(onnx.load(core), model) for _ in range(2))
    divided = in_runs(divided, RUN_TOKENS)
    feeds = padded(*LENGTHS, 0, 0, 7, 0)
    feeds["input_ids"][3, feeds["attention_mask"][3].argmax()] = -1
    found = ask(divided, feeds)
    assert_same(found, ask(whole, feeds))
    answer = next(iter(found.values()))
    assert np.isnan(answer[3]).all()
    assert np.isfinite(answer[[0, 1, 2, *range(4, len(answer))]]).all()


def test_without_the_op_library(graphs: GraphTable) -> None:
    """A function is taken for its op in the body of the loop too, and is the one of the nodes there."""
    model = PACKED["axis"]().eval()
    core = graphs.path(model, "tokens", GraphTarget())
    whole, divided = onnx.load(core), in_runs(onnx.load(core), RUN_TOKENS)
    onnx.checker.check_model(divided, full_check=True)
    feeds = packed(*LENGTHS)
    assert_same(ask(divided, feeds, has_library=False), ask(whole, feeds, has_library=False))


def test_a_batch_of_no_rows(graphs: GraphTable) -> None:
    core = graphs.path(PACKED["sparsegen"]().eval(), "tokens", GraphTarget())
    assert_same(ask(in_runs(onnx.load(core)), packed()), ask(onnx.load(core), packed()))
