"""Tasks: what a label may be for each of them, and how labels become targets."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparse_serve.data import TextData, read_data
from sparse_serve.errors import DataError, TaskError
from sparse_serve.rows import Label, Span, Tag, TextRows
from sparse_serve.tasks import (
    TASKS,
    Classification,
    Embedding,
    MultiLabel,
    QuestionAnswering,
    Regression,
    Task,
    TokenClassification,
    read_task,
    read_tasks,
)

EVERY: tuple[Task, ...] = (
    Classification(("a", "b")),
    MultiLabel(("a",)),
    Regression(("x", "y")),
    QuestionAnswering(max_answer_tokens=7, stride=3, no_answer=True),
    TokenClassification(("O", "B-PER", "I-PER")),
    Embedding(size=8, layers="concat-last-four", pooling="first", normalize=True),
)


def data_of(folder: Path, task: type[Task], *labels: object) -> TextData:
    """A file with a row for each label, read for a task."""
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps({"text_a": "x", "label": label}) + "\n" for label in labels))
    return read_data(path, task=task.type)


def parse_label(task: type[Task], value: object) -> Label:
    assert isinstance(task.rows, TextRows)
    return task.rows.parse(value)


def test_every_task_is_in_the_table() -> None:
    assert [type(task) for task in EVERY] == list(TASKS.values())
    assert len({task.option for task in EVERY}) == len(EVERY)


@pytest.mark.parametrize("task", EVERY, ids=lambda task: task.type)
def test_a_description_reads_back(task: Task) -> None:
    description = json.loads(json.dumps(task.to_json()))
    assert description["type"] == task.type
    assert read_task(description) == task
    assert hash(read_task(description)) == hash(task)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"type": "translation"}, "task 'translation' is not known here, known are .*: upgrade sparse-serve"),
        ({}, "task None is not known here"),
        ({"type": ["x"]}, "is not known here"),
        ("regression", "a JSON object is needed"),
        ({"type": "regression", "colour": 1}, "regression has no setting 'colour': upgrade sparse-serve"),
        ({"type": "regression", "labels": [1]}, "labels are .*; a list of names is needed"),
        ({"type": "regression", "labels": 5}, "labels are 5; a list of names"),
        ({"type": "regression", "labels": "ab"}, "labels are 'ab'; a list of names"),
        ({"type": "single_label_classification", "labels": ["a"]}, "needs 2 or more labels"),
        ({"type": "question_answering", "max_answer_tokens": 0}, "is 0; a whole number of at least 1"),
        ({"type": "question_answering", "stride": "128"}, "stride is '128'; a whole number"),
        ({"type": "question_answering", "no_answer": 1}, "no_answer is 1; true or false is needed"),
        ({"type": "question_answering", "labels": ["a"]}, "question_answering has no labels"),
        ({"type": "token_classification", "labels": ["O", "U-PER"]}, "tag 'U-PER' has the prefix U-;"),
        ({"type": "token_classification"}, "needs 1 or more labels"),
        ({"type": "embedding"}, "size is 0; a whole number of at least 1"),
        ({"type": "embedding", "size": 4, "layers": "first"}, "layers is 'first'; choose one of last, "),
        ({"type": "embedding", "size": 4, "pooling": "max"}, "pooling is 'max'; choose one of first, mean"),
    ],
)
def test_a_description_that_cannot_be_read_is_named(description: object, message: str) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        read_task(description)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("descriptions", [None, [], {}, "x"])
def test_an_entry_without_tasks_is_named(descriptions: object) -> None:
    with pytest.raises(TaskError, match="descriptions by name are needed"):
        read_tasks(descriptions)


@pytest.mark.parametrize(
    ("task", "value", "label"),
    [
        (Classification, " spam ", "spam"),
        (Classification, 3, "3"),
        (Classification, "[not JSON", "[not JSON"),
        (Classification, "nan", "nan"),
        (MultiLabel, ["a", 2], ("a", "2")),
        (MultiLabel, "[]", ()),
        (Regression, 4, 4.0),
        (Regression, "-4.60", -4.6),
        (Regression, 3e38, 3e38),
    ],
)
def test_labels(task: type[Task], value: object, label: Label) -> None:
    assert parse_label(task, value) == label


@pytest.mark.parametrize(
    ("task", "value", "message"),
    [
        (Classification, 0.5, "the label is 0.5; .* --task regression"),
        (Classification, "4.6", "the label is '4.6'; .* --task regression"),
        (Classification, math.nan, "the label is nan; .* --task regression"),
        (Classification, ["a"], r"the label is \['a'\]; .* --task multi-label"),
        (Classification, '["a", "b"]', "--task multi-label"),
        (Classification, "[]", "--task multi-label"),
        (Classification, True, "the label is True; a label is a name"),
        (Classification, {"a": 1}, "a label is a name"),
        (Classification, "two\nlines", "a label is a name"),
        (Classification, "\ud83d", "a label is a name"),
        (MultiLabel, "spam", r"the label is 'spam'; a multi-label row has a JSON array of names, such as \["),
        (MultiLabel, "a,b", "a JSON array of names"),
        (MultiLabel, '["a"', "a JSON array of names"),
        (MultiLabel, 1, "a JSON array of names"),
        (MultiLabel, [0.5], "a JSON array of names"),
        (MultiLabel, [["a"]], "a JSON array of names"),
        (MultiLabel, [" "], "a JSON array of names"),
        (MultiLabel, [None], "a JSON array of names"),
        (MultiLabel, "[" * 100_000, "a JSON array of names"),
        (
            Regression,
            "good",
            "the label is 'good'; regression needs a finite number, .* --task classification",
        ),
        (Regression, "nan", "a finite number"),
        (Regression, "inf", "a finite number"),
        (Regression, "-Infinity", "a finite number"),
        (Regression, math.inf, "a finite number"),
        (Regression, math.nan, "a finite number"),
        (Regression, "1e39", "a finite number"),
        (Regression, 10**400, "a finite number"),
        (Regression, "4,6", "a finite number"),
        (Regression, "1_000", "a finite number"),
        (Regression, True, "a finite number"),
        (Regression, [1.0], "a finite number"),
    ],
)
def test_what_is_no_label_is_refused(task: type[Task], value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_label(task, value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("task", [Classification, MultiLabel, Regression])
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_label_is_refused(task: type[Task], value: object) -> None:
    with pytest.raises(ValueError, match="the label is missing"):
        parse_label(task, value)


def test_a_task_has_the_labels_of_its_training_file(tmp_path: Path) -> None:
    assert Classification.of(data_of(tmp_path, Classification, "b", "a", "b")).labels == ("a", "b")
    assert MultiLabel.of(data_of(tmp_path, MultiLabel, [], ["b"], ["c", "a"])).labels == ("a", "b", "c")
    task = Regression.of(data_of(tmp_path, Regression, 0.5, 4))
    assert (task.labels, task.width) == (("score",), 1)


def test_a_file_without_enough_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has the one label 'a'; a classifier needs two or more"):
        Classification.of(data_of(tmp_path, Classification, "a", "a"))
    with pytest.raises(DataError, match=r"no row of data file .* has a label"):
        MultiLabel.of(data_of(tmp_path, MultiLabel, [], []))


@pytest.mark.parametrize(
    ("task", "labels", "message"),
    [
        (Classification, ("a",), "needs 2 or more labels"),
        (MultiLabel, (), "needs 1 or more labels"),
        (Regression, (), "needs 1 or more labels"),
        (Classification, ("a", "b\nc"), "is not one line of text"),
        (Classification, ("a", ""), "is not one line of text"),
        (Classification, ("a", "a"), "are not all different"),
    ],
)
def test_labels_that_cannot_be_served_are_refused(
    task: type[Task], labels: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        task(labels)


def test_targets_of_one_label(tmp_path: Path) -> None:
    targets = Classification(("negative", "positive")).targets(
        data_of(tmp_path, Classification, "positive", "negative")
    )
    assert targets.dtype == np.int64
    assert targets.tolist() == [1, 0]


def test_targets_of_several_labels(tmp_path: Path) -> None:
    targets = MultiLabel(("a", "b", "c")).targets(data_of(tmp_path, MultiLabel, ["c", "a"], [], ["b"]))
    assert targets.dtype == np.float32
    assert targets.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_targets_of_a_regression(tmp_path: Path) -> None:
    targets = Regression(("score",)).targets(data_of(tmp_path, Regression, 0.5, "4.6"))
    assert targets.dtype == np.float32
    assert targets.tolist() == pytest.approx([0.5, 4.6])


def test_several_values_have_no_targets(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the model answers 2 "):
        Regression(("x", "y")).targets(data_of(tmp_path, Regression, 0.5))


def test_whole_numbers_are_indices_where_no_name_is_known(tmp_path: Path) -> None:
    task = Classification(("negative", "positive"))
    assert task.targets(data_of(tmp_path, Classification, 1, 0)).tolist() == [1, 0]
    # A known name wins over an index: in a model whose labels are 1 and 0, "1" is the first.
    assert Classification(("1", "0")).targets(data_of(tmp_path, Classification, 1, 0)).tolist() == [0, 1]
    assert MultiLabel(("a", "b")).targets(data_of(tmp_path, MultiLabel, [1], [0])).tolist() == [
        [0, 1],
        [1, 0],
    ]


@pytest.mark.parametrize("label", ["neutral", "2", "-1", "1"])
def test_unknown_label_is_refused_with_line_and_value(tmp_path: Path, label: str) -> None:
    message = rf"line 2: label '{label}' is not one of the model's 2 labels"
    with pytest.raises(DataError, match=message):
        Classification(("negative", "positive")).targets(data_of(tmp_path, Classification, "positive", label))
    with pytest.raises(DataError, match=message):
        MultiLabel(("negative", "positive")).targets(data_of(tmp_path, MultiLabel, ["positive"], [label]))


def test_index_beyond_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 2: label '2'"):
        Classification(("negative", "positive")).targets(data_of(tmp_path, Classification, 1, 2))


def test_questions_without_an_answer_are_the_tasks(tmp_path: Path) -> None:
    rows = [
        {"question": "Who?", "context": "It was Ada.", "answer": "Ada", "answer_start": 7},
        {"question": "When?", "context": "It was Ada.", "answer": None, "answer_start": None},
    ]
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = read_data(path, task="question_answering")
    task = QuestionAnswering.of(data)
    assert task.no_answer
    assert task.asked(data) == (["Who?", "When?"], ["It was Ada."] * 2)
    assert list(task.targets(data)) == [(Span(7, "Ada"),), ()]
    answers: dict[str, Any] = {"answer": np.array([[b"ada"], [b""]], np.object_)}
    assert task.evaluate(answers, task.targets(data)) == {"f1": 1.0, "exact_match": 1.0}


def test_entities_are_judged_whole(tmp_path: Path) -> None:
    rows = [
        {"tokens": ["Ada", "Lovelace", "wrote"], "tags": ["I-PER", "I-PER", "O"]},
        {"tokens": ["in", "London"], "tags": ["O", "B-LOC"]},
    ]
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = read_data(path, task="token_classification")
    task = TokenClassification.of(data)
    assert task.labels == ("O", "B-LOC", "I-LOC", "I-PER")  # a place of several words may come
    targets = task.targets(data)
    assert targets[0] == (Tag(0, 3, "I-PER"), Tag(4, 12, "I-PER"), Tag(13, 18, "O"))
    found = [[{"label": "PER", "start": 0, "end": 12}], [{"label": "PER", "start": 3, "end": 9}]]
    answers = [[json.dumps(row).encode()] for row in found]
    columns: dict[str, Any] = {"entities": np.array(answers, np.object_)}
    assert task.evaluate(columns, targets) == {"f1": 0.5, "precision": 0.5, "recall": 0.5}
    other = TokenClassification(("O", "B-ORG"))
    with pytest.raises(DataError, match="line 1: label 'I-PER' is not one of the model's 2 labels"):
        other.targets(data)


def test_tags_that_are_all_outside_are_no_task(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"tokens": ["a"], "tags": ["O"]}) + "\n")
    with pytest.raises(DataError, match="tags no word with anything but O"):
        TokenClassification.of(read_data(path, task="token_classification"))


def test_embeddings_are_judged_on_pairs(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    rows = [{"text_a": f"{n}", "text_b": f"{n + 1}", "label": n} for n in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = read_data(path, task="embedding")
    task = Embedding(size=2)
    assert task.asked(data) == (["0", "1", "2", "1", "2", "3"], None)
    vectors = np.array([[1, 0], [1, 0], [1, 0], [0, 1], [1, 1], [1, 0]], np.float32)
    assert task.evaluate({"embedding": vectors}, task.targets(data))["spearman"] == pytest.approx(1)
    with pytest.raises(DataError, match="has single texts"):
        task.asked(data_of(tmp_path, Classification, "a", "b"))
    with pytest.raises(DataError, match="an embedding is not trained"):
        Embedding.of(data)
