"""Task metrics against cases computed by hand, and against what must hold of any of them."""

import json
import math
import warnings

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sparse_serve.metrics import METRICS, answers, greater_is_better, headline, task_metrics
from sparse_serve.tasks import ProblemType

SINGLE: ProblemType = "single_label_classification"
MULTI: ProblemType = "multi_label_classification"
REGRESSION: ProblemType = "regression"


def logits_of(answered: list[int], labels: int) -> list[list[float]]:
    return (10.0 * np.eye(labels)[answered]).tolist()


def test_two_classes_by_hand() -> None:
    # 2 true positives, 1 false positive, 1 false negative, 3 true negatives.
    targets = [1, 1, 1, 0, 0, 0, 0]
    found = task_metrics(SINGLE, logits_of([1, 1, 0, 1, 0, 0, 0], 2), targets)
    assert found == pytest.approx(
        {"accuracy": 5 / 7, "f1": 2 / 3, "matthews": (2 * 3 - 1 * 1) / math.sqrt(3 * 3 * 4 * 4)}
    )


def test_three_classes_by_hand() -> None:
    # F1 by class: 2·1/(2·1+1+0), 2·1/(2·1+0+2), 2·1/(2·1+1+0).
    found = task_metrics(SINGLE, logits_of([0, 0, 1, 2, 2], 3), [0, 1, 1, 1, 2])
    assert found["accuracy"] == pytest.approx(3 / 5)
    assert found["f1"] == pytest.approx((2 / 3 + 1 / 2 + 2 / 3) / 3)


def test_a_tie_is_answered_by_the_first() -> None:
    assert task_metrics(SINGLE, [[1.0, 1.0]], [0])["accuracy"] == 1.0
    assert task_metrics(SINGLE, [[1.0, 1.0]], [1])["accuracy"] == 0.0


def test_multi_label_by_hand() -> None:
    logits = [[3.0, -1.0], [0.0, 2.0], [-2.0, -3.0]]  # {a}, {a, b}, {}
    targets = np.array([[1, 0], [0, 1], [0, 1]], np.float32)  # {a}, {b}, {b}
    found = task_metrics(MULTI, logits, targets)
    # All cells: 2 hits, 1 false alarm, 1 miss. Column a: 1 hit, 1 false alarm; b: 1 hit, 1 miss.
    assert found == pytest.approx({"f1": 4 / 6, "f1_macro": 2 / 3, "accuracy": 1 / 3})


def test_one_label_of_a_multi_label_model_is_not_two_classes() -> None:
    found = task_metrics(MULTI, [[1.0], [-1.0], [-1.0], [-1.0]], np.array([[1], [1], [0], [0]], np.float32))
    assert found == pytest.approx({"f1": 2 / 3, "f1_macro": 2 / 3, "accuracy": 3 / 4})


@pytest.mark.parametrize("shape", [(4, 1), (4,)])
def test_regression_by_hand(shape: tuple[int, ...]) -> None:
    values = np.array([1.0, 2.0, 3.0, 10.0], np.float32).reshape(shape)
    found = task_metrics(REGRESSION, values, np.array([2.0, 4.0, 6.0, 8.0], np.float32))
    # Deviations −3 −2 −1 6 and −3 −1 1 3: 28 / √(50 · 20); the order is the same; 1 + 4 + 9 + 4 over 4.
    assert found == pytest.approx({"pearson": 28 / math.sqrt(1000), "spearman": 1.0, "mse": 4.5})


def test_ties_share_their_rank() -> None:
    # Ranks 1 2.5 2.5 4 and 1 2 3 4: 4.5 / √(4.5 · 5).
    found = task_metrics(REGRESSION, [[1.0], [2.0], [2.0], [9.0]], [1.0, 2.0, 3.0, 4.0])
    assert found["spearman"] == pytest.approx(math.sqrt(0.9))


@pytest.mark.parametrize(
    ("problem_type", "logits", "targets", "expected"),
    [
        (SINGLE, [[1.0, 0.0]] * 3, [0, 0, 0], {"accuracy": 1.0, "f1": 0.0, "matthews": 0.0}),
        (MULTI, [[-1.0, -1.0]] * 2, [[0, 0]] * 2, {"f1": 0.0, "f1_macro": 0.0, "accuracy": 1.0}),
        (REGRESSION, [[1.0]] * 3, [1.0, 2.0, 3.0], {"pearson": 0.0, "spearman": 0.0, "mse": 5 / 3}),
        (REGRESSION, [[1.0], [2.0]], [3.0, 3.0], {"pearson": 0.0, "spearman": 0.0, "mse": 2.5}),
        (REGRESSION, [[1.0]], [2.0], {"pearson": 0.0, "spearman": 0.0, "mse": 1.0}),
    ],
)
def test_what_is_undefined_is_zero(
    problem_type: ProblemType, logits: list[list[float]], targets: list[float], expected: dict[str, float]
) -> None:
    with np.errstate(all="raise"), warnings.catch_warnings(action="error"):
        assert task_metrics(problem_type, logits, targets) == pytest.approx(expected)


