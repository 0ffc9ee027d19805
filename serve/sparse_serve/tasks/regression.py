"""One number, or several: the logits themselves."""

import json
import math
import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from sparse_serve.errors import DataError
from sparse_serve.rows import RowFormat, TextData, TextRows
from sparse_serve.tasks.classification import class_outputs
from sparse_serve.tasks.encoding import Columns, EncodedText, text_column
from sparse_serve.tasks.task import OutputTensor, Task

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LARGEST = float(np.finfo(np.float32).max)


def parse_number(value: object) -> float:
    """Read a row's label from what a data file holds: text, or in JSONL any JSON value.

    Raises:
        ValueError: it is no finite number.
    """
    if value is None or value == "":
        raise ValueError("the label is missing")
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


@dataclass(frozen=True)
class Regression(Task):
    """The values that `labels` name; a row's label is a finite number."""

    type: ClassVar[str] = "regression"
    option: ClassVar[str] = "regression"
    rows: ClassVar[RowFormat] = TextRows(parse_number)
    metrics: ClassVar[tuple[str, ...]] = ("pearson", "spearman", "mse")
    fewest_labels: ClassVar[int] = 1

    labels: tuple[str, ...] = ("score",)

    @classmethod
    def of(cls, data: TextData) -> Self:
        """Return the task of one value."""
        return cls()

    @property
    def outputs(self) -> tuple[OutputTensor, ...]:
        """The values as `scores`, as text in `label`, and as `logits`."""
        return class_outputs(len(self.labels), is_labelled=False)

    def answer(self, encoded: Sequence[EncodedText], output: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Read values `(N, C)`; as text they are one number, or a JSON array of several."""
        texts = [str(row[0]) if len(row) == 1 else json.dumps(row.tolist()) for row in output]
        return {"scores": output, "label": text_column(texts), "logits": output}

    def targets(self, data: TextData) -> npt.NDArray[np.float32]:
        """Return each row's value, `(N,)` float32.

        Raises:
            DataError: the model answers several values.
        """
        if len(self.labels) > 1:
            raise DataError(
                f"{data.source}: its rows have one value, but the model answers {len(self.labels)} "
                f"({reprlib.repr(list(self.labels))}); use a model of one value"
            )
        return np.array([row.label for row in data.rows], dtype=np.float32)

    def evaluate(self, columns: Columns, targets: npt.NDArray[Any]) -> dict[str, float]:
        """Return the metrics of `metrics.regression_metrics`."""
        from sparse_serve.metrics import regression_metrics  # noqa: PLC0415

        return regression_metrics(columns["scores"], targets)
