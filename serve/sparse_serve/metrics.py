"""Task metrics: how good a model's answers are.

Which of them a task has, and on what, its class says (`Task.metrics`, `Task.evaluate`). A metric that is
undefined is 0: a correlation with a constant or with NaN, F1 without any positive.
"""

import re
import string
from collections import Counter
from collections.abc import Hashable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import numpy.typing as npt

_LOWER_IS_BETTER = frozenset({"mse"})
_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def greater_is_better(metric: str) -> bool:
    """Tell whether a larger value of `metric` is a better one."""
    return metric not in _LOWER_IS_BETTER


def single_label_metrics(logits: npt.ArrayLike, targets: npt.ArrayLike) -> dict[str, float]:
    """Return `accuracy`, `f1` and `matthews` of the labels with the first of the largest logits.

    `f1` is that of label 1 where there are two, else the mean over the labels that occur in targets or
    answers (macro); `matthews` is a correlation in [-1, 1].

    Args:
        logits: `(N, C)` float.
        targets: `(N,)` integers in [0, C).

    Raises:
        ValueError: the shapes disagree or there are no rows.
    """
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef  # noqa: PLC0415

    logits, targets = np.asarray(logits), np.asarray(targets)
    _require_shapes(logits, 2, targets, logits.shape[:1])
    answered = logits.argmax(axis=1)
    average = "binary" if logits.shape[1] == 2 else "macro"
    is_constant = len(np.union1d(targets, answered)) == 1
    return {
        "accuracy": float(accuracy_score(targets, answered)),
        "f1": float(f1_score(targets, answered, average=average, zero_division=0)),
        "matthews": 0.0 if is_constant else float(matthews_corrcoef(targets, answered)),
    }


def multi_label_metrics(answered: npt.ArrayLike, targets: npt.ArrayLike) -> dict[str, float]:
    """Return `f1`, `f1_macro` and `accuracy` of sets of labels.

    `f1` is over all rows and labels together (micro), `f1_macro` the mean over labels, `accuracy` the share
    of rows answered exactly.

    Args:
        answered: `(N, C)` bool.
        targets: `(N, C)` of 0 and 1.

    Raises:
        ValueError: the shapes disagree or there are no rows.
    """
    from sklearn.metrics import f1_score  # noqa: PLC0415

    answered, targets = np.asarray(answered), np.asarray(targets).astype(np.bool_)
    _require_shapes(answered, 2, targets, answered.shape)
    # Column by column, and flat for the micro average: sklearn takes one column for two classes.
    columns = [f1_score(*column, zero_division=0) for column in zip(targets.T, answered.T, strict=True)]
    return {
        "f1": float(f1_score(targets.ravel(), answered.ravel(), zero_division=0)),
        "f1_macro": float(np.mean(columns)),
        "accuracy": float((targets == answered).all(axis=1).mean()),
    }


