"""The parity gate on spans, tags and embeddings: what it compares, and what it lets pass."""

import copy
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from graphs import GraphTable
from sparse_export.attention.spec import AttentionSpec
from sparse_export.graph.export import GraphTarget
from sparse_export.parity.examples import (
    Examples,
    batches,
    builtin_examples,
    labelled_examples,
    several_runs,
    text_examples,
)
from sparse_export.parity.executions import run_graph
from sparse_export.parity.gate import check_parity
from sparse_export.parity.quality import check_quality
from sparse_export.tasks import head_of
from sparse_serve.data import read_data
from sparse_serve.errors import CheckpointError, GateError
from sparse_serve.op_library import library_path
from sparse_serve.runs import RUN_TOKENS, run_borders
from sparse_serve.tasks import Embedding, QuestionAnswering, Task, TokenClassification
from tiny_models import LAYERS, POSITIONS, make_model, make_tokenizer

CONTEXT = "a film of great charm, set in 1 town by the sea 🌊, and it's not 2 hours long. " * 5
# As `test_served_heads` exports them: the graphs are the same.
FAMILIES = {"spans": "bert", "tags": "bert", "vectors": "mobilebert"}
TASKS: dict[str, Task] = {
    "spans": QuestionAnswering(stride=20, max_answer_tokens=9, no_answer=True),
    "tags": TokenClassification(("O", "B-film", "I-film", "B-place", "I-place")),
    "vectors": Embedding(size=64, normalize=True),
}
ROWS: dict[str, list[dict[str, Any]]] = {
    "spans": [
        {"question": "where is it?", "context": CONTEXT, "answer_start": 30, "answer": CONTEXT[30:36]},
        {"question": "how long", "context": "not 2 hours", "answer_start": 4, "answer": "2 hours"},
    ],
    "tags": [
        {"tokens": ["a", "great", "film", "of", "1938"], "tags": ["O", "B-film", "I-film", "O", "B-place"]},
        {"tokens": ["it's", "long"], "tags": ["O", "O"]},
    ],
    "vectors": [
        {"text_a": "a film", "text_b": "two films", "label": 4.0},
        {"text_a": "the sea 🌊", "text_b": "great charm", "label": 0.5},
        {"text_a": "no", "text_b": "not", "label": 2},
    ],
}


@dataclass(frozen=True)
class Exported:
    task: Task
    model: PreTrainedModel
    graph: Path
    tokenizer: Tokenizer
    labelled: Examples


@pytest.fixture(scope="module", params=TASKS)
def exported(
    request: pytest.FixtureRequest, graphs: GraphTable, tmp_path_factory: pytest.TempPathFactory
) -> Exported:
    task, folder = TASKS[request.param], tmp_path_factory.mktemp(request.param)
    model = make_model(AttentionSpec(), FAMILIES[request.param], task).eval()
    tokenizer = Tokenizer.from_str(make_tokenizer(folder).backend_tokenizer.to_str())
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS[request.param]), encoding="utf-8")
    data = read_data(file, task=task.type)
    examples = labelled_examples(task, tokenizer, POSITIONS, "right", data)
    graph = graphs.path(model, "packed", GraphTarget())
    return Exported(task, model, graph, tokenizer, examples)


def changed(graph: Path, folder: Path) -> Path:
    """The graph with other weights of the head, or of the last norm where there is no head."""
    proto = onnx.load(graph)
    names = ("qa_outputs.weight", "classifier.weight", f"layer.{LAYERS - 1}.output.LayerNorm.weight")
    found = [each for each in proto.graph.initializer if each.name.endswith(names)][-1]
    noise = np.random.default_rng(0).standard_normal(found.dims, dtype=np.float32)
    found.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(found) + noise, found.name))
    onnx.save(proto, folder / "model.onnx")
    return folder / "model.onnx"


def test_quality_is_the_tasks(exported: Exported) -> None:
    report = check_parity(exported.model, exported.graph, library_path(), exported.labelled)
    report.require()
    assert report.torch_metrics is not None
    assert tuple(report.torch_metrics) == exported.task.metrics
    assert report.metric == exported.task.metrics[0]
    assert report.library.metrics == pytest.approx(report.torch_metrics, abs=1e-4)
    assert report.portable.metrics == pytest.approx(report.torch_metrics, abs=1e-4)
    assert report.rows == len(exported.labelled.texts)
    json.dumps(report.to_json())
    assert report.to_json()["portable"]["label_agreement"] == report.portable.label_agreement


def test_answers_are_compared_beside_numbers(exported: Exported, tmp_path: Path) -> None:
    examples = builtin_examples(exported.task, exported.tokenizer, POSITIONS, [CONTEXT, "no", "1 film"])
    good = check_parity(exported.model, exported.graph, library_path(), examples)
    good.require()
    bad = check_parity(exported.model, changed(exported.graph, tmp_path), library_path(), examples)
    has_answers = not isinstance(exported.task, Embedding)
    assert good.library.label_agreement == (1.0 if has_answers else None)
    if has_answers:
        assert bad.library.label_agreement is not None
        assert bad.library.label_agreement < 0.9
    with pytest.raises(GateError, match=f"by up to .* in its {exported.task.graph_output} over") as error:
        bad.require()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("exported", ["tags"], indirect=True)
