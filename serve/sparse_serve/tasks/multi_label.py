"""Any number of classes: every label with sigmoid(logit) ≥ 0.5."""

import json
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from sparse_serve.errors import DataError
from sparse_serve.rows import RowFormat, TextData, TextRows, names_of
from sparse_serve.tasks.classification import class_outputs
from sparse_serve.tasks.encoding import Columns, EncodedText, text_column
from sparse_serve.tasks.labels import json_array, label_index, name_in
from sparse_serve.tasks.task import OutputTensor, Task

THRESHOLD = 0.5


def parse_names(value: object) -> tuple[str, ...]:
    """Read a row's label from what a data file holds: a JSON array of names.

    Raises:
        ValueError: it is none.
    """
    if value is None or value == "":
        raise ValueError("the label is missing")
    array = json_array(value) if isinstance(value, str) else value
    names = [name_in(each) for each in array] if isinstance(array, list) else [None]
    if None in names:
        raise ValueError(
            f"the label is {reprlib.repr(value)}; a multi-label row has a JSON array of names, such as "
            '["comedy", "drama"], or [] for none'
        )
    return tuple(dict.fromkeys(name for name in names if name is not None))


@dataclass(frozen=True)
class MultiLabel(Task):
    """Which of `labels` a text has, none and all included; a row's label is a JSON array of names."""

    type: ClassVar[str] = "multi_label_classification"
    option: ClassVar[str] = "multi-label"
    rows: ClassVar[RowFormat] = TextRows(parse_names)
    metrics: ClassVar[tuple[str, ...]] = ("f1", "f1_macro", "accuracy")
    fewest_labels: ClassVar[int] = 1

    @classmethod
    def of(cls, data: TextData) -> Self:
        """Return the task with the labels of a training file, in its order."""
        if not data.labels:
            raise DataError(f"no row of data file {data.source} has a label; one or more are needed")
        return cls(data.labels)

    @property
    def outputs(self) -> tuple[OutputTensor, ...]:
        """Sigmoid `scores`, the JSON array of labels as `label`, `logits`."""
        return class_outputs(len(self.labels))

    def answer(self, encoded: Sequence[EncodedText], output: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Read logits `(N, C)`."""
        scores = sigmoid(output)
        chosen = [
            [label for label, score in zip(self.labels, row, strict=True) if score >= THRESHOLD]
            for row in scores
        ]
        labels = text_column([json.dumps(names, ensure_ascii=False) for names in chosen])
        return {"scores": scores, "label": labels, "logits": output}

    def targets(self, data: TextData) -> npt.NDArray[np.float32]:
        """Return `(N, C)` float32: 1 where the row has the label, else 0; see `labels.label_index`."""
        index = label_index(self.labels, data)
        targets = np.zeros((len(data.rows), len(self.labels)), dtype=np.float32)
        for number, row in enumerate(data.rows):
            targets[number, [index[name] for name in names_of(row.label)]] = 1
        return targets

    def evaluate(self, columns: Columns, targets: npt.NDArray[Any]) -> dict[str, float]:
        """Return the metrics of `metrics.multi_label_metrics`."""
        from sparse_serve.metrics import multi_label_metrics  # noqa: PLC0415

        return multi_label_metrics(columns["scores"] >= THRESHOLD, targets)


def sigmoid(logits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return 1 / (1 + exp(−logit)), which no logit makes overflow."""
    scores: npt.NDArray[Any] = 0.5 * (1.0 + np.tanh(0.5 * logits))
    return scores
