"""Labelled rows: how they are read, and what a model's answers to them are worth."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sparse_serve.client import Client
from sparse_serve.data import Columns, read_data
from sparse_serve.errors import DataError, ServerError
from sparse_serve.metrics import squad_metrics
from sparse_serve.profiling.evaluation import measure_quality, read_evaluation
from sparse_serve.profiling.load import Answer, TritonLoad
from sparse_serve.profiling.workload import Batch
from sparse_serve.repository.entries import read_entry
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.rows import Span
from sparse_serve.tasks import MultiLabel
from sparse_serve.triton.launcher import TritonServer

MakeSpec = Callable[..., EntrySpec]


@pytest.fixture(scope="module")
def tags_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tags") / "dev.conll"
    tags = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    sentences = [
        [f"w{number + word}\t{tags[(number * word) % 5]}" for word in range(9)] for number in range(20)
    ]
    path.write_text("\n\n".join("\n".join(sentence) for sentence in sentences), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def pairs_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "dev.tsv"
    rows = [f"w{number} w{2 * number % 30}\tw{29 - number} w1\t{number % 6}" for number in range(25)]
    path.write_text("\n".join(["text_a\ttext_b\tlabel", *rows]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def arts_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return topics_in(tmp_path_factory.mktemp("arts"), ["art", "law", "war"])


@pytest.fixture(scope="module")
def topics_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return topics_in(tmp_path_factory.mktemp("topics"), ["a", "b", "c"])


def topics_in(folder: Path, labels: list[str]) -> Path:
    """Twenty texts with none to all of the labels."""
    path = folder / "dev.tsv"
    rows = [f"w{number}\t{json.dumps(labels[: number % 4])}" for number in range(20)]
    path.write_text("\n".join(["text_a\tlabel", *rows]), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "file", "metrics"),
    [
        ("spans", "questions_file", {"f1", "exact_match"}),
        ("unanswerable", "questions_file", {"f1", "exact_match"}),
        ("tags", "tags_file", {"f1", "precision", "recall"}),
        ("vectors", "pairs_file", {"spearman", "pearson"}),
        ("topics", "topics_file", {"f1", "f1_macro", "accuracy"}),
        ("several/sts", "pairs_file", {"pearson", "spearman", "mse"}),
        ("several/topics", "arts_file", {"f1", "f1_macro", "accuracy"}),
    ],
)
def test_quality_is_that_of_the_task_from_texts_and_from_the_graph(
    server: TritonServer, request: pytest.FixtureRequest, name: str, file: str, metrics: set[str]
) -> None:
    name, _, of_several = name.partition("/")
    entry = read_entry(server.repository / name)
    evaluation = read_evaluation(request.getfixturevalue(file), entry, name=of_several or None)
    with (
        TritonLoad(server.grpc_url, name, "") as texts,
        TritonLoad(server.grpc_url, f"{name}_model", "") as graph,
    ):
        found = measure_quality(graph, evaluation)
        # The front's answers are those that the task reads from the graph, whatever the batches.
        assert measure_quality(texts, evaluation) == pytest.approx(found, abs=1e-6)
    assert set(found) == metrics
    assert any(0 < value < 1 or -1 < value < 0 for value in found.values())
    data = read_data(evaluation.path, task=evaluation.task.type)
    assert evaluation.rows == len(data.rows)


def test_answers_that_are_nan_are_no_measure(
    server: TritonServer, topics_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = read_evaluation(topics_file, read_entry(server.repository / "topics"))
    send = TritonLoad.send

    def send_nan(load: TritonLoad, batch: Batch, outputs: Sequence[str]) -> Answer:
        answer = send(load, batch, outputs)
        return replace(answer, tensors={name: each * np.nan for name, each in answer.tensors.items()})

    monkeypatch.setattr(TritonLoad, "send", send_nan)
    with (
        TritonLoad(server.grpc_url, "topics_model", "") as graph,
        pytest.raises(ServerError, match=r"is NaN for a row of .*: its figures would mean nothing"),
    ):
        measure_quality(graph, evaluation)


def test_answers_are_judged_as_clients_get_them(server: TritonServer, questions_file: Path) -> None:
    data = read_data(questions_file, task="question_answering")
    with Client(server.grpc_url, "grpc") as client:
        replies = client.answer(
            "spans", [row.text for row in data.rows], [row.text_pair for row in data.rows]
        )
    accepted = [
        [each.text for each in row.label if isinstance(each, Span)]
        for row in data.rows
        if isinstance(row.label, tuple)
    ]
    evaluation = read_evaluation(questions_file, read_entry(server.repository / "spans"))
    with TritonLoad(server.grpc_url, "spans_model", "") as graph:
        expected = squad_metrics([reply.answer for reply in replies], accepted)
        assert measure_quality(graph, evaluation) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text_a\tlabel\ngood\tneutral\n", "line 2: label 'neutral' is not one of the model's 2 labels"),
        ("text_a\tlabel\ngood\t1\nbad\tnegative\n", "line 2: label '1'"),
        ("text_a\tlabel\n", "has no rows"),
        ("text_a\ttext_b\tlabel\na\tb\t1\nc\t\t0\n", "line 3: the second text ('text_b') is missing"),
        ("text_a\tlabel\ngood\t0.5\n", "line 2: the label is '0.5'"),
        ("text_a\na\n", "no column 'label'"),
        ("text_a\tlabel\ngood\t\n", "line 2: the label is missing"),
    ],
)
def test_labels_that_cannot_be_used(content: str, message: str, make_spec: MakeSpec, tmp_path: Path) -> None:
    write_entry(tmp_path, make_spec())
    path = tmp_path / "dev.tsv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=re.escape(message)):
        read_evaluation(path, read_entry(tmp_path / "tiny"))


def test_labels_are_read_as_the_entry_answers(make_spec: MakeSpec, tmp_path: Path) -> None:
    write_entry(tmp_path, make_spec(MultiLabel(("negative", "positive"))))
    path = tmp_path / "dev.tsv"
    path.write_text('text_a\tlabel\nbad\t["positive", "negative"]\ngood film\t[]\n', encoding="utf-8")
    evaluation = read_evaluation(path, read_entry(tmp_path / "tiny"))
    assert evaluation.targets.tolist() == [[1, 1], [0, 0]]


def test_pairs_are_tokenised_together(make_spec: MakeSpec, tmp_path: Path) -> None:
    write_entry(tmp_path, make_spec())
    path = tmp_path / "dev.tsv"
    path.write_text("text_a\tother\tlabel\nw1 w2 w3\tw4\t1\nw1\tw2\t0\n", encoding="utf-8")
    evaluation = read_evaluation(path, read_entry(tmp_path / "tiny"), Columns(text_pair="other"))
    (batch,) = evaluation.batches
    assert (batch.texts, batch.text_pairs) == (("w1", "w1 w2 w3"), ("w2", "w4"))
    assert batch.row_lengths == (5, 7)
    assert batch.arrays["token_type_ids"][0].tolist() == [0, 0, 0, 1, 1, 0, 0]
    assert (evaluation.order.tolist(), evaluation.targets.tolist()) == ([1, 0], [1, 0])


def test_columns_of_the_evaluation_can_be_named(make_spec: MakeSpec, tmp_path: Path) -> None:
    write_entry(tmp_path, make_spec())
    path = tmp_path / "dev.csv"
    path.write_text("sentence,y\ngood film,positive\nbad,negative\n", encoding="utf-8")
    evaluation = read_evaluation(path, read_entry(tmp_path / "tiny"), Columns("sentence", label="y"))
    assert evaluation.batches[0].texts == ("bad", "good film")
    assert (evaluation.order.tolist(), evaluation.targets.tolist()) == ([1, 0], [1, 0])


def test_long_evaluation_texts_are_cut_as_the_model_cuts_them(make_spec: MakeSpec, tmp_path: Path) -> None:
    write_entry(tmp_path, make_spec())
    path = tmp_path / "dev.jsonl"
    rows = [{"text_a": "w1 " * count, "label": "positive"} for count in (100, 2)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    evaluation = read_evaluation(path, read_entry(tmp_path / "tiny"))
    assert evaluation.batches[0].row_lengths == (4, 16)
    assert evaluation.targets.tolist() == [1, 1]
