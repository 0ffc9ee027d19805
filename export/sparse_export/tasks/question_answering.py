"""Span question answering: a start and an end logit for every token."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import MODEL_FOR_QUESTION_ANSWERING_MAPPING, PreTrainedConfig, PreTrainedModel

from sparse_export.encoders.packing import Packing
from sparse_export.tasks.head import Models
from sparse_export.tasks.trained import TrainedHead
from sparse_serve.data import TextData
from sparse_serve.errors import CheckpointError
from sparse_serve.rows import Span
from sparse_serve.tasks import Task
from sparse_serve.tasks.encoding import EncodedText, Window
from sparse_serve.tasks.question_answering import CONTEXT_SEQUENCE, QuestionAnswering


class QuestionAnsweringHead(TrainedHead):
    """Reads every token."""

    models: ClassVar[Models] = MODEL_FOR_QUESTION_ANSWERING_MAPPING
    architecture: ClassVar[str] = "ForQuestionAnswering"
    targets: ClassVar[tuple[str, ...]] = ("start_positions", "end_positions")

    @classmethod
    def read_own(cls, config: PreTrainedConfig) -> Task | None:
        """Return the task with its default settings, which a plain config does not tell."""
        if config.num_labels != 2:
            raise CheckpointError(
                f"config.json: a question answering model has a start and an end logit, this one has "
                f"{config.num_labels} labels"
            )
        return QuestionAnswering()

    def configure(self, config: PreTrainedConfig) -> None:
        """Have two logits for each token."""
        config.num_labels = 2
        config.problem_type = None

    def answer_packed(self, model: PreTrainedModel, states: Sequence[Tensor], packing: Packing) -> Tensor:
        """Return start and end logits `(B, L, 2)`."""
        return packing.unpack(model.qa_outputs(states[-1]).float())

    def answer_padded(self, outputs: Any, attention_mask: Tensor) -> Tensor:
        """Return start and end logits `(B, L, 2)`."""
        logits = torch.stack([outputs.start_logits, outputs.end_logits], -1).float()
        return torch.where((attention_mask != 0)[:, :, None], logits, 0)

    def window_targets(
        self, data: TextData, encoded: Sequence[EncodedText]
    ) -> list[Sequence[Mapping[str, Any]]]:
        """Return the tokens that the first accepted answer begins and ends with in each window.

        Both are the first token, [CLS], where the question has no answer, or a window does not have all of it
        (as Transformers' `run_qa`).
        """
        targets: list[Sequence[Mapping[str, Any]]] = []
        for row, text in zip(data.rows, encoded, strict=True):
            answers = row.label if isinstance(row.label, tuple) else ()
            answer = next((each for each in answers if isinstance(each, Span)), None)
            spans = [(0, 0) if answer is None else span_in(window, answer) for window in text.windows]
            targets.append([{"start_positions": first, "end_positions": last} for first, last in spans])
        return targets

    def loss(self, answer: Tensor, inputs: Mapping[str, Tensor], smoothing: float = 0.0) -> Tensor:
        """Return the mean cross-entropy of starts and ends, over the tokens of each window, `(B, L, 2)`."""
        logits = answer.masked_fill((inputs["attention_mask"] == 0)[:, :, None], -torch.inf)
        starts, ends = (
            F.cross_entropy(logits[:, :, index], inputs[name]) for index, name in enumerate(self.targets)
        )
        return (starts + ends) / 2


def span_in(window: Window, answer: Span) -> tuple[int, int]:
    """Return the first and the last token of an answer in a window, or twice 0 where it is not all there."""
    start, end = answer.start, answer.start + len(answer.text)
    context = [token for token, sequence in enumerate(window.sequence_ids) if sequence == CONTEXT_SEQUENCE]
    overlapping = [
        token for token in context if window.offsets[token][0] < end and window.offsets[token][1] > start
    ]
    if not overlapping:
        return 0, 0
    first, last = overlapping[0], overlapping[-1]
    is_whole = window.offsets[context[0]][0] <= start and window.offsets[context[-1]][1] >= end
    return (first, last) if is_whole else (0, 0)


HEAD = QuestionAnsweringHead
