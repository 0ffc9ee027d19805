"""What a model is trained to answer: its problem type, its labels, and how those become numbers.

The problem types are Transformers', as `config.problem_type` names them:

    type                          a row's label in a data file       the model's answer
    single_label_classification   a name or a whole number           the label with the largest logit
    multi_label_classification    a JSON array of names, [] too      every label with sigmoid(logit) ≥ 0.5
    regression                    a finite number                    the logit itself
"""

import json
import math
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt

from sparse_serve.errors import DataError

if TYPE_CHECKING:
    from sparse_serve.data import TextData

ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]
Label = str | float | tuple[str, ...]
"""A row's label: a name, a number (regression), or names (multi-label)."""

REGRESSION_LABELS = ("score",)

_FEWEST_LABELS: Mapping[ProblemType, int] = {
    "single_label_classification": 2,
    "multi_label_classification": 1,
    "regression": 1,
}
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_FRACTION = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Task:
    """What a model answers; `labels` are in the order of its logits.

    Raises:
        ValueError: there are too few labels for the problem type, or one is no line of text or occurs twice.
    """

    problem_type: ProblemType
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        fewest = _FEWEST_LABELS[self.problem_type]
        if len(self.labels) < fewest:
            raise ValueError(f"{self.problem_type} needs {fewest} or more labels, got {list(self.labels)}")
        for label in self.labels:
            if not _is_line(label):
                raise ValueError(f"label {label!r} is not one line of text")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError(f"the labels {reprlib.repr(list(self.labels))} are not all different")

    @classmethod
    def of(cls, problem_type: ProblemType, data: "TextData") -> Self:
        """Return the task that a training file poses: its labels, sorted, or the one value of regression.

        Raises:
            DataError: the file has too few labels.
        """
        labels = REGRESSION_LABELS if problem_type == "regression" else data.labels
        if problem_type == "single_label_classification" and len(labels) < 2:
            raise DataError(
                f"data file {data.source} has the one label {labels[0]!r}; a classifier needs two or more"
            )
        if not labels:
            raise DataError(f"no row of data file {data.source} has a label; one or more are needed")
        return cls(problem_type, labels)

    @property
    def num_labels(self) -> int:
        """How many logits the model has."""
        return len(self.labels)

    def targets(self, data: "TextData") -> npt.NDArray[Any]:
        """Return what the model should answer to the N rows of `data`, read for this problem type.

        Where no label of the file is a known name and none of the model's is a number, whole numbers are
        taken as indices: a model that says negative/positive can be judged on a file that says 0/1.

        Returns:
            single_label_classification: `(N,)` int64, indices of `labels`.
            multi_label_classification: `(N, C)` float32, 1 where the row has the label, else 0.
            regression: `(N,)` float32.

        Raises:
            DataError: a label that the model does not know, with its line and value, or a regression model
                of several values.
        """
        if self.problem_type == "regression":
            if self.num_labels > 1:
                raise DataError(
                    f"{data.source}: its rows have one value, but the model answers {self.num_labels} "
                    f"({reprlib.repr(list(self.labels))}); use a model of one value"
                )
            return np.array([row.label for row in data.rows], dtype=np.float32)
        index = self._index(data)
        if self.problem_type == "single_label_classification":
            return np.array([index[row.label] for row in data.rows], dtype=np.int64)
        targets = np.zeros((len(data.rows), self.num_labels), dtype=np.float32)
        for number, row in enumerate(data.rows):
            targets[number, [index[name] for name in names_of(row.label)]] = 1
        return targets

    def read(self, logits: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], list[str]]:
        """Return what the served model answers by its logits `(N, C)`: scores `(N, C)` and N labels as text.

        `triton/text_model/model.py`, into which nothing can be imported, computes the same.
        """
        answered = scores(self.problem_type, logits)
        if self.problem_type == "regression":
            rows = [str(row[0]) if len(row) == 1 else json.dumps(row.tolist()) for row in answered]
        elif self.problem_type == "multi_label_classification":
            chosen = [
                [label for label, score in zip(self.labels, row, strict=True) if score >= 0.5]
                for row in answered
            ]
            rows = [json.dumps(labels, ensure_ascii=False) for labels in chosen]
        else:
            rows = [self.labels[best] for best in answered.argmax(axis=1)]
        return answered, rows

    def _index(self, data: "TextData") -> dict[Label, int]:
        """Return the index of each of the file's labels."""
        index: dict[Label, int] = {name: number for number, name in enumerate(self.labels)}
        numbered = any(_INTEGER.fullmatch(name) for name in self.labels)
        if not numbered and not any(name in index for name in data.labels):
            index = {
                name: int(name)
                for name in data.labels
                if _INTEGER.fullmatch(name) and 0 <= int(name) < self.num_labels
            }
        for row in data.rows:
            for name in names_of(row.label):
                if name not in index:
                    raise DataError(
                        f"{data.source}, line {row.line}: label {reprlib.repr(name)} is not one of the "
                        f"model's {self.num_labels} labels {reprlib.repr(list(self.labels))}, nor are its "
                        "labels their indices"
                    )
        return index


