"""One of several classes: the label with the largest logit."""

import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from sparse_serve.errors import DataError
from sparse_serve.rows import RowFormat, TextData, TextRows, names_of
from sparse_serve.tasks.encoding import Columns, EncodedText, softmax, text_column
from sparse_serve.tasks.labels import json_array, label_index, name_in
from sparse_serve.tasks.task import OutputTensor, Task

_FRACTION = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def parse_name(value: object) -> str:
    """Read a row's label from what a data file holds: text, or in JSONL any JSON value.

    Raises:
        ValueError: it is neither a name nor a whole number.
    """
    if value is None or value == "":
        raise ValueError("the label is missing")
    name = name_in(value)
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


@dataclass(frozen=True)
class Classification(Task):
    """Which of `labels` a text has; a row's label is a name or a whole number."""

    type: ClassVar[str] = "single_label_classification"
    option: ClassVar[str] = "classification"
    rows: ClassVar[RowFormat] = TextRows(parse_name)
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "f1", "matthews")
    fewest_labels: ClassVar[int] = 2

    @classmethod
    def of(cls, data: TextData) -> Self:
        """Return the task with the labels of a training file, in its order."""
        if len(data.labels) < 2:
            raise DataError(
                f"data file {data.source} has the one label {data.labels[0]!r}; a classifier needs two or "
                "more"
            )
        return cls(data.labels)

    @property
    def outputs(self) -> tuple[OutputTensor, ...]:
        """Softmax `scores`, the best `label`, `logits`."""
        return class_outputs(len(self.labels))

    def answer(self, encoded: Sequence[EncodedText], output: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Read logits `(N, C)`; of equal ones the first label's is the largest."""
        best = text_column([self.labels[index] for index in output.argmax(axis=1)])
        return {"scores": softmax(output), "label": best, "logits": output}

    def targets(self, data: TextData) -> npt.NDArray[np.int64]:
        """Return the index of each row's label, `(N,)` int64; see `labels.label_index`."""
        index = label_index(self.labels, data)
        return np.array([index[name] for row in data.rows for name in names_of(row.label)], dtype=np.int64)

    def evaluate(self, columns: Columns, targets: npt.NDArray[Any]) -> dict[str, float]:
        """Return the metrics of `metrics.single_label_metrics`."""
        from sparse_serve.metrics import single_label_metrics  # noqa: PLC0415

        return single_label_metrics(columns["logits"], targets)


def class_outputs(width: int, *, is_labelled: bool = True) -> tuple[OutputTensor, ...]:
    """Return what a task of a score for each label answers."""
    return (
        OutputTensor("scores", "FP32", (width,), is_labelled=is_labelled),
        OutputTensor("label", "BYTES", (1,)),
        OutputTensor("logits", "FP32", (width,)),
    )
