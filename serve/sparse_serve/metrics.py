"""Task metrics: how good a model's answers are."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sparse_serve.tasks import ProblemType, scores

METRICS: Mapping[ProblemType, tuple[str, ...]] = {
    "single_label_classification": ("accuracy", "f1", "matthews"),
    "multi_label_classification": ("f1", "f1_macro", "accuracy"),
    "regression": ("pearson", "spearman", "mse"),
}
"""The metrics of each problem type; the first is its headline."""

_LOWER_IS_BETTER = frozenset({"mse"})


def headline(problem_type: ProblemType) -> str:
    """Return the metric by which checkpoints are chosen and models compared; larger is better."""
    return METRICS[problem_type][0]


def greater_is_better(metric: str) -> bool:
    """Tell whether a larger value of `metric` is a better one."""
    return metric not in _LOWER_IS_BETTER


def answers(problem_type: ProblemType, logits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return what a model answers by its logits `(N, C)`, as in `tasks`.

    The first of the largest `(N,)` for single-label classification, `(N, C)` bool for multi-label, and the
    logits themselves for regression.
    """
    answered = logits
    if problem_type == "single_label_classification":
        answered = logits.argmax(axis=1)
    elif problem_type == "multi_label_classification":
        answered = scores(problem_type, logits) >= 0.5
    return answered


def task_metrics(
    problem_type: ProblemType, logits: npt.ArrayLike, targets: npt.ArrayLike
) -> dict[str, float]:
    """Return every metric in `METRICS[problem_type]`, in that order.

    single_label_classification: the answer is the first of the largest logits. `accuracy`; `f1` of label 1
    where there are two, else the mean over the labels that occur in targets or answers (macro); `matthews`
    correlation in [-1, 1].

    multi_label_classification: the answers are the labels with sigmoid(logit) ≥ 0.5. `f1` over all rows and
    labels together (micro); `f1_macro`, the mean over labels; `accuracy`, the share of rows answered exactly.

    regression: `pearson` and `spearman` correlation in [-1, 1]; `mse`, the mean squared error.

    A metric that is undefined is 0: a correlation with a constant or with NaN, F1 without any positive.

    Args:
        problem_type: what the model answers.
        logits: `(N, C)` float; for regression `(N, 1)` or `(N,)`.
        targets: as `Task.targets` gives them: `(N,)` integers in [0, C), `(N, C)` of 0 and 1, or `(N,)`
            float.

    Raises:
        ValueError: the shapes disagree or there are no rows.
    """
    logits, targets = np.asarray(logits), np.asarray(targets)
    if problem_type == "regression" and logits.ndim == 2 and logits.shape[1] == 1:
        logits = logits[:, 0]
    expected = logits.shape[:1] if problem_type == "single_label_classification" else logits.shape
    dimensions = 1 if problem_type == "regression" else 2
    if logits.ndim != dimensions or targets.shape != expected or not logits.size:
        raise ValueError(
            f"logits {logits.shape} and targets {targets.shape} do not fit {problem_type} with N > 0 rows"
        )
    if problem_type == "regression":
        return _regression(logits.astype(np.float64), targets.astype(np.float64))
    if problem_type == "multi_label_classification":
        return _multi_label(answers(problem_type, logits), targets.astype(np.bool_))
    return _single_label(answers(problem_type, logits), targets, logits.shape[1])


def _single_label(
    answered: npt.NDArray[np.int64], targets: npt.NDArray[np.int64], num_labels: int
) -> dict[str, float]:
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef  # noqa: PLC0415

    average = "binary" if num_labels == 2 else "macro"
    is_constant = len(np.union1d(targets, answered)) == 1
    return {
        "accuracy": float(accuracy_score(targets, answered)),
        "f1": float(f1_score(targets, answered, average=average, zero_division=0)),
        "matthews": 0.0 if is_constant else float(matthews_corrcoef(targets, answered)),
    }


def _multi_label(answered: npt.NDArray[np.bool_], targets: npt.NDArray[np.bool_]) -> dict[str, float]:
    from sklearn.metrics import f1_score  # noqa: PLC0415

    # Column by column, and flat for the micro average: sklearn takes one column for two classes.
    columns = [f1_score(*column, zero_division=0) for column in zip(targets.T, answered.T, strict=True)]
    return {
        "f1": float(f1_score(targets.ravel(), answered.ravel(), zero_division=0)),
        "f1_macro": float(np.mean(columns)),
        "accuracy": float((targets == answered).all(axis=1).mean()),
    }


def _regression(values: npt.NDArray[np.float64], targets: npt.NDArray[np.float64]) -> dict[str, float]:
    from scipy.stats import rankdata  # noqa: PLC0415

    return {
        "pearson": _correlation(values, targets),
        # Spearman's coefficient is Pearson's of the ranks; ties share their mean rank.
        "spearman": _correlation(rankdata(values), rankdata(targets)),
        "mse": float(np.mean((values - targets) ** 2)),
    }


def _correlation(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    from scipy.stats import pearsonr  # noqa: PLC0415

    spreads = np.array([np.ptp(first), np.ptp(second)])
    if not (np.isfinite(spreads) & (spreads > 0)).all():
        return 0.0
    return float(pearsonr(first, second).statistic)