def regression_metrics(values: npt.ArrayLike, targets: npt.ArrayLike) -> dict[str, float]:
    """Return the `pearson` and `spearman` correlations in [-1, 1], and `mse`, the mean squared error.

    Args:
        values: `(N, 1)` or `(N,)` float.
        targets: `(N,)` float.

    Raises:
        ValueError: the shapes disagree or there are no rows.
    """
    values, targets = np.asarray(values, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    _require_shapes(values, 1, targets, values.shape)
    return {
        "pearson": _correlation(values, targets),
        "spearman": _rank_correlation(values, targets),
        "mse": float(np.mean((values - targets) ** 2)),
    }


def similarity_metrics(
    first: npt.ArrayLike, second: npt.ArrayLike, scores: npt.ArrayLike
) -> dict[str, float]:
    """Return the `spearman` and `pearson` correlations of cosine similarities with the scores of pairs.

    The similarity with a vector of zeros is 0.

    Args:
        first: `(N, M)` float, the vectors of the first texts.
        second: `(N, M)` float, those of the second ones.
        scores: `(N,)` float, how alike the two are.

    Raises:
        ValueError: the shapes disagree or there are no rows.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    wanted = np.asarray(scores, dtype=np.float64)
    _require_shapes(a, 2, b, a.shape)
    _require_shapes(a, 2, wanted, a.shape[:1])
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    similarities = np.divide((a * b).sum(axis=1), lengths, out=np.zeros(len(a)), where=lengths != 0)
    return {
        "spearman": _rank_correlation(similarities, wanted),
        "pearson": _correlation(similarities, wanted),
    }


def squad_metrics(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return `f1` and `exact_match` in [0, 1] of answers to questions, as SQuAD's evaluation scripts do.

    Both are means over questions of the best over the accepted answers. A question without any accepts the
    empty one, as does one whose answers are all articles and punctuation. `f1` is that of the words, in lower
    case and without punctuation and articles; `exact_match` is whether those are equal. Rajpurkar et al. 2016
    and 2018, `evaluate-v1.1.py` and `evaluate-v2.0.py`, whose figures are percentages.

    Args:
        predictions: an answer for each of N questions, "" for none.
        answers: the accepted answers of each, none where it has no answer.

    Raises:
        ValueError: the numbers disagree or there are no questions.
    """
    if len(predictions) != len(answers) or not answers:
        raise ValueError(f"{len(predictions)} predictions for {len(answers)} questions; one each is needed")
    f1, exact = 0.0, 0
    for prediction, accepted in zip(predictions, answers, strict=True):
        found = _normalised(prediction)
        wanted = [words for answer in accepted if (words := _normalised(answer))] or [[]]
        f1 += max(_word_f1(found, words) for words in wanted)
        exact += found in wanted
    return {"f1": f1 / len(answers), "exact_match": exact / len(answers)}


def entity_metrics(
    predicted: Sequence[AbstractSet[Hashable]], true: Sequence[AbstractSet[Hashable]]
) -> dict[str, float]:
    """Return `f1`, `precision` and `recall` of whole entities, over all texts together (micro).

    As seqeval and conlleval count them: an entity is right where its type, start and end are.

    Args:
        predicted: the entities of each of N texts, such as (type, start, end).
        true: those that are there.

    Raises:
        ValueError: the numbers of texts disagree or there are none.
    """
    if len(predicted) != len(true) or not true:
        raise ValueError(f"entities of {len(predicted)} and of {len(true)} texts; as many of both are needed")
    right = sum(len(found & wanted) for found, wanted in zip(predicted, true, strict=True))
    found, wanted = sum(map(len, predicted)), sum(map(len, true))
    return {
        "f1": 2 * right / (found + wanted) if found + wanted else 0.0,
        "precision": right / found if found else 0.0,
        "recall": right / wanted if wanted else 0.0,
    }


def _normalised(answer: str) -> list[str]:
    """Return the words that SQuAD's scripts compare."""
    return _ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split()


def _word_f1(found: Sequence[str], wanted: Sequence[str]) -> float:
    common = (Counter(found) & Counter(wanted)).total()
    if not found or not wanted:
        return float(found == wanted)
    return 2 * common / (len(found) + len(wanted))


def _rank_correlation(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    """Return Spearman's coefficient: Pearson's of the ranks, of which ties share the mean."""
    from scipy.stats import rankdata  # noqa: PLC0415

    return _correlation(rankdata(first), rankdata(second))


def _correlation(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    from scipy.stats import pearsonr  # noqa: PLC0415

    spreads = np.array([np.ptp(first), np.ptp(second)])
    if not (np.isfinite(spreads) & (spreads > 0)).all():
        return 0.0
    return float(pearsonr(first, second).statistic)


def _require_shapes(
    answered: npt.NDArray[Any], dimensions: int, targets: npt.NDArray[Any], expected: tuple[int, ...]
) -> None:
    if answered.ndim != dimensions or targets.shape != expected or not answered.size:
        raise ValueError(f"answers {answered.shape} and targets {targets.shape} do not fit, with N > 0 rows")
