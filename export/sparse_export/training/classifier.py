"""Training a classifier: its labelled rows, its fresh head and its figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from rich.console import Console
from torch.nn import functional as F
from transformers import DataCollatorWithPadding, EvalPrediction, PreTrainedModel

from sparse_export.encoders.checkpoint import (
    cut_length,
    load_classifier,
    load_tokenizer,
    new_classifier,
    task_of,
)
from sparse_export.encoders.positions import fix_positions
from sparse_export.training.batches import FullBatches
from sparse_export.training.freezing import freeze
from sparse_export.training.job import Job, Training
from sparse_export.training.options import LOSS, FinetuneOptions
from sparse_export.training.records import FinetuneRecord, TrainingRecord
from sparse_export.training.sources import Reading, Rows, Source, encode, read_rows
from sparse_export.training.trainer import RunTrainer
from sparse_serve.data import TextData
from sparse_serve.metrics import task_metrics
from sparse_serve.tasks import ProblemType, Task


@dataclass(frozen=True)
class ClassifierJob(Job):
    """An encoder with a fresh head for the labels of its training rows."""

    record: ClassVar[type[TrainingRecord]] = FinetuneRecord
    trainer: ClassVar[type[RunTrainer]] = RunTrainer

    options: FinetuneOptions

    def read(self, train: Source, evaluation: Source | None, console: Console) -> tuple[Rows, Rows, bool]:
        """Read labelled rows."""
        return read_rows(train, evaluation, self.options, Reading(self.options.problem_type), console)

    def prepare(self, encoder: str, train: TextData, evaluation: TextData) -> Training:
        """Put a head on the encoder and encode the rows."""
        options = self.options
        task = Task.of(options.problem_type, train)
        model = new_classifier(
            encoder, options.attention, task, options.seed, from_scratch=options.from_scratch
        )
        fix_positions(model)
        if options.freeze_layers is not None:
            freeze(model, options.freeze_layers)
        tokenizer = load_tokenizer(encoder)
        max_length = cut_length(model.config, tokenizer, options.max_length)
        rows, eval_rows = (encode(tokenizer, model.config, data, max_length) for data in (train, evaluation))
        return Training(
            model,
            tokenizer,
            max_length,
            rows=rows,
            batches=FullBatches([len(row["input_ids"]) for row in rows], options.batch_size, options.seed),
            evaluation=eval_rows,
            collator=DataCollatorWithPadding(tokenizer),
            figures=_figures(options.problem_type),
        )

    def load(self, folder: Path) -> PreTrainedModel:
        """Load a trained classifier."""
        return load_classifier(folder)

    def labels(self, model: PreTrainedModel) -> Sequence[str]:
        """Return the names of the logits."""
        return task_of(model.config).labels


def _figures(problem_type: ProblemType) -> Callable[[EvalPrediction], dict[str, float]]:
    """Return what judges the evaluation rows: the loss and, if that is a number, the task's metrics."""

    def figures(prediction: EvalPrediction) -> dict[str, float]:
        logits, targets = prediction.predictions, prediction.label_ids
        # Trainer's own loss weighs a short last batch like a full one.
        loss = _loss(problem_type, torch.from_numpy(logits).double(), torch.from_numpy(targets))
        metrics = task_metrics(problem_type, logits, targets) if loss.isfinite() else {}
        return {LOSS: loss.item(), **metrics}

    return figures


def _loss(problem_type: ProblemType, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    if problem_type == "single_label_classification":
        return F.cross_entropy(logits, targets)
    if problem_type == "multi_label_classification":
        return F.binary_cross_entropy_with_logits(logits, targets.double())
    return F.mse_loss(logits[:, 0], targets.double())
