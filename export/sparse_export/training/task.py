"""Fine-tuning for a task: an encoder, a fresh head, labelled rows, and what is served as figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from transformers import EvalPrediction, PreTrainedModel

from sparse_export.checkpoint import load_checkpoint, new_model
from sparse_export.encoders.spec import ModelSpec
from sparse_export.encoders.tokenizer import cut_length, load_padding_tokenizer
from sparse_export.tasks import head_of
from sparse_export.tasks.trained import Encoded, TrainedHead
from sparse_export.training.batches import BatchPlan, PlannedBatches, longest_first
from sparse_export.training.calibration import set_aside
from sparse_export.training.dropout import set_dropout
from sparse_export.training.encoding import EncodedData, encode
from sparse_export.training.freezing import freeze
from sparse_export.training.job import Figures, Job, Training
from sparse_export.training.objectives import Inputs, Objective, Part
from sparse_export.training.options import LOSS, FinetuneOptions
from sparse_export.training.records import FinetuneRecord, TrainingRecord, TrialRecord
from sparse_export.training.sources import Reading, Rows, Source, read_rows, read_test_rows
from sparse_export.training.testing import require_answerable, try_out
from sparse_serve.data import TextData
from sparse_serve.errors import OptionError
from sparse_serve.tasks import TASKS, Task

_ROWS_AT_ONCE = 1000  # whose logits by token are judged together


class TaskLoss(Objective):
    """What a task's head loses on its targets."""

    def __init__(self, head: TrainedHead, smoothing: float = 0.0) -> None:
        self.targets = head.targets
        self._head = head
        self._smoothing = smoothing

    def items(self, inputs: Inputs) -> Tensor | None:
        """Count what the head's loss is a mean over."""
        return self._head.items(inputs)

    def loss(self, part: Part) -> Tensor:
        """Return the head's loss."""
        answer = self._head.answer_padded(part.outputs, part.inputs["attention_mask"])
        loss = self._head.loss(answer, part.inputs, self._smoothing)
        return loss if self._head.items(part.inputs) is None else part.mean(loss)


@dataclass(frozen=True)
class TaskJob(Job):
    """An encoder with a fresh head for the task that its training rows pose."""

    record: ClassVar[type[TrainingRecord]] = FinetuneRecord

    options: FinetuneOptions

    def read(self, train: Source, evaluation: Source | None, console: Console) -> tuple[Rows, Rows, bool]:
        """Read labelled rows."""
        return read_rows(train, evaluation, self.options, Reading(self.options.task), console)

    def prepare(self, encoder: str, train: TextData, evaluation: TextData) -> Training:
        """Put a head on the encoder and encode the rows."""
        options = self.options
        task = task_of(options, train)
        model = new_model(
            encoder,
            options.attention,
            task,
            options.seed,
            from_scratch=options.from_scratch,
            revision=options.revision,
        )
        set_dropout(model, options.dropout)
        if options.freeze_layers is not None:
            freeze(model, options.freeze_layers)
        tokenizer = load_padding_tokenizer(encoder, model.config, options.revision)
        max_length = cut_length(model.config, tokenizer, options.max_length)
        head = cast(TrainedHead, head_of(task))
        rows: Sequence[Encoded] = encode(head, model, tokenizer, train, max_length).rows
        judged = encode(head, model, tokenizer, evaluation, max_length, keep_texts=task.by_token)
        rows, calibration = set_aside(rows, judged.rows, options.seed) if options.learns else (rows, [])
        plan = BatchPlan([len(row["input_ids"]) for row in rows], options.batch_size, options.seed)
        return Training(
            model,
            tokenizer,
            max_length,
            rows=rows,
            batches=PlannedBatches(plan),
            calibration=calibration,
            evaluation=judged.rows,
            collator=head.collator(tokenizer),
            objectives=[TaskLoss(head, options.label_smoothing)],
            answer=head.answer_padded,
            figures=figures_of(head, judged, evaluation, head.collator(tokenizer)),
        )

    def read_test(self, source: Source) -> Rows:
        """Read rows that the result is tried on."""
        return read_test_rows(source, self.options, self.options.task)

    def require_testable(self, training: Training, train: TextData, rows: Rows) -> None:
        """Refuse rows that are not of the task."""
        require_answerable(ModelSpec.of(training.model.config).task, train, rows)

    def test(self, model: PreTrainedModel, training: Training, rows: Rows, folder: Path) -> TrialRecord:
        """Answer rows as they are served."""
        head = cast(TrainedHead, head_of(ModelSpec.of(model.config).task))
        return try_out(head, model, training.tokenizer, rows, training.max_length, folder)

    def load(self, folder: Path) -> PreTrainedModel:
        """Load a trained model with its task."""
        return load_checkpoint(folder)

    def labels(self, model: PreTrainedModel) -> Sequence[str]:
        """Return the names of what is answered."""
        return ModelSpec.of(model.config).task.labels


def posed(kind: type[Task], data: TextData) -> Task:
    """Return the task of a kind that training rows pose.

    Raises:
        DataError: the rows have too few labels.
    """
    return replace(kind.of(data), paired=kind.text_pair == "optional" and data.has_pairs)


def task_of(options: FinetuneOptions, data: TextData) -> Task:
    """Return the task that training rows pose, with the settings that are given.

    Raises:
        DataError: the rows have too few labels.
        OptionError: a setting is out of its range.
    """
    given = {"max_answer_tokens": options.max_answer_tokens, "stride": options.stride}
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    try:
        return replace(posed(TASKS[options.task], data), **settings)
    except ValueError as error:
        raise OptionError(str(error)) from None


def figures_of(head: TrainedHead, data: EncodedData, rows: TextData, collator: Any) -> Figures:
    """Return what judges the evaluation rows: by the loss and, if that is a number, as what is served.

    Args:
        head: of the model.
        data: the encoded rows.
        rows: as they were read.
        collator: makes a batch of rows.
    """
    order = longest_first(data.rows)
    targets = head.task.targets(rows)

    def figures(prediction: EvalPrediction) -> dict[str, float]:
        output = prediction.predictions
        loss = mean_loss(head, output, [data.rows[row] for row in order], collator)
        if not np.isfinite(loss):
            return {LOSS: loss}
        in_order = np.empty_like(output)
        in_order[order] = output
        return {LOSS: loss, **head.task.evaluate(head.task.answer(data.texts, in_order), targets)}

    return figures


def mean_loss(head: TrainedHead, output: Any, rows: Sequence[Encoded], collator: Any | None = None) -> float:
    """Return the loss over all rows: Trainer's own weighs a short last batch like a full one.

    Args:
        head: of the model.
        output: what it answers to the rows, `(N, width)` or `(N, L, width)`, L at least that of the longest.
        rows: as encoded.
        collator: makes a batch of rows, of which a head by token reads the targets.
    """
    if not head.task.by_token:
        targets = {name: torch.tensor([row[name] for row in rows]) for name in head.targets}
        return head.loss(torch.from_numpy(output).double(), targets).item()
    assert collator is not None
    total, count = 0.0, 0
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = slice(start, start + _ROWS_AT_ONCE)
        batch: Mapping[str, Tensor] = collator(list(rows[some]))
        answer = torch.from_numpy(output[some, : batch["input_ids"].shape[1]]).double()
        loss, items = head.loss(answer, batch).item(), head.items(batch)
        total += loss if items is not None else loss * len(answer)
        count += len(answer) if items is None else int(items)
    return total / max(1, count)
