"""Regression: one value, or several."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from sparse_export.tasks.first_token import FirstTokenHead
from sparse_export.tasks.head import AnswerNode
from sparse_serve.tasks import Columns, EncodedText, Task
from sparse_serve.tasks.regression import Regression


class RegressionHead(FirstTokenHead):
    """Reads the first token."""

    kind: ClassVar[type[Task]] = Regression

    def same_answers(self, texts: Sequence[EncodedText], ours: Columns, theirs: Columns) -> None:
        """Tell nothing: the text of a value is the value."""

    def answer_node(self) -> AnswerNode:
        """Return the values themselves, as text one number or a JSON array of several."""
        return AnswerNode("Value" if self.task.width == 1 else "Values", {})

    def loss(self, answer: Tensor, inputs: Mapping[str, Tensor], smoothing: float = 0.0) -> Tensor:
        """Return the mean squared error of values `(B, 1)` and `labels` `(B,)`."""
        return F.mse_loss(answer[:, 0], inputs["labels"].to(answer.dtype))


HEAD = RegressionHead
