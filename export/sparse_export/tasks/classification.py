"""Single-label classification: one label of several."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from sparse_export.tasks.first_token import FirstTokenHead
from sparse_export.tasks.head import AnswerNode
from sparse_serve.tasks import Task
from sparse_serve.tasks.classification import Classification


class ClassificationHead(FirstTokenHead):
    """Reads the first token."""

    kind: ClassVar[type[Task]] = Classification
    can_smooth: ClassVar[bool] = True

    def answer_node(self) -> AnswerNode:
        """Return softmax scores, and the label of the largest logit."""
        return AnswerNode("BestLabel", {"labels": self.task.labels})

    def loss(self, answer: Tensor, inputs: Mapping[str, Tensor], smoothing: float = 0.0) -> Tensor:
        """Return the mean cross-entropy of logits `(B, C)` with `labels` `(B,)`."""
        return F.cross_entropy(answer, inputs["labels"], label_smoothing=smoothing)


HEAD = ClassificationHead
