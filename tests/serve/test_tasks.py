"""Tasks: what a label may be for each problem type, and how labels become targets."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from sparse_serve.data import TextData, read_data
from sparse_serve.errors import DataError
from sparse_serve.tasks import Label, ProblemType, Task, parse_label

SINGLE: ProblemType = "single_label_classification"
MULTI: ProblemType = "multi_label_classification"
REGRESSION: ProblemType = "regression"


def data_of(folder: Path, problem_type: ProblemType, *labels: object) -> TextData:
    """A file with a row for each label, read for a problem type."""
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps({"text_a": "x", "label": label}) + "\n" for label in labels))
    return read_data(path, problem_type=problem_type)


@pytest.mark.parametrize(
    ("problem_type", "value", "label"),
    [
        (SINGLE, " spam ", "spam"),
        (SINGLE, 3, "3"),
        (SINGLE, "[not JSON", "[not JSON"),
        (SINGLE, "nan", "nan"),
        (MULTI, ["a", 2], ("a", "2")),
        (MULTI, "[]", ()),
        (REGRESSION, 4, 4.0),
        (REGRESSION, "-4.60", -4.6),
        (REGRESSION, 3e38, 3e38),
    ],
)
def test_labels(problem_type: ProblemType, value: object, label: Label) -> None:
    assert parse_label(problem_type, value) == label


@pytest.mark.parametrize(
    ("problem_type", "value", "message"),
    [
        (SINGLE, 0.5, "the label is 0.5; .* --task regression"),
        (SINGLE, "4.6", "the label is '4.6'; .* --task regression"),
        (SINGLE, math.nan, "the label is nan; .* --task regression"),
        (SINGLE, ["a"], r"the label is \['a'\]; .* --task multi-label"),
        (SINGLE, '["a", "b"]', "--task multi-label"),
        (SINGLE, "[]", "--task multi-label"),
        (SINGLE, True, "the label is True; a label is a name"),
        (SINGLE, {"a": 1}, "a label is a name"),
        (SINGLE, "two\nlines", "a label is a name"),
        (SINGLE, "\ud83d", "a label is a name"),
        (MULTI, "spam", r"the label is 'spam'; a multi-label row has a JSON array of names, such as \["),
        (MULTI, "a,b", "a JSON array of names"),
        (MULTI, '["a"', "a JSON array of names"),
        (MULTI, 1, "a JSON array of names"),
        (MULTI, [0.5], "a JSON array of names"),
        (MULTI, [["a"]], "a JSON array of names"),
        (MULTI, [" "], "a JSON array of names"),
        (MULTI, [None], "a JSON array of names"),
        (MULTI, "[" * 100_000, "a JSON array of names"),
        (
            REGRESSION,
            "good",
            "the label is 'good'; regression needs a finite number, .* --task classification",
        ),
        (REGRESSION, "nan", "a finite number"),
        (REGRESSION, "inf", "a finite number"),
        (REGRESSION, "-Infinity", "a finite number"),
        (REGRESSION, math.inf, "a finite number"),
        (REGRESSION, math.nan, "a finite number"),
        (REGRESSION, "1e39", "a finite number"),
        (REGRESSION, 10**400, "a finite number"),
        (REGRESSION, "4,6", "a finite number"),
        (REGRESSION, "1_000", "a finite number"),
        (REGRESSION, True, "a finite number"),
        (REGRESSION, [1.0], "a finite number"),
    ],
)
def test_what_is_no_label_is_refused(problem_type: ProblemType, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_label(problem_type, value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("problem_type", [SINGLE, MULTI, REGRESSION])
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_label_is_refused(problem_type: ProblemType, value: object) -> None:
    with pytest.raises(ValueError, match="the label is missing"):
        parse_label(problem_type, value)


def test_a_task_has_the_labels_of_its_training_file(tmp_path: Path) -> None:
    assert Task.of(SINGLE, data_of(tmp_path, SINGLE, "b", "a", "b")).labels == ("a", "b")
    assert Task.of(MULTI, data_of(tmp_path, MULTI, [], ["b"], ["c", "a"])).labels == ("a", "b", "c")
    task = Task.of(REGRESSION, data_of(tmp_path, REGRESSION, 0.5, 4))
    assert (task.labels, task.num_labels) == (("score",), 1)


def test_a_file_without_enough_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has the one label 'a'; a classifier needs two or more"):
        Task.of(SINGLE, data_of(tmp_path, SINGLE, "a", "a"))
    with pytest.raises(DataError, match=r"no row of data file .* has a label"):
        Task.of(MULTI, data_of(tmp_path, MULTI, [], []))


@pytest.mark.parametrize(
    ("problem_type", "labels", "message"),
    [
        (SINGLE, ("a",), "needs 2 or more labels"),
        (MULTI, (), "needs 1 or more labels"),
        (REGRESSION, (), "needs 1 or more labels"),
        (SINGLE, ("a", "b\nc"), "is not one line of text"),
        (SINGLE, ("a", ""), "is not one line of text"),
        (SINGLE, ("a", "a"), "are not all different"),
    ],
)
def test_labels_that_cannot_be_served_are_refused(
    problem_type: ProblemType, labels: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Task(problem_type, labels)


def test_targets_of_one_label(tmp_path: Path) -> None:
    targets = Task(SINGLE, ("negative", "positive")).targets(
        data_of(tmp_path, SINGLE, "positive", "negative")
    )
    assert (targets.dtype, targets.tolist()) == (np.int64, [1, 0])


def test_targets_of_several_labels(tmp_path: Path) -> None:
    targets = Task(MULTI, ("a", "b", "c")).targets(data_of(tmp_path, MULTI, ["c", "a"], [], ["b"]))
    assert targets.dtype == np.float32
    assert targets.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_targets_of_a_regression(tmp_path: Path) -> None:
    targets = Task(REGRESSION, ("score",)).targets(data_of(tmp_path, REGRESSION, 0.5, "4.6"))
    assert targets.dtype == np.float32
    assert targets.tolist() == pytest.approx([0.5, 4.6])


def test_several_values_have_no_targets(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the model answers 2 "):
        Task(REGRESSION, ("x", "y")).targets(data_of(tmp_path, REGRESSION, 0.5))


def test_whole_numbers_are_indices_where_no_name_is_known(tmp_path: Path) -> None:
    task = Task(SINGLE, ("negative", "positive"))
    assert task.targets(data_of(tmp_path, SINGLE, 1, 0)).tolist() == [1, 0]
    # A known name wins over an index: in a model whose labels are 1 and 0, "1" is the first.
    assert Task(SINGLE, ("1", "0")).targets(data_of(tmp_path, SINGLE, 1, 0)).tolist() == [0, 1]
    assert Task(MULTI, ("a", "b")).targets(data_of(tmp_path, MULTI, [1], [0])).tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("label", ["neutral", "2", "-1", "1"])
def test_unknown_label_is_refused_with_line_and_value(tmp_path: Path, label: str) -> None:
    message = rf"line 2: label '{label}' is not one of the model's 2 labels"
    with pytest.raises(DataError, match=message):
        Task(SINGLE, ("negative", "positive")).targets(data_of(tmp_path, SINGLE, "positive", label))
    with pytest.raises(DataError, match=message):
        Task(MULTI, ("negative", "positive")).targets(data_of(tmp_path, MULTI, ["positive"], [label]))


def test_index_beyond_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 2: label '2'"):
        Task(SINGLE, ("negative", "positive")).targets(data_of(tmp_path, SINGLE, 1, 2))
