"""What one run does that another does not: its rows, its model, its figures and its record.

The rest is the same for all of them: the folder of the run, resuming, several processes, the trainer.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol

from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerFast

from sparse_export.tasks.trained import Encoded
from sparse_export.training.batches import PlannedBatches
from sparse_export.training.objectives import Objective
from sparse_export.training.options import TrainingOptions
from sparse_export.training.records import TrainingRecord, TrialRecord
from sparse_export.training.sources import Data, Rows, Source
from sparse_serve.errors import OptionError

Figures = Callable[[EvalPrediction], dict[str, float]]
"""Judges what was answered to all evaluation rows."""


class EncodedRows(Protocol):
    """Rows by their numbers."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> Encoded: ...


@dataclass(frozen=True)
class Training:
    """A model and the rows that it is trained and judged on.

    Attributes:
        model: in training mode.
        tokenizer: which encoded the rows.
        max_length: tokens at which they were cut.
        rows: to train on.
        batches: which of them each step is computed on.
        calibration: rows, none of them trained or judged on, that a learned pattern's ρ is measured on; none
            where nothing is learned.
        evaluation: rows that choose the best epoch.
        collator: makes a batch of rows.
        objectives: what is minimised, beside what a pattern costs.
        answer: reads what is judged off a model's outputs and the attention mask `(B, L)`.
        figures: the loss over the evaluation rows and, if that is a number, their metrics.
        reduced: what `figures` keeps of a batch's logits and targets; None for the logits themselves.
        learning_rates: of weights that extensions have added, by their group, where it is not that of all.
        table: sets out the figures of an evaluation, by their names; None where one line holds them.
        leaves_unused: whether there are steps in which some of the weights have no part.
        rho_target: ρ that a pattern was trained towards that is left as it was learned; None of others.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    max_length: int
    rows: EncodedRows
    batches: PlannedBatches
    calibration: Sequence[Encoded]
    evaluation: Sequence[Encoded]
    collator: Callable[[Sequence[Encoded]], dict[str, Tensor]]
    objectives: Sequence[Objective]
    answer: Callable[[Any, Tensor], Any]
    figures: Figures
    reduced: Callable[[Any, Any], Tensor] | None = None
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    table: Callable[[Mapping[str, float]], Table] | None = None
    leaves_unused: bool = False
    rho_target: float | None = None


class Job(ABC, Generic[Data]):
    """What is to be trained.

    Attributes:
        record: what is written about it.
        rows_at_once: the most evaluation rows that a process computes together; of long ones it is fewer.
        options: how it is trained.
    """

    record: ClassVar[type[TrainingRecord]]
    rows_at_once: ClassVar[int] = 64

    options: TrainingOptions

    @abstractmethod
    def read(
        self, train: Source, evaluation: Source | None, console: Console
    ) -> tuple[Rows[Data], Rows[Data], bool]:
        """Read the rows to train on and those that choose the best epoch; tell whether these were held out.

        Raises:
            DataError: a source that cannot be read.
        """

    @abstractmethod
    def prepare(self, encoder: str, train: Data, evaluation: Data) -> Training:
        """Make the model and encode the rows.

        Raises:
            OptionError: the options do not fit the encoder.
            DataError: the rows do not fit the task.
            CheckpointError: the encoder cannot be loaded.
        """

    def read_test(self, source: Source) -> Rows:
        """Read rows that the result is tried on.

        Raises:
            OptionError: this job answers nothing.
            DataError: a source that cannot be read.
        """
        raise OptionError(f"--test {source} is for tasks, and a language model answers none; leave it out")

    def require_testable(self, training: Training, train: Data, rows: Rows[Any]) -> None:
        """Refuse rows of `read_test` that the model of `training` cannot answer, before it is trained.

        Raises:
            DataError: they are of other labels than the training rows `train`, or pairs in one of the two
                alone.
        """
        raise NotImplementedError(type(self).__name__)

    def test(self, model: PreTrainedModel, training: Training, rows: Rows, folder: Path) -> TrialRecord:
        """Try a trained model on rows that `read_test` has read, and write what it answers into a folder."""
        raise NotImplementedError(type(self).__name__)

    @abstractmethod
    def load(self, folder: Path) -> PreTrainedModel:
        """Load a trained model, in evaluation mode, from a folder that the run has saved."""

    @abstractmethod
    def labels(self, model: PreTrainedModel) -> Sequence[str]:
        """Return the names of what is answered; none of a language model."""
