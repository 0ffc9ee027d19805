"""A graph of token ids answers NaN to the rows that it cannot read, and to no other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from transformers import PreTrainedModel

from graph_session import open_graph
from graphs import GraphTable
from sparse_export.attention.spec import AttentionSpec
from sparse_export.encoders.families import input_names, max_tokens
from sparse_export.graph.export import GraphKind, GraphTarget
from sparse_export.graph.guarded import guarded_graph
from sparse_serve.tasks import TokenClassification
from tiny_models import FAMILIES, LAMBD, make_model, masks, token_ids

Feed = dict[str, npt.NDArray[np.int64]]
Run = Callable[[Feed], dict[str, npt.NDArray[np.float32]]]
VOCABULARY = 96
BAD, BESIDE = 2, (0, 1, 3, 4, 5, 6)


class Pair:
    """A graph as it was traced, and the guarded one."""

    def __init__(self, model: PreTrainedModel, graph: Path, folder: Path) -> None:
        self.config = model.config
        guarded = folder / "guarded.onnx"
        onnx.save(guarded_graph(onnx.load(graph), model), guarded)
        self.traced, self.guarded = running(graph), running(guarded)

    def feed(self, mask: str = "right_padded") -> Feed:
        ids, segments = token_ids()
        tensors = {"input_ids": ids, "attention_mask": masks()[mask], "token_type_ids": segments}
        return {name: tensors[name].numpy().copy() for name in input_names(self.config)}


def running(graph: Path) -> Run:
    session = open_graph(graph)
    names = [output.name for output in session.get_outputs()]
    return lambda feed: dict(zip(names, session.run(names, feed), strict=True))


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: Any, graphs: GraphTable, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    model = make_model(AttentionSpec(LAMBD), request.param).eval()
    return Pair(model, graphs.path(model, "packed", GraphTarget()), tmp_path_factory.mktemp("guarded"))


@pytest.mark.parametrize("mask", masks())
def test_readable_rows_are_answered_as_ever(pair: Pair, mask: str) -> None:
    feed = pair.feed(mask)
    traced, guarded = pair.traced(feed), pair.guarded(feed)
    assert list(guarded) == list(traced)
    for name, values in guarded.items():
        np.testing.assert_array_equal(values, traced[name])


@pytest.mark.parametrize("number", [-(2**63), -1, VOCABULARY, 2**31, 2**63 - 1])
def test_a_number_that_is_no_id_is_its_own_rows_loss(pair: Pair, number: int) -> None:
    expected = pair.traced(pair.feed())
    for name in set(input_names(pair.config)) - {"attention_mask"}:
        feed = pair.feed()
        feed[name][BAD, 3] = number
        assert_lost(pair.guarded(feed), expected)


@pytest.mark.parametrize("number", [-1, VOCABULARY])
def test_what_the_mask_hides_is_no_ones_loss(pair: Pair, number: int) -> None:
    feed = pair.feed()
    hidden = feed["attention_mask"] == 0
    feed["input_ids"][hidden] = pair.config.pad_token_id
    expected = pair.traced(feed)
    feed["input_ids"][hidden] = number
    np.testing.assert_allclose(pair.guarded(feed)["logits"], expected["logits"], rtol=0, atol=1e-6)


def test_a_hidden_first_token_is_read(pair: Pair) -> None:
    feed = pair.feed("left_padded")
    expected = pair.traced(feed)
    assert feed["attention_mask"][BAD, 0] == 0
    feed["input_ids"][BAD, 0] = VOCABULARY
    answered = pair.guarded(feed)["logits"]
    assert np.isnan(answered[BAD]).all()
    np.testing.assert_allclose(answered[[*BESIDE]], expected["logits"][[*BESIDE]], rtol=0, atol=1e-5)


def test_a_row_without_tokens_has_none_to_lose(pair: Pair) -> None:
    feed = pair.feed("left_padded_and_empty")
    feed["input_ids"][3] = -1
    assert not pair.guarded(feed)["logits"][3].any()
    for values in feed.values():
        values[:] = np.where(feed["attention_mask"].any(1, keepdims=True), 0, values)
    feed["attention_mask"][:] = 0
    assert not pair.guarded(feed)["logits"].any()


def test_more_tokens_than_positions(pair: Pair) -> None:
    """Of a row of the most tokens, one more, and one whose last ones the mask hides."""
    most = max_tokens(pair.config)
    ids = np.resize(np.arange(5, 80), (3, most + 1))
    mask = np.ones_like(ids)
    mask[[0, 2], most:] = 0
    if pair.config.pad_token_id is not None:
        ids[[0, 2], most:] = pair.config.pad_token_id
    feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids * 0}
    feed = {name: feed[name] for name in input_names(pair.config)}
    within = {name: values[:, :most] for name, values in feed.items()}
    answered, expected = pair.guarded(feed)["logits"], pair.traced(within)["logits"]
    assert np.isnan(answered[1]).all()
    np.testing.assert_allclose(answered[[0, 2]], expected[[0, 2]], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["packed_dense", "padded_fused", "padded_eager"])
def test_dense_twins(graphs: GraphTable, tmp_path: Path, kind: GraphKind) -> None:
    model = make_model(AttentionSpec(), "bert").eval()
    pair = Pair(model, graphs.path(model, kind, GraphTarget()), tmp_path)
    feed = pair.feed()
    expected = pair.traced(feed)
    feed["input_ids"][BAD, 1] = -7
    assert_lost(pair.guarded(feed), expected)


@pytest.mark.slow
def test_answers_by_token(graphs: GraphTable, tmp_path: Path) -> None:
    model = make_model(AttentionSpec(LAMBD), "bert", TokenClassification(("O", "B-X", "I-X"))).eval()
    pair = Pair(model, graphs.path(model, "packed", GraphTarget()), tmp_path)
    feed = pair.feed()
    expected = pair.traced(feed)
    feed["token_type_ids"][BAD, 0] = 2
    assert_lost(pair.guarded(feed), expected)


def assert_lost(answered: dict[str, npt.NDArray[np.float32]], expected: dict[str, Any]) -> None:
    """See that one row is lost, and the others are answered as beside a good one."""
    assert np.isnan(answered["logits"][BAD]).all()
    for name, values in answered.items():
        np.testing.assert_allclose(
            values[[*BESIDE]], expected[name][[*BESIDE]], rtol=0, atol=1e-5, err_msg=name
        )
