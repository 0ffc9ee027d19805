"""The graph that takes text answers as its tokens do, and fails at nothing that it is sent."""

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch
from onnx import ModelProto
from transformers import PreTrainedModel

from graph_session import open_graph
from graphs import GraphTable
from sparse_export.attention.spec import AttentionSpec
from sparse_export.encoders.families import input_names
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.graph.export import GraphTarget
from sparse_export.graph.packed import PackedTokensModel, PaddedTokensModel
from sparse_export.graph.text import TextReading, obstacle, text_graph
from sparse_export.graph.tokenizer.derive import derive_tables
from sparse_export.graph.tokenizer.tables import TokenizerTables
from sparse_export.tasks import head_of, model_head
from sparse_serve.tasks import Classification, Embedding, MultiLabel, Regression, Several, Task
from sparse_serve.tasks.encoding import encode_cut
from tiny_models import ADAPTERS, FAMILIES, LAMBD, PAIRED_TASKS, TASKS, make_model, make_tokenizer

Array = npt.NDArray[Any]

KINDS = {
    "sparsegen": AttentionSpec(LAMBD),
    "axis_sparsegen": AttentionSpec.parse("axis+local1+global1+random1", LAMBD, seed=3),
}
CUT = 24
TEXTS = ["a film", "", "nice b c d " * 9, "naïve café [SEP] x", "\x00\u200b", "it isn't 100 % good?"]
PAIRS = ["x", "y z", "", "b " * 40, "no", "it is"]
# Bytes that are no text, among some that are: what the binding takes for them reads up to a NUL.
BROKEN = [b"a film", b"a \xff film", b"", b"\xe4\xb8", b"naive", b"\xed\xa0\x80"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_packed_tokens_are_answered_as_padded_ones(family: str, kind: str) -> None:
    """In torch, float64; with the padding id as a token of a row, too."""
    model = make_model(KINDS[kind], family).eval().double()
    assert_packed_as_padded(model, family)


@pytest.mark.parametrize("pooling", ["first", "mean"])
@torch.no_grad()
def test_packed_embeddings_are_those_of_padded_ones(pooling: str) -> None:
    task = Embedding(size=64, layers="sum-last-four", pooling=pooling)
    assert_packed_as_padded(make_model(AttentionSpec(), "mobilebert", task).eval().double(), "mobilebert")


@torch.no_grad()
def test_packed_rows_of_several_tasks() -> None:
    model = make_model(KINDS["sparsegen"], "bert", TASKS, ADAPTERS).eval().double()
    assert_packed_as_padded(model, "bert", torch.tensor([[0], [2], [1], [7], [1]]))


def assert_packed_as_padded(model: PreTrainedModel, family: str, tasks: torch.Tensor | None = None) -> None:
    lengths = [5, 3, 11, 2, 14]
    rows = [
        torch.randint(5, 40, (length,), generator=torch.Generator().manual_seed(length)) for length in lengths
    ]
    pad_id = model.config.pad_token_id or 0
    rows[2][3] = rows[4][-1] = pad_id
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad_id)
    mask = torch.tensor([[1] * length + [0] * (max(lengths) - length) for length in lengths])
    segments = torch.randint(2, ids.shape, generator=torch.Generator().manual_seed(1))
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
    padded = {name: given[name] for name in input_names(model.config)}
    packed = {name: each[mask != 0] for name, each in padded.items() if name != "attention_mask"}
    packed["positions"] = torch.cat([torch.arange(length) for length in lengths])
    packed["cu_seqlens"] = torch.tensor([*accumulate(lengths, initial=0)], dtype=torch.int32)
    if tasks is not None:
        padded["task_ids"] = packed["task_ids"] = tasks
    head = model_head(model)
    wanted = PaddedTokensModel(copy.deepcopy(model), head).eval()(**padded)
    found = PackedTokensModel(copy.deepcopy(model), head).eval()(**packed)
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def tables(checkpoint: Path) -> TokenizerTables:
    return derive_tables(load_tokenizer(checkpoint).backend_tokenizer)


@pytest.fixture(scope="module")
def core(model: PreTrainedModel, graphs: GraphTable) -> Path:
    return graphs.path(model, "tokens", GraphTarget())


def column(values: Sequence[str | bytes]) -> Array:
    if isinstance(values[0], str):
        return np.array(values, dtype=object)[:, None]
    return np.array(values, dtype=f"S{max(map(len, values)) + 1}")[:, None]


def ask(graph: ModelProto, **columns: Sequence[str | bytes]) -> dict[str, Array]:
    session = open_graph(graph, log_severity_level=3)
    names = [output.name for output in session.get_outputs()]
    return dict(
        zip(names, session.run(names, {name: column(each) for name, each in columns.items()}), strict=True)
    )


def words(values: Array) -> list[bytes]:
    return [value.encode() for value in values[:, 0]]


