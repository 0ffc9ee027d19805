"""Task metrics against hand-computed cases."""

import numpy as np
import pytest

from sparse_export.metrics import HEADLINE, task_metrics


def test_accuracy_is_the_share_of_right_answers() -> None:
    logits = [[2.0, 1.0, 0.0], [0.0, 0.1, 0.2], [-1.0, -3.0, -2.0], [0.0, 5.0, 1.0]]
    assert task_metrics(logits, [0, 2, 1, 1]) == {"accuracy": 0.75}


def test_a_tie_is_answered_by_the_first() -> None:
    assert task_metrics([[1.0, 1.0]], [0]) == {"accuracy": 1.0}
    assert task_metrics([[1.0, 1.0]], [1]) == {"accuracy": 0.0}


def test_the_headline_is_among_the_metrics() -> None:
    assert HEADLINE in task_metrics([[1.0, 0.0]], [0])


@pytest.mark.parametrize(("rows", "labels"), [((0, 2), 0), ((3, 2), 2), ((4,), 4)])
def test_shapes_that_disagree_are_refused(rows: tuple[int, ...], labels: int) -> None:
    with pytest.raises(ValueError, match=r"not \(N, C\) and \(N,\)"):
        task_metrics(np.zeros(rows), np.zeros(labels, dtype=np.int64))
