"""Regression: one value, or several."""

import json
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.nn import functional as F

from sparse_export.tasks.first_token import FirstTokenHead
from sparse_export.tasks.head import AnswerNode
from sparse_serve.tasks import Columns, EncodedText, Task
from sparse_serve.tasks.regression import Regression

# A graph's Cast writes eight digits of a number.
_WRITTEN = 1e-6


class RegressionHead(FirstTokenHead):
    """Reads the first token."""

    kind: ClassVar[type[Task]] = Regression

    def same_answers(self, texts: Sequence[EncodedText], ours: Columns, theirs: Columns) -> None:
        """Tell nothing: the text of a value is the value."""

    def same_words(
        self, texts: Sequence[EncodedText], ours: Columns, theirs: Columns
    ) -> npt.NDArray[np.bool_]:
        """Tell of which texts the values are the same as they are written, each with digits of its own."""
        pairs = zip(ours["label"][:, 0], theirs["label"][:, 0], strict=True)
        return np.array([_are_alike(_values(mine), _values(other)) for mine, other in pairs])

    def answer_node(self) -> AnswerNode:
        """Return the values themselves, as text one number or a JSON array of several."""
        return AnswerNode("Value" if self.task.width == 1 else "Values", {})

    def loss(self, answer: Tensor, inputs: Mapping[str, Tensor], smoothing: float = 0.0) -> Tensor:
        """Return the mean squared error of values `(B, 1)` and `labels` `(B,)`."""
        return F.mse_loss(answer[:, 0], inputs["labels"].to(answer.dtype))


def _values(label: bytes) -> list[float] | None:
    """Return the values that a label is the text of: none of an empty one; None where it is of no values."""
    try:
        read = json.loads(label) if label.startswith(b"[") else [float(label)] if label else []
        return [float(value) for value in read]
    except (TypeError, ValueError):
        return None


def _are_alike(ours: list[float] | None, theirs: list[float] | None) -> bool:
    if ours is None or theirs is None or len(ours) != len(theirs):
        return False
    return np.allclose(ours, theirs, rtol=_WRITTEN, atol=0, equal_nan=True)


HEAD = RegressionHead
