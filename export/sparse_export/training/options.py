"""How to train: the options of a run, with the SSAF paper's values for SST-2 as defaults."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from sparse_export.encoders.checkpoint import AttentionSpec
from sparse_export.training.attentions import DEFAULT_LAMBD
from sparse_serve.data import Columns
from sparse_serve.errors import OptionError
from sparse_serve.metrics import METRICS, greater_is_better, headline
from sparse_serve.tasks import ProblemType

LOSS = "loss"

AlphaSchedule = Literal["constant", "linear"]

# What an option is called, whether its value is accepted, and what would be.
_Range = tuple[str, bool, str]


def _refuse_out_of_range(options: object, ranges: Sequence[_Range]) -> None:
    for name, is_accepted, what in ranges:
        if not is_accepted:
            raise OptionError(f"--{name.replace('_', '-')} is {getattr(options, name)}; it must be {what}")


@dataclass(frozen=True)
class PatternOptions:
    """How the learned part of an attention pattern is trained (the AAA paper, Eq. 10-11).

    The loss of the task is joined by alpha · max(0, rho_target − ρ), where ρ is the share of pairs that the
    pattern does not allow, a mean over rows and layers.

    Attributes:
        rho_target: ρ to reach on the evaluation rows, with the pattern as it is served, in [0, 1); None takes
            a share of what the pattern's fixed part leaves there (see `schedule`): short texts have more of a
            band than long ones.
        alpha: weight of what is lacking, at least 0.
        alpha_schedule: "constant", or "linear": rising from 0 until half of the sparse epochs.
        temperature: of the Gumbel-sigmoid, above 0.
        final_temperature: to which it changes over the sparse epochs, by equal factors; None keeps it.
        pattern_learning_rate: of the pattern's own weights, which at the encoder's hardly move.

    Raises:
        OptionError: a value out of its range.
    """

    rho_target: float | None = None
    alpha: float = 1.0
    alpha_schedule: AlphaSchedule = "constant"
    temperature: float = 0.3
    final_temperature: float | None = None
    pattern_learning_rate: float = 3e-3

    def __post_init__(self) -> None:
        final = self.temperature if self.final_temperature is None else self.final_temperature
        is_share = self.rho_target is None or 0 <= self.rho_target < 1
        positive = "above 0 and finite"
        _refuse_out_of_range(
            self,
            (
                ("rho_target", is_share, "a share of pairs, at least 0 and below 1"),
                ("alpha", 0 <= self.alpha < math.inf, "at least 0 and finite"),
                ("alpha_schedule", self.alpha_schedule in get_args(AlphaSchedule), "constant or linear"),
                ("temperature", 0 < self.temperature < math.inf, positive),
                ("final_temperature", 0 < final < math.inf, positive),
                ("pattern_learning_rate", 0 < self.pattern_learning_rate < math.inf, positive),
            ),
        )

    @property
    def described(self) -> str:
        """What a command line says of it: all that is not the default, or else any of its options."""
        own = [(f"--{each.name.replace('_', '-')}", getattr(self, each.name), each) for each in fields(self)]
        given = [f"{option} {value}" for option, value, each in own if value != each.default]
        return ", ".join(given) or f"any of {', '.join(option for option, *_ in own)}"


@dataclass(frozen=True)
class TrainingOptions(ABC):
    """How to train, whatever a run trains.

    The paper trains with Adam at 2e-5, batches of 16, 4 epochs. Adam is meant as in BERT's own code: with a
    weight decay of 0.01, 10 % warm-up and linear decay.

    Attributes:
        attention: what the model attends with, in training and ever after.
        metric: the figure on the evaluation rows that chooses the best epoch: one of `metrics`, or "loss";
            None takes the headline.
        from_scratch: take the encoder's architecture and tokenizer but not its weights ("Np" in the paper).
        freeze_layers: leave the embeddings and so many first layers as they are; None trains everything.
        learning: how the pattern is learned; None takes the defaults, where it is.
        dense_epochs: first epochs, of all `epochs`, in which a model with a pattern attends to everything, so
            that the pattern starts from a model that knows the task; None takes half of them where the
            pattern is learned, and none elsewhere.
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
        OptionError: a value out of its range, or one that the attention has no use for.
    """

    attention: AttentionSpec = field(default_factory=lambda: AttentionSpec("sparsegen", DEFAULT_LAMBD))
    metric: str | None = None
    from_scratch: bool = False
    freeze_layers: int | None = None
    learning: PatternOptions | None = None
    dense_epochs: int | None = None
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
        metrics = (*self.metrics, LOSS)
        patience = self.early_stopping_patience
        dense = self.dense_epochs or 0
        ranges: Sequence[_Range] = (
            ("metric", self.metric in (None, *metrics), f"one of {', '.join(metrics)}"),
            ("freeze_layers", self.freeze_layers is None or self.freeze_layers >= 0, "at least 0"),
            ("epochs", self.epochs >= 1, "at least 1"),
            ("dense_epochs", 0 <= dense < self.epochs, f"at least 0 and below --epochs, {self.epochs}"),
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
        _refuse_out_of_range(self, ranges)
        self._refuse_without_pattern()
        if self.from_scratch and self.freeze_layers is not None:
            raise OptionError(
                f"--freeze-layers {self.freeze_layers} with --from-scratch would keep random weights; "
                "give one of the two"
            )

    def _refuse_without_pattern(self) -> None:
        pattern = self.attention.pattern
        if self.dense_epochs and pattern is None:
            raise OptionError(
                f"--dense-epochs {self.dense_epochs} is for attention by a pattern, and "
                f"{self.attention.name} attends to everything in every epoch; leave it out"
            )
        if self.learning is not None and not self.learns:
            raise OptionError(
                f"attention {self.attention.name} learns nothing, and {self.learning.described} would have "
                "no effect; leave it out, or use axis, diagonal or layer-diagonal"
            )

    @property
    def learns(self) -> bool:
        """Whether a part of the attention pattern is learned."""
        return self.attention.pattern is not None and self.attention.pattern.learns

    @property
    def dense_stage(self) -> int:
        """How many first epochs attend to everything."""
        if self.dense_epochs is None:
            return self.epochs // 2 if self.learns else 0
        return self.dense_epochs

    @property
    @abstractmethod
    def metrics(self) -> Sequence[str]:
        """The figures, besides the loss, that evaluation rows are judged by."""

    @property
    @abstractmethod
    def headline(self) -> str:
        """The figure that chooses the best epoch where none is named."""

    @property
    def selection_metric(self) -> str:
        """The figure that chooses the best epoch."""
        return self.metric or self.headline

    @property
    def shown_metric(self) -> str:
        """The figure that is shown after each epoch, beside the loss."""
        return self.selection_metric

    @property
    def greater_is_better(self) -> bool:
        """Whether a larger `selection_metric` is a better one."""
        return self.selection_metric != LOSS and greater_is_better(self.selection_metric)


@dataclass(frozen=True)
class FinetuneOptions(TrainingOptions):
    """How to train a classifier.

    Attributes:
        problem_type: what the labels are; it decides loss and metrics.
    """

    problem_type: ProblemType = "single_label_classification"

    @property
    def metrics(self) -> Sequence[str]:
        """The metrics of the problem type."""
        return METRICS[self.problem_type]

    @property
    def headline(self) -> str:
        """The problem type's headline."""
        return headline(self.problem_type)
