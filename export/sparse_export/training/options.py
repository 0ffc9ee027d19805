"""How to train: the options of a run, with the SSAF paper's values for SST-2 as defaults."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from sparse_export.attention.resolve import DEFAULT_LAMBD
from sparse_export.attention.spec import AttentionSpec
from sparse_export.tasks import head_class
from sparse_export.tasks.trained import TrainedHead
from sparse_serve.data import Columns
from sparse_serve.errors import OptionError
from sparse_serve.metrics import greater_is_better
from sparse_serve.tasks import TASKS

LOSS = "loss"

AlphaSchedule = Literal["constant", "linear"]
Schedule = Literal[
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
]
"""How the learning rate goes, by Transformers' names of those that need no further numbers."""

# What an option is called, whether its value is accepted, and what would be.
_Range = tuple[str, bool, str]


def refuse_out_of_range(options: object, ranges: Sequence[_Range]) -> None:
    """Refuse options whose value is not accepted, the first of them.

    Raises:
        OptionError: there is one.
    """
    for name, is_accepted, what in ranges:
        if not is_accepted:
            raise OptionError(f"--{name.replace('_', '-')} is {getattr(options, name)}; it must be {what}")


@dataclass(frozen=True)
class PatternOptions:
    """How the learned part of an attention pattern is trained (the AAA paper, Eq. 10-11).

    The loss of the task is joined by alpha · max(0, rho_target − ρ), where ρ is the share of pairs that the
    pattern does not allow, a mean over rows and layers. Beyond the paper, rho_target rises to what is asked
    for while the Gumbel noise falls to 0 (see `schedule`).

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
        refuse_out_of_range(
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
        warmup_ratio: share of the steps in [0, 1) during which the learning rate rises; "constant" has none.
        max_length: tokens per row, longer rows are cut from the right; None takes what the encoder has
            positions for. Batches are padded to their own longest row, so short texts cost nothing extra.
        early_stopping_patience: end after so many evaluations in a row without a better one; None never does.
        save_steps: an interrupted run can be resumed from every epoch's end, and where this is given from
            every so many steps too.
        seed: seeds the row sample, the hold-out, new weights, shuffling and dropout. On a CPU, with the same
            number of threads and processes, equal seeds give equal weights to the bit.
        max_train_rows: use a sample of so many rows (what is held out comes off it); None takes all.
        max_eval_rows: judge a sample of so many evaluation rows; None takes all.
        max_steps: end after so many optimiser steps, whatever `epochs` says; None never does.
        eval_steps: a model is judged, and may become the best, at every epoch's end, and where this is given
            after every so many steps too.
        lr_scheduler_type: how the learning rate goes after its warm-up.
        max_grad_norm: gradients longer than this are shortened to it; 0 never does.
        dropout: share that is dropped of hidden states, attention weights and before the head; None takes
            what the encoder was pretrained with.
        gradient_checkpointing: compute activations again in the backward pass, in the place of keeping them:
            the same gradient with less memory.
        bf16: compute in bfloat16 what autocast holds safe there.
        tf32: let matrix products of float32 run in TF32.
        report_to: where Transformers logs figures to besides, such as "tensorboard"; None nowhere.
        revision: of an encoder on the hub: a branch, a tag or a commit; None takes its main branch.
        columns: names of the columns in all sources.

    Raises:
        OptionError: a value out of its range, or one that the attention has no use for.
    """

    attention: AttentionSpec = field(default_factory=lambda: AttentionSpec(DEFAULT_LAMBD))
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
    max_eval_rows: int | None = None
    max_steps: int | None = None
    eval_steps: int | None = None
    lr_scheduler_type: Schedule = "linear"
    max_grad_norm: float = 1.0
    dropout: float | None = None
    gradient_checkpointing: bool = False
    bf16: bool = False
    tf32: bool = False
    report_to: str | None = None
    revision: str | None = None
    columns: Columns | None = None

    def __post_init__(self) -> None:
        metrics = (*self.metrics, LOSS)
        patience = self.early_stopping_patience
        dense = self.dense_epochs or 0
        # Where `max_steps` ends the run, only its steps tell: see `Stages.of`.
        end, below = (
            (self.epochs, f" and below --epochs, {self.epochs}") if self.max_steps is None else (math.inf, "")
        )
        ranges: Sequence[_Range] = (
            ("metric", self.metric in (None, *metrics), f"one of {', '.join(metrics)}"),
            ("freeze_layers", self.freeze_layers is None or self.freeze_layers >= 0, "at least 0"),
            ("epochs", self.epochs >= 1, "at least 1"),
            ("dense_epochs", 0 <= dense < end, f"at least 0{below}"),
            ("learning_rate", 0 < self.learning_rate < math.inf, "above 0 and finite"),
            ("batch_size", self.batch_size >= 1, "at least 1"),
            ("gradient_accumulation_steps", self.gradient_accumulation_steps >= 1, "at least 1"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "at least 0 and finite"),
            ("warmup_ratio", 0 <= self.warmup_ratio < 1, "at least 0 and below 1"),
            ("early_stopping_patience", patience is None or patience >= 1, "at least 1"),
            ("save_steps", self.save_steps is None or self.save_steps >= 1, "at least 1"),
            ("seed", 0 <= self.seed < 2**32, "from 0 to 4294967295"),
            ("max_train_rows", self.max_train_rows is None or self.max_train_rows >= 2, "at least 2"),
            ("max_eval_rows", self.max_eval_rows is None or self.max_eval_rows >= 1, "at least 1"),
            ("max_steps", self.max_steps is None or self.max_steps >= 1, "at least 1"),
            ("eval_steps", self.eval_steps is None or self.eval_steps >= 1, "at least 1"),
            (
                "lr_scheduler_type",
                self.lr_scheduler_type in get_args(Schedule),
                f"one of {', '.join(get_args(Schedule))}",
            ),
            ("max_grad_norm", 0 <= self.max_grad_norm < math.inf, "at least 0 and finite"),
            ("dropout", self.dropout is None or 0 <= self.dropout < 1, "at least 0 and below 1"),
        )
        refuse_out_of_range(self, ranges)
        self._refuse_without_pattern()
        warms_up = self.warmup_ratio not in (0, TrainingOptions.warmup_ratio)
        if warms_up and self.lr_scheduler_type == "constant":
            raise OptionError(
                f"--warmup-ratio {self.warmup_ratio:g} has no effect with --lr-scheduler-type constant; "
                "leave it out, or use constant_with_warmup"
            )
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
        return self.attention.learns

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
    """How to fine-tune for a task.

    Attributes:
        task: type of the task, of `sparse_serve.tasks`; it decides rows, head, loss and metrics.
        label_smoothing: share of each target that is spread over all labels, in [0, 1).
        max_answer_tokens: of question answering; None takes the task's own.
        stride: of question answering, by how many tokens windows overlap; None takes the task's own.
    """

    task: str = "single_label_classification"
    label_smoothing: float = 0.0
    max_answer_tokens: int | None = None
    stride: int | None = None

    def __post_init__(self) -> None:
        trained = {name: kind for name, kind in TASKS.items() if issubclass(head_class(kind), TrainedHead)}
        if self.task not in trained:
            known = ", ".join(kind.option for kind in trained.values())
            asked = TASKS[self.task].option if self.task in TASKS else self.task
            raise OptionError(
                f"--task {asked} is not trained; an encoder is exported for it as it is, with `export --task "
                f"{asked}`: give one of {known}"
                if self.task in TASKS
                else f"--task is {asked}; it must be one of {known}"
            )
        super().__post_init__()
        answer, stride = self.max_answer_tokens, self.stride
        ranges: Sequence[_Range] = (
            ("label_smoothing", 0 <= self.label_smoothing < 1, "at least 0 and below 1"),
            ("max_answer_tokens", answer is None or answer >= 1, "at least 1"),
            ("stride", stride is None or stride >= 0, "at least 0"),
        )
        refuse_out_of_range(self, ranges)
        head = head_class(TASKS[self.task])
        if self.label_smoothing and not (issubclass(head, TrainedHead) and head.can_smooth):
            raise OptionError(
                f"--label-smoothing {self.label_smoothing:g} is for tasks with one label for each row or "
                f"word, and --task {TASKS[self.task].option} has none; leave it out"
            )
        settings = {each.name for each in fields(TASKS[self.task])}
        for name, value in (("max_answer_tokens", self.max_answer_tokens), ("stride", self.stride)):
            if value is not None and name not in settings:
                raise OptionError(
                    f"--{name.replace('_', '-')} {value} is for --task question-answering, and this is "
                    f"--task {TASKS[self.task].option}; leave it out"
                )

    @property
    def metrics(self) -> Sequence[str]:
        """The metrics of the task."""
        return TASKS[self.task].metrics

    @property
    def headline(self) -> str:
        """The task's first metric."""
        return self.metrics[0]