def test_a_graph_is_smaller_without_padding(core: Path) -> None:
    """Nothing of a padded batch is left in it, nor a function of first tokens that are hidden."""
    proto = onnx.load(core)
    assert [value.name for value in proto.graph.input] == [
        "input_ids",
        "token_type_ids",
        "positions",
        "cu_seqlens",
    ]
    assert {node.op_type for node in proto.graph.node}.isdisjoint(
        {"NonZero", "ScatterND", "SparsegenHiddenFirst"}
    )


SAYING: dict[str, Task] = {
    "classes": Classification(("negative", "neutral", "positive")),
    "topics": MultiLabel(('say "hi"', "čaj, 茶", "[c]")),
    "values": Regression(("x", "y", "z")),
}


@pytest.mark.parametrize("task", SAYING)
def test_words_are_those_of_the_server(
    model: PreTrainedModel, core: Path, tables: TokenizerTables, task: str
) -> None:
    """Of three numbers a text, whatever they mean."""
    says = SAYING[task]
    graph = text_graph(onnx.load(core), head_of(says), TextReading(tables, CUT, 0))
    answer = ask(graph, TEXT=TEXTS)
    said = says.answer((), answer["logits"])
    np.testing.assert_allclose(answer["scores"], said["scores"], rtol=0, atol=1e-6)
    if task == "values":
        for label, values in zip(words(answer["label"]), answer["logits"], strict=True):
            np.testing.assert_allclose(json.loads(label), values, rtol=1e-6)
    else:
        assert words(answer["label"]) == said["label"][:, 0].tolist()
    assert np.isfinite(answer["logits"]).all()


def test_where_too_many_tokens_are_an_error_a_row_that_has_them_is_marked(
    model: PreTrainedModel, core: Path, tables: TokenizerTables
) -> None:
    texts = ["a", "very " * CUT, "", "a " * (CUT - 2)]
    marked, cut = (
        ask(
            text_graph(onnx.load(core), model_head(model), TextReading(tables, CUT, 0, truncation)),
            TEXT=texts,
        )
        for truncation in ("error", "right")
    )
    assert marked["truncated"][:, 0].tolist() == [False, True, False, False]
    assert (marked["invalid_at"] == -1).all()
    for name in ("logits", "scores"):
        assert np.isnan(marked[name][1]).all()
        np.testing.assert_array_equal(marked[name][[0, 2, 3]], cut[name][[0, 2, 3]])
    assert words(marked["label"])[1] == b""
    assert b"" not in words(cut["label"])


def test_tokens_and_logits_are_those_of_transformers(
    model: PreTrainedModel, core: Path, tables: TokenizerTables, checkpoint: Path
) -> None:
    graph = text_graph(onnx.load(core), model_head(model), TextReading(tables, CUT, 0))
    answer = ask(graph, TEXT=TEXTS)
    tokenizer = load_tokenizer(checkpoint)
    encoded = encode_cut(tokenizer.backend_tokenizer, TEXTS, None, CUT)
    assert answer["token_count"][:, 0].tolist() == [text.token_count for text in encoded]
    assert answer["truncated"][:, 0].tolist() == [text.truncated for text in encoded]
    assert (answer["invalid_at"] == -1).all()
    for row, text in enumerate(encoded):
        with torch.no_grad():
            alone = model(torch.tensor([text.windows[0].ids])).logits[0].numpy()
        np.testing.assert_allclose(answer["logits"][row], alone, rtol=0, atol=1e-4)


def test_another_family_reads_as_its_tokens(graphs: GraphTable, tmp_path: Path) -> None:
    """The whole file beside the padded model in torch, on the ids of the checkpoint's tokenizer.

    Positions count the ids that are not padding, which a text can spell; the mean is that of the row alone.
    """
    model = make_model(KINDS["axis_sparsegen"], "roberta", Embedding(size=64)).eval()
    texts = [*TEXTS[:3], "a <pad> b<pad>c", "<mask>"]
    tokenizer = make_tokenizer(tmp_path, "roberta").backend_tokenizer
    head = model_head(model)
    core = onnx.load(graphs.path(model, "tokens", GraphTarget()))
    graph = text_graph(core, head, TextReading(derive_tables(tokenizer), CUT, 1))
    answer = ask(graph, TEXT=texts)
    padded = PaddedTokensModel(copy.deepcopy(model), head).eval()
    for row, text in enumerate(encode_cut(tokenizer, texts, None, CUT)):
        ids = torch.tensor([text.windows[0].ids])
        with torch.no_grad():
            wanted = padded(ids, ids * 0 + 1)
        for name, expected in zip(("embedding", "rho", "rows_on", "columns_on"), wanted, strict=True):
            np.testing.assert_allclose(answer[name][row], expected[0].numpy(), rtol=0, atol=1e-4)


