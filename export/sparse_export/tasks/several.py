"""The heads of several tasks on one encoder: each reads the rows of its own task."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from sparse_export.encoders.packing import Packing
from sparse_export.tasks.head import Head, Models
from sparse_export.tasks.several_model import SEVERAL_TASKS_MODELS, SeveralTasksModel, as_wide_as
from sparse_serve.tasks import Columns, EncodedText, Task, answered


class SeveralHeads(Head):
    """The heads of a model's tasks; of one task alone, it answers what that task's does."""

    models: ClassVar[Models] = SEVERAL_TASKS_MODELS
    architecture: ClassVar[str] = "ForSeveralTasks"

    def __init__(self, heads: Mapping[str, Head]) -> None:
        """Take each task's head by its name."""
        super().__init__(answered({name: head.task for name, head in heads.items()}))
        self.heads = heads

    @classmethod
    def read_own(cls, config: PreTrainedConfig) -> Task | None:
        """Return None: such a checkpoint names its tasks."""
        return None

    def configure(self, config: PreTrainedConfig) -> None:
        """Leave the config as it is: what Transformers has to know is in each task's own."""

    @property
    def reads_layers(self) -> bool:
        """Whether any of the tasks reads more than the last layer."""
        return any(head.reads_layers for head in self.heads.values())

    @property
    def reads_first_tokens(self) -> bool:
        """Whether all of the tasks read nothing else, as tasks that are answered together do."""
        return all(head.reads_first_tokens for head in self.heads.values())

    def answer_packed(self, model: PreTrainedModel, states: Sequence[Tensor], packing: Packing) -> Tensor:
        """Answer each row by the head of its task, `(B, width)`: −inf where its task has no label."""
        assert isinstance(model, SeveralTasksModel)
        rows = packing.tasks
        if rows is None:
            ((name, head),) = self.heads.items()
            return head.answer_packed(model.of(name), states, packing)
        answers = []
        for part, (name, head) in zip(rows.parts, self.heads.items(), strict=True):
            first = [state.index_select(0, part) for state in states]
            answer = head.answer_packed(model.of(name), first, packing.of_rows(part))
            answers.append(as_wide_as(self.task.width, answer))
        return rows.join(answers)

    def answer_padded(self, outputs: Any, attention_mask: Tensor) -> Tensor:
        """Return the model's logits `(B, width)`: those of rows of one task are filled up with −inf."""
        return as_wide_as(self.task.width, outputs.logits.float())

    def same_answers(
        self, texts: Sequence[EncodedText], ours: Columns, theirs: Columns
    ) -> npt.NDArray[np.bool_] | None:
        """Tell which texts are answered alike, of the tasks whose answer is not a number."""
        if len(self.heads) == 1:
            (head,) = self.heads.values()
            return head.same_answers(texts, ours, theirs)
        return _joined(self.same_by_task(texts, ours, theirs))

    def same_words(
        self, texts: Sequence[EncodedText], ours: Columns, theirs: Columns
    ) -> npt.NDArray[np.bool_] | None:
        """Tell which texts are put into words alike, by task."""
        if len(self.heads) == 1:
            (head,) = self.heads.values()
            return head.same_words(texts, ours, theirs)
        return _joined(
            {
                name: self.heads[name].same_words(*own)
                for name, own in self._by_task(texts, ours, theirs).items()
            }
        )

    def same_by_task(
        self, texts: Sequence[EncodedText], ours: Columns, theirs: Columns
    ) -> dict[str, npt.NDArray[np.bool_] | None]:
        """Tell for each task which of its texts are answered alike; None where its answer is a number."""
        parts = self._by_task(texts, ours, theirs)
        return {name: self.heads[name].same_answers(*own) for name, own in parts.items()}

    def _by_task(
        self, texts: Sequence[EncodedText], ours: Columns, theirs: Columns
    ) -> dict[str, tuple[Sequence[EncodedText], Columns, Columns]]:
        """Return the texts of each task, and what two runs answer to them."""
        parts: dict[str, tuple[Sequence[EncodedText], Columns, Columns]] = {}
        for name in self.heads:
            rows = [row for row, text in enumerate(texts) if text.task == name]
            mine, other = ({key: values[rows] for key, values in each.items()} for each in (ours, theirs))
            parts[name] = [texts[row] for row in rows], mine, other
        return parts


def _joined(told: Mapping[str, npt.NDArray[np.bool_] | None]) -> npt.NDArray[np.bool_] | None:
    """Return what is told of the texts of all tasks, one task's after another's; None where nothing is."""
    known = [same for same in told.values() if same is not None]
    return np.concatenate(known) if known else None