def test_a_graph_that_reads_no_text_is_found_out_where_no_text_has_an_entity(
    exported: Exported, tmp_path: Path
) -> None:
    """Both answer none to every text: what they answer it by is not the same."""
    model = copy.deepcopy(exported.model)
    proto = onnx.load(exported.graph)
    weight, bias = (
        next(each for each in proto.graph.initializer if each.name.endswith(f"classifier.{part}"))
        for part in ("weight", "bias")
    )
    with torch.no_grad():
        model.classifier.bias[0] += 50
    bias.CopyFrom(numpy_helper.from_array(model.classifier.bias.detach().numpy(), bias.name))
    examples = builtin_examples(exported.task, exported.tokenizer, POSITIONS, [CONTEXT, "no", "1 film"])
    for is_read in (True, False):
        if not is_read:
            weight.CopyFrom(numpy_helper.from_array(np.zeros(weight.dims, np.float32), weight.name))
        onnx.save(proto, tmp_path / "model.onnx")
        report = check_quality(model, tmp_path / "model.onnx", library_path(), examples)
        fidelity = report.executions["library"]
        assert fidelity.label_agreement == 1.0
        assert report.has_one_answer
        assert report.kept(fidelity) == (1.0 if is_read else fidelity.explained)
        if is_read:
            report.require()
    with pytest.raises(
        GateError,
        match=r"or if less than half explained variance of its logits, .* which torch answers alike,",
    ):
        report.require()


def test_one_text_has_no_other_to_vary_from(exported: Exported) -> None:
    """It is judged by its numbers as they are."""
    asked = text_examples(exported.task, exported.tokenizer, POSITIONS, ["a film of great charm"])
    examples = replace(asked, others=())
    report = check_quality(exported.model, exported.graph, library_path(), examples)
    report.require()
    assert report.kept(report.executions["library"]) == pytest.approx(1.0, abs=1e-4)


def test_builtin_examples_are_of_many_lengths_and_kinds(exported: Exported) -> None:
    examples = builtin_examples(exported.task, exported.tokenizer, POSITIONS, [CONTEXT, "no", "1 film"])
    lengths = [len(row["input_ids"]) for row in examples.rows]
    assert max(lengths) == POSITIONS
    assert len(set(lengths)) > 12
    assert sorted(examples.order.tolist()) == list(range(len(lengths)))
    assert any(0 in row["attention_mask"] for row in examples.rows)
    assert any(1 in row["token_type_ids"] for row in examples.rows)
    windows = [len(text.windows) for text in examples.texts]
    assert max(windows) > 2 if isinstance(exported.task, QuestionAnswering) else max(windows) == 1
    together = list(batches([examples.rows[number] for number in examples.order], exported.model.config))
    assert any(len(set(batch["attention_mask"].sum(1))) > 3 for batch in together)


def test_texts_of_a_user(exported: Exported) -> None:
    texts = ["what film?", "a film of great charm", "x" * 400]
    examples = text_examples(exported.task, exported.tokenizer, POSITIONS, texts)
    assert len(examples.texts) == 3
    masks = [row["attention_mask"] for row in examples.rows]
    assert [mask[0] for mask in masks].count(0) == 3
    assert any(mask[0] and 0 in mask for mask in masks)
    assert any(1 in row["token_type_ids"] for row in examples.rows)
    check_parity(exported.model, exported.graph, library_path(), examples).require()


@pytest.mark.parametrize("max_length", [8, 40, POSITIONS, 512])
@pytest.mark.parametrize("make", [builtin_examples, text_examples])
def test_batches_of_several_runs_are_of_several(exported: Exported, make: Any, max_length: int) -> None:
    """However short or long their texts are."""
    rows = make(exported.task, exported.tokenizer, max_length, [CONTEXT, "no", "1 film"]).rows
    numbers, run = several_runs(rows, exported.model.config)
    assert set(numbers) == set(range(len(rows)))
    assert sum(len(batch["input_ids"]) for batch in run) == len(numbers)
    assert all(batch["input_ids"].size <= 4 * RUN_TOKENS for batch in run)
    divided = [len(run_borders(batch["attention_mask"].sum(1))) for batch in run]
    assert max(divided) > 0
    assert sum(divided) >= len(run) - 1  # what is left at the end may fill none


def test_entities_are_the_same_whatever_their_scores() -> None:
    def column(**changes: Any) -> dict[str, Any]:
        entity = {"label": "film", "start": 2, "end": 6, "text": "film", "score": 0.5} | changes
        return {"entities": np.array([[json.dumps([entity]).encode()], [b"[]"]], dtype=object)}

    head = head_of(TASKS["tags"])
    changes: dict[str, Any] = {"score": 0.6, "label": "place", "end": 5}
    same = {name: head.same_answers([], column(), column(**{name: value})) for name, value in changes.items()}
    assert {name: each is not None and each.tolist() for name, each in same.items()} == {
        "score": [True, True],
        "label": [False, True],
        "end": [False, True],
    }


def test_a_provider_that_is_not_there_is_not_replaced_in_silence(exported: Exported) -> None:
    with pytest.raises(CheckpointError, match=r"has no TensorrtExecutionProvider here: it has .*CPUExec"):
        run_graph(exported.graph, None, [], "TensorrtExecutionProvider")