def test_what_is_no_text_is_marked_and_beside_others(
    model: PreTrainedModel, core: Path, tables: TokenizerTables
) -> None:
    graph = text_graph(onnx.load(core), model_head(model), TextReading(tables, CUT, 0))
    good = [0, 2, 4]
    answer = ask(graph, TEXT=BROKEN)
    assert answer["invalid_at"][:, 0].tolist() == [-1, 2, -1, 0, -1, 0]
    alone = ask(graph, TEXT=[BROKEN[row].decode() for row in good])
    for name, values in alone.items():
        if name != "label":
            np.testing.assert_array_equal(answer[name][good], values)
    bad = [1, 3, 5]
    assert words(answer["label"][bad]) == [b""] * 3
    assert all(np.isnan(answer[name][bad]).all() for name in ("logits", "scores"))
    assert all(words(alone["label"]))
    nothing_else = ask(graph, TEXT=[BROKEN[row] for row in bad])
    assert np.isnan(nothing_else["logits"]).all()


@pytest.fixture(scope="module")
def several(graphs: GraphTable) -> tuple[PreTrainedModel, Path]:
    """Four tasks, two of which read pairs."""
    attention = AttentionSpec(LAMBD)
    model = make_model(attention, "bert", PAIRED_TASKS, ADAPTERS).eval()
    model.set_attn_implementation(attention.implementation)
    return model, graphs.path(model, "tokens", GraphTarget())


def test_each_text_is_read_and_answered_as_its_task_does(
    several: tuple[PreTrainedModel, Path], tables: TokenizerTables, checkpoint: Path
) -> None:
    model, core = several
    head = model_head(model)
    assert isinstance(head.task, Several)
    graph = text_graph(onnx.load(core), head, TextReading(tables, CUT, 0))
    assert [value.name for value in graph.graph.input] == ["TEXT", "TEXT_PAIR", "TASK"]
    tasks = ["sentiment", "similarity", "topics", "paraphrase", "similarity", "sentiment"]
    answer = ask(graph, TEXT=TEXTS, TEXT_PAIR=PAIRS, TASK=tasks)
    tokenizer = load_tokenizer(checkpoint).backend_tokenizer
    pairs = [
        pair if PAIRED_TASKS[task].reads_pairs else None for pair, task in zip(PAIRS, tasks, strict=True)
    ]
    encoded = encode_cut(tokenizer, TEXTS, pairs, CUT)
    assert answer["token_count"][:, 0].tolist() == [text.token_count for text in encoded]
    said = head.task.answer(
        [replace(text, task=name) for text, name in zip(encoded, tasks, strict=True)], answer["logits"]
    )
    np.testing.assert_allclose(answer["scores"], said["scores"], rtol=0, atol=1e-6)
    for row, (text, task) in enumerate(zip(encoded, tasks, strict=True)):
        own = PAIRED_TASKS[task]
        (window,) = text.windows
        with torch.no_grad():
            alone = model.of(task)(torch.tensor([window.ids]), token_type_ids=torch.tensor([window.type_ids]))
        np.testing.assert_allclose(
            answer["logits"][row, : own.width], alone.logits[0].numpy(), rtol=0, atol=1e-4
        )
        assert (answer["logits"][row, own.width :] == -np.inf).all()
        if task == "similarity":
            np.testing.assert_allclose(
                float(words(answer["label"])[row]), answer["logits"][row, 0], rtol=1e-6
            )
        else:
            assert words(answer["label"])[row] == said["label"][row, 0]


def test_a_task_of_no_name_is_marked_alone(
    several: tuple[PreTrainedModel, Path], tables: TokenizerTables
) -> None:
    model, core = several
    graph = text_graph(onnx.load(core), model_head(model), TextReading(tables, CUT, 0))
    tasks = ["sentiment", "mood", "", "similarity", "Sentiment", "topics"]
    answer = ask(graph, TEXT=TEXTS, TEXT_PAIR=PAIRS, TASK=tasks)
    is_named = np.array([task in PAIRED_TASKS for task in tasks])
    assert (np.isnan(answer["logits"]).all(1) == ~is_named).all()
    assert [bool(label) for label in words(answer["label"])] == is_named.tolist()
    assert (answer["invalid_at"] == -1).all()


def test_what_standard_operators_of_an_opset_cannot_say() -> None:
    assert obstacle(head_of(SAYING["topics"]), 19) is not None
    assert obstacle(head_of(SAYING["topics"]), 20) is None
    assert obstacle(head_of(SAYING["classes"]), 18) is None


def test_a_tokenizer_node_in_front_of_a_padded_batch(
    graphs: GraphTable, tables: TokenizerTables, model: PreTrainedModel
) -> None:
    """As the dense twins take it: the graph of packed tokens with the padding put back."""
    dense = make_model(AttentionSpec()).eval()
    head = model_head(dense)
    reading = TextReading(tables, CUT, int(dense.config.pad_token_id))
    twins = [
        text_graph(onnx.load(graphs.path(dense, kind, GraphTarget())), head, reading)
        for kind in ("tokens_dense", "padded_eager")
    ]
    packed, padded = (ask(graph, TEXT=TEXTS) for graph in twins)
    np.testing.assert_allclose(packed["logits"], padded["logits"], rtol=0, atol=1e-4)
    assert words(packed["label"]) == words(padded["label"])
