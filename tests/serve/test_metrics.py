"""Task metrics against cases computed by hand, and against what must hold of any of them."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import seqeval.metrics as seqeval
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sparse_serve.metrics import (
    entity_metrics,
    greater_is_better,
    multi_label_metrics,
    regression_metrics,
    similarity_metrics,
    single_label_metrics,
    squad_metrics,
)
from sparse_serve.tags import chunks
from sparse_serve.tasks import TASKS


def logits_of(answered: list[int], labels: int) -> list[list[float]]:
    return [[10.0 * (label == each) for label in range(labels)] for each in answered]


def test_two_classes_by_hand() -> None:
    # 2 true positives, 1 false positive, 1 false negative, 3 true negatives.
    targets = [1, 1, 1, 0, 0, 0, 0]
    found = single_label_metrics(logits_of([1, 1, 0, 1, 0, 0, 0], 2), targets)
    assert found == pytest.approx(
        {"accuracy": 5 / 7, "f1": 2 / 3, "matthews": (2 * 3 - 1 * 1) / math.sqrt(3 * 3 * 4 * 4)}
    )


def test_three_classes_by_hand() -> None:
    # F1 by class: 2·1/(2·1+1+0), 2·1/(2·1+0+2), 2·1/(2·1+1+0).
    found = single_label_metrics(logits_of([0, 0, 1, 2, 2], 3), [0, 1, 1, 1, 2])
    assert found["accuracy"] == pytest.approx(3 / 5)
    assert found["f1"] == pytest.approx((2 / 3 + 1 / 2 + 2 / 3) / 3)


def test_a_tie_is_answered_by_the_first() -> None:
    assert single_label_metrics([[1.0, 1.0]], [0])["accuracy"] == 1.0
    assert single_label_metrics([[1.0, 1.0]], [1])["accuracy"] == 0.0


def test_multi_label_by_hand() -> None:
    answered = np.array([[True, False], [True, True], [False, False]])  # {a}, {a, b}, {}
    targets = np.array([[1, 0], [0, 1], [0, 1]], np.float32)  # {a}, {b}, {b}
    found = multi_label_metrics(answered, targets)
    # All cells: 2 hits, 1 false alarm, 1 miss. Column a: 1 hit, 1 false alarm; b: 1 hit, 1 miss.
    assert found == pytest.approx({"f1": 4 / 6, "f1_macro": 2 / 3, "accuracy": 1 / 3})


def test_one_label_of_a_multi_label_model_is_not_two_classes() -> None:
    answered = np.array([[True], [False], [False], [False]])
    found = multi_label_metrics(answered, np.array([[1], [1], [0], [0]], np.float32))
    assert found == pytest.approx({"f1": 2 / 3, "f1_macro": 2 / 3, "accuracy": 3 / 4})


@pytest.mark.parametrize("shape", [(4, 1), (4,)])
def test_regression_by_hand(shape: tuple[int, ...]) -> None:
    values = np.array([1.0, 2.0, 3.0, 10.0], np.float32).reshape(shape)
    found = regression_metrics(values, np.array([2.0, 4.0, 6.0, 8.0], np.float32))
    # Deviations −3 −2 −1 6 and −3 −1 1 3: 28 / √(50 · 20); the order is the same; 1 + 4 + 9 + 4 over 4.
    assert found == pytest.approx({"pearson": 28 / math.sqrt(1000), "spearman": 1.0, "mse": 4.5})


def test_ties_share_their_rank() -> None:
    # Ranks 1 2.5 2.5 4 and 1 2 3 4: 4.5 / √(4.5 · 5).
    found = regression_metrics([[1.0], [2.0], [2.0], [9.0]], [1.0, 2.0, 3.0, 4.0])
    assert found["spearman"] == pytest.approx(math.sqrt(0.9))


Metrics = Callable[[Any, Any], dict[str, float]]


@pytest.mark.parametrize(
    ("metrics", "answered", "targets", "expected"),
    [
        (single_label_metrics, [[1.0, 0.0]] * 3, [0, 0, 0], {"accuracy": 1.0, "f1": 0.0, "matthews": 0.0}),
        (multi_label_metrics, [[False] * 2] * 2, [[0, 0]] * 2, {"f1": 0.0, "f1_macro": 0.0, "accuracy": 1.0}),
        (regression_metrics, [[1.0]] * 3, [1.0, 2.0, 3.0], {"pearson": 0.0, "spearman": 0.0, "mse": 5 / 3}),
        (regression_metrics, [[1.0], [2.0]], [3.0, 3.0], {"pearson": 0.0, "spearman": 0.0, "mse": 2.5}),
        (regression_metrics, [[1.0]], [2.0], {"pearson": 0.0, "spearman": 0.0, "mse": 1.0}),
        (entity_metrics, [set(), set()], [set(), set()], {"f1": 0.0, "precision": 0.0, "recall": 0.0}),
        (entity_metrics, [set()], [{("a", 0, 1)}], {"f1": 0.0, "precision": 0.0, "recall": 0.0}),
    ],
)
def test_what_is_undefined_is_zero(
    metrics: Metrics, answered: Any, targets: Any, expected: dict[str, float]
) -> None:
    with np.errstate(all="raise"), warnings.catch_warnings(action="error"):
        assert metrics(answered, targets) == pytest.approx(expected)


def test_diverged_values_are_the_worst_and_no_error() -> None:
    found = regression_metrics([[math.nan], [1.0], [2.0]], [1.0, 2.0, 3.0])
    assert (found["pearson"], found["spearman"]) == (0.0, 0.0)


FINITE = st.floats(-1e4, 1e4, width=32)


@given(hnp.arrays(np.float32, (9, 3), elements=FINITE), hnp.arrays(np.int64, 9, elements=st.integers(0, 2)))
@settings(max_examples=50, deadline=None)
def test_classification_is_within_its_range(
    logits: npt.NDArray[np.float32],
    targets: npt.NDArray[np.int64],
) -> None:
    found = single_label_metrics(logits, targets)
    assert 0 <= found["accuracy"] <= 1
    assert 0 <= found["f1"] <= 1
    assert -1 <= found["matthews"] <= 1
    perfect = single_label_metrics(np.eye(3)[targets], targets)
    assert perfect["accuracy"] == perfect["f1"] == 1


@given(hnp.arrays(np.float32, 12, elements=FINITE), st.floats(0.125, 8, width=32))
@settings(max_examples=50, deadline=None)
def test_correlations_know_neither_scale_nor_offset(values: npt.NDArray[np.float32], scale: float) -> None:
    targets = np.arange(12, dtype=np.float32)
    found = regression_metrics(values, targets)
    moved = regression_metrics(values.astype(np.float64) * scale + 7, targets)
    turned = regression_metrics(-values, targets)
    assert all(math.isfinite(value) for value in found.values())
    for name in ("pearson", "spearman"):
        assert -1 - 1e-9 <= found[name] <= 1 + 1e-9
        assert turned[name] == pytest.approx(-found[name], abs=1e-9)
    if np.ptp(values) > 1e-3:
        assert moved["pearson"] == pytest.approx(found["pearson"], abs=1e-3)


def test_an_error_is_better_when_small() -> None:
    names = {name for task in TASKS.values() for name in task.metrics}
    assert {name for name in names if not greater_is_better(name)} == {"mse"}
    assert all(greater_is_better(task.metrics[0]) for task in TASKS.values() if task.metrics)


@pytest.mark.parametrize(
    ("metrics", "answered", "targets"),
    [
        (single_label_metrics, (0, 2), (0,)),
        (single_label_metrics, (3, 2), (2,)),
        (single_label_metrics, (4,), (4,)),
        (multi_label_metrics, (3, 2), (3,)),
        (multi_label_metrics, (3, 2), (3, 3)),
        (regression_metrics, (3, 2), (3,)),
        (regression_metrics, (0, 1), (0,)),
    ],
)
def test_shapes_that_disagree_are_refused(
    metrics: Metrics, answered: tuple[int, ...], targets: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="do not fit, with N > 0 rows"):
        metrics(np.zeros(answered), np.zeros(targets, dtype=np.int64))


def test_rows_of_two_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="1 predictions for 2 questions"):
        squad_metrics([""], [[], []])
    with pytest.raises(ValueError, match="entities of 1 and of 0 texts"):
        entity_metrics([set()], [])
    with pytest.raises(ValueError, match="do not fit"):
        similarity_metrics(np.ones((2, 3)), np.ones((3, 3)), np.ones(2))
    with pytest.raises(ValueError, match="do not fit"):
        similarity_metrics(np.ones((2, 3)), np.ones((2, 3)), np.ones(3))


# What SQuAD's evaluate-v2.0.py gives (compute_exact, compute_f1), by prediction and answer.
SQUAD_CASES = [
    ("Denver Broncos", "Denver Broncos", 1, 1.0),
    ("the Denver  broncos!", "Denver Broncos", 1, 1.0),
    ("Broncos", "Denver Broncos", 0, 2 / 3),
    ("a an the", "", 1, 1.0),
    ("", "", 1, 1.0),
    ("", "Denver", 0, 0.0),
    ("Denver", "", 0, 0.0),
    ("Santa Clara, California", "Levi's Stadium in Santa Clara California", 0, 2 * 1.0 * 0.5 / 1.5),
    ("24-10", "2410", 1, 1.0),  # ASCII punctuation goes without leaving a blank
    ("24–10", "2410", 0, 0.0),  # an en dash is none of it
    ("then another", "then nother", 0, 0.5),  # articles go as whole words
    ("The the theatre", "theatre", 1, 1.0),
    ("São Paulo", "são paulo", 1, 1.0),
    ("one one two", "one two two", 0, 2 / 3),  # a word counts as often as it occurs
    ("a-b", "ab", 1, 1.0),  # punctuation goes first, so that no article is left of a-b
    ("x\u00a0y", "x y", 1, 1.0),
]


@pytest.mark.parametrize(("prediction", "answer", "exact", "f1"), SQUAD_CASES)
def test_answers_are_compared_as_squad_does(prediction: str, answer: str, exact: int, f1: float) -> None:
    expected = pytest.approx({"f1": f1, "exact_match": exact})
    assert squad_metrics([prediction], [[answer]]) == expected


def test_the_best_of_the_accepted_answers_counts() -> None:
    accepted = [["Denver Broncos", "Broncos"], [], ["in Santa Clara", "Santa Clara"]]
    found = squad_metrics(["Broncos", "", "Clara"], accepted)
    assert found == pytest.approx({"f1": (1 + 1 + 2 / 3) / 3, "exact_match": 2 / 3})


def test_a_question_without_an_answer_wants_the_empty_one() -> None:
    assert squad_metrics(["something"], [[]]) == {"f1": 0.0, "exact_match": 0.0}
    # As evaluate-v2.0.py drops answers of which nothing is left; but never all of them.
    assert squad_metrics([""], [["the"]]) == {"f1": 1.0, "exact_match": 1.0}
    assert squad_metrics([""], [["the", "Nile"]]) == {"f1": 0.0, "exact_match": 0.0}


TAGS = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "LOC")), "B", "I"]
SENTENCES = st.lists(st.lists(st.sampled_from(TAGS), min_size=1, max_size=12), min_size=1, max_size=5)


@given(SENTENCES, st.data())
@settings(max_examples=300, deadline=None)
def test_entities_are_counted_as_seqeval_counts_them(true: list[list[str]], data: st.DataObject) -> None:
    predicted = [
        [data.draw(st.one_of(st.just(tag), st.sampled_from(TAGS))) for tag in sentence] for sentence in true
    ]
    found = entity_metrics(entities(predicted), entities(true))
    with warnings.catch_warnings(action="ignore"):
        expected = {
            "f1": seqeval.f1_score(true, predicted),
            "precision": seqeval.precision_score(true, predicted),
            "recall": seqeval.recall_score(true, predicted),
        }
    assert found == pytest.approx(expected)


def entities(sentences: Sequence[Sequence[str]]) -> list[set[tuple[str, int, int]]]:
    return [set(chunks(tags)) for tags in sentences]


def test_entities_by_hand() -> None:
    true = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "I-LOC", "I-PER"]]
    predicted = [["B-PER", "O", "O", "B-LOC"], ["O", "I-LOC", "I-PER"]]
    # 4 of each, 3 in common.
    assert entity_metrics(entities(predicted), entities(true)) == {
        "f1": 0.75,
        "precision": 0.75,
        "recall": 0.75,
    }


def test_similarities_by_hand() -> None:
    first = np.array([[1, 0], [1, 0], [1, 1], [2, 0]], np.float32)
    second = np.array([[5, 0], [0, 1], [1, 0], [-1, 0]], np.float32)  # cosines 1, 0, √½, -1
    assert similarity_metrics(first, second, [5, 2, 3, 0])["spearman"] == pytest.approx(1.0)
    assert similarity_metrics(first, second, [0, 3, 2, 5])["spearman"] == pytest.approx(-1.0)
    linear = similarity_metrics(first, second, [4, 2, 2 + math.sqrt(2), 0])
    assert linear["pearson"] == pytest.approx(1.0)


def test_a_vector_of_zeros_is_like_nothing() -> None:
    found = similarity_metrics([[0.0, 0.0], [1.0, 0.0], [1.0, 0.1]], [[1.0, 0.0]] * 3, [0, 2, 1])
    assert found["spearman"] == pytest.approx(1.0)
    assert similarity_metrics([[0.0]] * 2, [[1.0]] * 2, [0, 1]) == {"spearman": 0.0, "pearson": 0.0}
