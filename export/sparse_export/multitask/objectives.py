"""What a step minimises: the loss of its rows' task, and SimCSE's."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from sparse_export.multitask.options import SimcseForm
from sparse_export.tasks.trained import TrainedHead
from sparse_export.training.objectives import Inputs, Objective, Part
from sparse_serve.tasks import TASK_IDS


def task_of(inputs: Inputs) -> int:
    """Return the number of the task that the rows of a step are of."""
    return int(inputs[TASK_IDS].reshape(-1)[0])


class TasksLoss(Objective):
    """The loss of the head of the rows' task."""

    targets: Sequence[str] = ("labels",)

    def __init__(self, heads: Mapping[int, TrainedHead], weights: Mapping[int, float]) -> None:
        """Take the head of each task and the factor on its loss, by the number of the task."""
        self._heads = heads
        self._weights = weights

    def loss(self, part: Part) -> Tensor:
        """Return the mean over the rows."""
        number = task_of(part.inputs)
        head = self._heads[number]
        answer = head.answer_padded(part.outputs, part.inputs["attention_mask"])
        return self._weights[number] * head.loss(answer, part.inputs)


class SimCSE(Objective):
    """Unsupervised SimCSE (Gao et al., 2021): a text under one dropout is most like itself under another.

    The encoding of a text is its first token's last hidden state. "infonce" compares by cosine over a
    temperature, as its authors do; "cross-entropy" by the dot products themselves, over √M: our reading of
    the PAL paper (section 4.1), which speaks of linear layers and cross-entropy and gives no formula. Both
    ask, of each text, which of the others it is. The others are those of its part of the batch, which a
    process computes at once: two processes or two accumulated parts leave a text half of them.
    """

    encodes_twice = True

    def __init__(self, form: SimcseForm, weight: float, temperature: float, tasks: Sequence[int]) -> None:
        """Take the form, the factor on its loss, InfoNCE's temperature, and whose steps it joins."""
        self._form = form
        self._weight = weight
        self._temperature = temperature
        self._tasks = frozenset(tasks)

    def joins(self, inputs: Inputs) -> bool:
        """Tell whether it has a part in a step on these rows."""
        return task_of(inputs) in self._tasks

    def loss(self, part: Part) -> Tensor | float:
        """Return the mean over the texts, of which each stands in both halves of the part."""
        if not self.joins(part.inputs):
            return 0.0
        first = part.outputs.hidden_states[-1][:, 0].float()
        one, other = first.chunk(2)
        return self._weight * contrast(one, other, self._form, self._temperature)


def contrast(first: Tensor, second: Tensor, form: SimcseForm, temperature: float) -> Tensor:
    """Return the cross-entropy of telling which row of `second` each of `first` is, `(N, M)` both.

    It is 0 of one row, which is like no other.
    """
    if form == "infonce":
        likeness = F.normalize(first, dim=1) @ F.normalize(second, dim=1).T / temperature
    else:
        likeness = first @ second.T / math.sqrt(first.shape[1])
    return F.cross_entropy(likeness, torch.arange(len(first), device=first.device))
