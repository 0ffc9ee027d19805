"""How to fine-tune: the options of a run, with the SSAF paper's values for SST-2 as defaults."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparse_export.checkpoint import AttentionSpec
from sparse_serve.data import Columns
from sparse_serve.errors import OptionError
from sparse_serve.metrics import METRICS, greater_is_better, headline
from sparse_serve.tasks import ProblemType

LOSS = "loss"


@dataclass(frozen=True)
class FinetuneOptions:
    """How to train.

    The paper trains with Adam at 2e-5, batches of 16, 4 epochs. Adam is meant as in BERT's own code: with a
    weight decay of 0.01, 10 % warm-up and linear decay.

    Attributes:
        attention: what the model attends with, in training and ever after.
        problem_type: what the labels are; it decides loss and metrics.
        metric: the figure on the evaluation rows that chooses the best epoch: one of the task's metrics or
            "loss"; None takes the task's headline.
        from_scratch: take the encoder's architecture and tokenizer but not its weights ("Np" in the paper).
        freeze_layers: leave the embeddings and so many first layers as they are; None trains everything.
        epochs: passes over the training rows.
        learning_rate: peak of the schedule: reached after `warmup_ratio` of the steps, then falling to 0.
        batch_size: rows per optimiser step, over all processes. The last batch of an epoch is filled up with
            rows drawn once more, so that every step is a mean over equally many rows.
        gradient_accumulation_steps: parts in which each process computes its share of a batch, one after
            another; more parts take less memory and give the same gradient.
        weight_decay: AdamW's, on all weights but biases and norms; 0 is plain Adam.
        warmup_ratio: share of the steps in [0, 1) during which the learning rate rises.
        max_length: tokens per row, longer rows are cut from the right; None takes what the encoder has
            positions for. Batches are padded to their own longest row, so short texts cost nothing extra.
        early_stopping_patience: end after so many epochs in a row without a better one; None never does.
        save_steps: an interrupted run can be resumed from every epoch's end, and where this is given from
            every so many steps too.
        seed: seeds the row sample, the hold-out, new weights, shuffling and dropout. On a CPU, with the same
            number of threads and processes, equal seeds give equal weights to the bit.
        max_train_rows: use a sample of so many rows (what is held out comes off it); None takes all.
        columns: names of the columns in all sources.

    Raises:
        OptionError: a value out of its range.
    """

    attention: AttentionSpec = field(default_factory=lambda: AttentionSpec("sparsegen", -4.0))
    problem_type: ProblemType = "single_label_classification"
    metric: str | None = None
    from_scratch: bool = False
    freeze_layers: int | None = None
    epochs: int = 4
    learning_rate: float = 2e-5
    batch_size: int = 16
    gradient_accumulation_steps: int = 1
    weight_decay: float = 0.01
    warmup_ratio: float = 0.1
    max_length: int | None = None
    early_stopping_patience: int | None = None
    save_steps: int | None = None
    seed: int = 0
    max_train_rows: int | None = None
    columns: Columns = field(default_factory=Columns)

    def __post_init__(self) -> None:
        metrics = (*METRICS[self.problem_type], LOSS)
        patience = self.early_stopping_patience
        accepted: Sequence[tuple[str, bool, str]] = (
            ("metric", self.metric in (None, *metrics), f"one of {', '.join(metrics)}"),
            ("freeze_layers", self.freeze_layers is None or self.freeze_layers >= 0, "at least 0"),
            ("epochs", self.epochs >= 1, "at least 1"),
            ("learning_rate", 0 < self.learning_rate < math.inf, "above 0 and finite"),
            ("batch_size", self.batch_size >= 1, "at least 1"),
            ("gradient_accumulation_steps", self.gradient_accumulation_steps >= 1, "at least 1"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "at least 0 and finite"),
            ("warmup_ratio", 0 <= self.warmup_ratio < 1, "at least 0 and below 1"),
            ("early_stopping_patience", patience is None or patience >= 1, "at least 1"),
            ("save_steps", self.save_steps is None or self.save_steps >= 1, "at least 1"),
            ("seed", 0 <= self.seed < 2**32, "from 0 to 4294967295"),
            ("max_train_rows", self.max_train_rows is None or self.max_train_rows >= 2, "at least 2"),
        )
        for name, is_accepted, what in accepted:
            if not is_accepted:
                raise OptionError(f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be {what}")
        if self.from_scratch and self.freeze_layers is not None:
            raise OptionError(
                f"--freeze-layers {self.freeze_layers} with --from-scratch would keep random weights; "
                "give one of the two"
            )

    @property
    def selection_metric(self) -> str:
        """The figure that chooses the best epoch."""
        return self.metric or headline(self.problem_type)

    @property
    def greater_is_better(self) -> bool:
        """Whether a larger `selection_metric` is a better one."""
        return self.selection_metric != LOSS and greater_is_better(self.selection_metric)
