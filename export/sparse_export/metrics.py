"""Task metrics: how good a classifier's answers are, as numbers in [0, 1]."""

import numpy as np
import numpy.typing as npt

HEADLINE = "accuracy"
"""The metric by which checkpoints are chosen and gates are judged; larger is better."""


def task_metrics(logits: npt.ArrayLike, labels: npt.ArrayLike) -> dict[str, float]:
    """Every metric of a single-label task, by name.

    Args:
        logits: `(N, C)` float; the answer is the first of the largest.
        labels: `(N,)` integers in [0, C).

    Raises:
        ValueError: the shapes disagree or there are no rows.
    """
    logits, labels = np.asarray(logits), np.asarray(labels)
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or not labels.size:
        raise ValueError(
            f"logits {logits.shape} and labels {labels.shape} are not (N, C) and (N,) with N > 0"
        )
    return {"accuracy": float(np.mean(logits.argmax(axis=1) == labels))}
