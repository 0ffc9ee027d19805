"""Multi-label classification: any number of labels."""

import json
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from sparse_export.tasks.first_token import FirstTokenHead
from sparse_export.tasks.head import AnswerNode
from sparse_serve.tasks import Task
from sparse_serve.tasks.multi_label import MultiLabel


class MultiLabelHead(FirstTokenHead):
    """Reads the first token."""

    kind: ClassVar[type[Task]] = MultiLabel

    def answer_node(self) -> AnswerNode:
        """Return sigmoid scores, and a JSON array of the labels whose score is high enough."""
        labels = [json.dumps(label, ensure_ascii=False) for label in self.task.labels]
        return AnswerNode("LabelsAboveHalf", {"labels": labels})

    def loss(self, answer: Tensor, inputs: Mapping[str, Tensor], smoothing: float = 0.0) -> Tensor:
        """Return the mean binary cross-entropy of logits `(B, C)` with `labels` `(B, C)`."""
        return F.binary_cross_entropy_with_logits(answer, inputs["labels"].to(answer.dtype))


HEAD = MultiLabelHead