def test_diverged_values_are_the_worst_and_no_error() -> None:
    found = task_metrics(REGRESSION, [[math.nan], [1.0], [2.0]], [1.0, 2.0, 3.0])
    assert (found["pearson"], found["spearman"]) == (0.0, 0.0)


FINITE = st.floats(-1e4, 1e4, width=32)


@given(hnp.arrays(np.float32, (9, 3), elements=FINITE), hnp.arrays(np.int64, 9, elements=st.integers(0, 2)))
@settings(max_examples=50, deadline=None)
def test_classification_is_within_its_range(
    logits: npt.NDArray[np.float32],
    targets: npt.NDArray[np.int64],
) -> None:
    found = task_metrics(SINGLE, logits, targets)
    assert 0 <= found["accuracy"] <= 1
    assert 0 <= found["f1"] <= 1
    assert -1 <= found["matthews"] <= 1
    perfect = task_metrics(SINGLE, np.eye(3)[targets], targets)
    assert perfect["accuracy"] == perfect["f1"] == 1


@given(hnp.arrays(np.float32, 12, elements=FINITE), st.floats(0.125, 8, width=32))
@settings(max_examples=50, deadline=None)
def test_correlations_know_neither_scale_nor_offset(values: npt.NDArray[np.float32], scale: float) -> None:
    targets = np.arange(12, dtype=np.float32)
    found = task_metrics(REGRESSION, values, targets)
    moved = task_metrics(REGRESSION, values.astype(np.float64) * scale + 7, targets)
    turned = task_metrics(REGRESSION, -values, targets)
    assert all(math.isfinite(value) for value in found.values())
    for name in ("pearson", "spearman"):
        assert -1 - 1e-9 <= found[name] <= 1 + 1e-9
        assert turned[name] == pytest.approx(-found[name], abs=1e-9)
    if np.ptp(values) > 1e-3:
        assert moved["pearson"] == pytest.approx(found["pearson"], abs=1e-3)


@pytest.mark.parametrize("problem_type", METRICS)
def test_metrics_are_named_and_the_headline_is_the_first(problem_type: ProblemType) -> None:
    targets = {SINGLE: [0, 1], MULTI: [[0, 1], [1, 0]], REGRESSION: [0.5, 1.5]}[problem_type]
    logits = [[1.0], [2.0]] if problem_type == REGRESSION else [[1.0, 0.0], [2.0, 0.0]]
    found = task_metrics(problem_type, logits, targets)
    assert tuple(found) == METRICS[problem_type]
    assert headline(problem_type) == METRICS[problem_type][0]
    assert greater_is_better(headline(problem_type))
    assert json.loads(json.dumps(found)) == found


def test_an_error_is_better_when_small() -> None:
    names = {name for metrics in METRICS.values() for name in metrics}
    assert {name for name in names if not greater_is_better(name)} == {"mse"}


def test_answers_are_what_is_served() -> None:
    logits = np.array([[-0.1, 0.0, 2.0], [1.0, 1.0, -1.0]], np.float32)
    assert answers(SINGLE, logits).tolist() == [2, 0]
    assert answers(MULTI, logits).tolist() == [[False, True, True], [True, True, False]]
    assert answers(REGRESSION, logits) is logits


@pytest.mark.parametrize(
    ("problem_type", "logits", "targets"),
    [
        (SINGLE, (0, 2), (0,)),
        (SINGLE, (3, 2), (2,)),
        (SINGLE, (4,), (4,)),
        (MULTI, (3, 2), (3,)),
        (MULTI, (3, 2), (3, 3)),
        (REGRESSION, (3, 2), (3,)),
        (REGRESSION, (0, 1), (0,)),
    ],
)
def test_shapes_that_disagree_are_refused(
    problem_type: ProblemType, logits: tuple[int, ...], targets: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=f"do not fit {problem_type} with N > 0 rows"):
        task_metrics(problem_type, np.zeros(logits), np.zeros(targets, dtype=np.int64))