def scores(problem_type: ProblemType, logits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the scores of logits `(N, C)`: their softmax, their sigmoid, or for regression themselves."""
    if problem_type == "regression":
        return logits
    if problem_type == "multi_label_classification":
        sigmoid: npt.NDArray[Any] = 0.5 * (1.0 + np.tanh(0.5 * logits))
        return sigmoid
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    softmax: npt.NDArray[Any] = exponentials / exponentials.sum(axis=1, keepdims=True)
    return softmax


def parse_label(problem_type: ProblemType, value: object) -> Label:
    """Read a row's label from what a data file holds: text, or in JSONL any JSON value.

    Raises:
        ValueError: it is no label of this problem type.
    """
    if value is None or value == "":
        raise ValueError("the label is missing")
    if problem_type == "regression":
        return _parse_number(value)
    if problem_type == "multi_label_classification":
        return _parse_names(value)
    return _parse_name(value)


def names_of(label: Label) -> tuple[str, ...]:
    """Return the names in a label; none in a number."""
    if isinstance(label, tuple):
        return label
    return (label,) if isinstance(label, str) else ()


def json_array(text: str) -> list[object] | None:
    """Return the JSON array that a text is, None where it is none."""
    if not text.lstrip().startswith("["):
        return None
    try:
        array = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return array if isinstance(array, list) else None


def sorted_labels(names: set[str]) -> tuple[str, ...]:
    """Sort labels: by value where all are whole numbers, else by name."""
    if all(_INTEGER.fullmatch(name) for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def _parse_name(value: object) -> str:
    name = _name(value)
    if isinstance(value, float) or (name is not None and _FRACTION.fullmatch(name)):
        raise ValueError(
            f"the label is {reprlib.repr(value)}; a label is a name or a whole number: "
            "other numbers are for --task regression"
        )
    if isinstance(value, list) or (isinstance(value, str) and json_array(value) is not None):
        raise ValueError(
            f"the label is {reprlib.repr(value)}; a label is a name or a whole number: "
            "arrays of labels are for --task multi-label"
        )
    if name is None:
        raise ValueError(
            f'the label is {reprlib.repr(value)}; a label is a name or a whole number, such as "true" or 1'
        )
    return name


def _parse_names(value: object) -> tuple[str, ...]:
    array = json_array(value) if isinstance(value, str) else value
    names = [_name(each) for each in array] if isinstance(array, list) else [None]
    if None in names:
        raise ValueError(
            f"the label is {reprlib.repr(value)}; a multi-label row has a JSON array of names, such as "
            '["comedy", "drama"], or [] for none'
        )
    return tuple(dict.fromkeys(name for name in names if name is not None))


def _parse_number(value: object) -> float:
    number = math.nan
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        number = float(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value) if abs(value) <= _LARGEST else math.inf
    if not abs(number) <= _LARGEST:
        raise ValueError(
            f"the label is {reprlib.repr(value)}; regression needs a finite number, such as 4.6: "
            "names are for --task classification"
        )
    return number


def _name(value: object) -> str | None:
    """Return a JSON value as the name of a label, None where it is none."""
    name = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    return name if _is_line(name) else None


def _is_line(text: str) -> bool:
    """Tell whether a text can be a line of `labels.txt`."""
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can hold
        return False
    return text.splitlines() == [text]
