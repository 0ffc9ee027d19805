"""The head that Transformers calls sequence classification: it reads the first token of a text."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, PreTrainedConfig, PreTrainedModel

from sparse_export.encoders.families import family_of
from sparse_export.encoders.packing import Packing
from sparse_export.tasks.head import Models
from sparse_export.tasks.labels import labelled_task, write_labels
from sparse_export.tasks.trained import TrainedHead
from sparse_serve.data import TextData
from sparse_serve.errors import CheckpointError
from sparse_serve.tasks import Task
from sparse_serve.tasks.encoding import EncodedText

_PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")


class FirstTokenHead(TrainedHead):
    """Classification and regression, which differ in the loss and in what their logits mean."""

    models: ClassVar[Models] = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    architecture: ClassVar[str] = "ForSequenceClassification"
    kind: ClassVar[type[Task]]

    @classmethod
    def read_own(cls, config: PreTrainedConfig) -> Task | None:
        """Return the task where the config's problem type is this one.

        Without a problem type, one label means regression: that is how the loss of Transformers reads a
        config; several labels are then classes.
        """
        problem_type = config.problem_type
        if problem_type is None:
            problem_type = "regression" if config.num_labels == 1 else "single_label_classification"
        if problem_type not in _PROBLEM_TYPES:
            raise CheckpointError(
                f"config.json: problem_type is {problem_type!r}; known are {', '.join(_PROBLEM_TYPES)}"
            )
        return labelled_task(cls.kind, config) if problem_type == cls.kind.type else None

    def configure(self, config: PreTrainedConfig) -> None:
        """Write labels and problem type."""
        write_labels(config, self.task.labels)
        config.problem_type = self.task.type

    @property
    def reads_first_tokens(self) -> bool:
        """Whether nothing else is read."""
        return True

    def answer_packed(self, model: PreTrainedModel, states: Sequence[Tensor], packing: Packing) -> Tensor:
        """Return logits `(B, C)` of each row's first token."""
        logits = family_of(model.config).head(model, states[-1][:, None])
        return torch.where(packing.has_token, logits.float(), 0)

    def answer_padded(self, outputs: Any, attention_mask: Tensor) -> Tensor:
        """Return the model's own logits `(B, C)`."""
        return cast(Tensor, outputs.logits.float())

    def window_targets(
        self, data: TextData, encoded: Sequence[EncodedText]
    ) -> list[Sequence[Mapping[str, Any]]]:
        """Return each row's `labels`: what it is to be answered."""
        return [[{"labels": target}] for target in self.task.targets(data).tolist()]
