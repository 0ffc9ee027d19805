"""How to train several tasks together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

from sparse_export.multitask.plan import Sampling
from sparse_export.multitask.task_file import TaskFile
from sparse_export.training.options import LOSS, TrainingOptions, refuse_out_of_range
from sparse_serve.errors import OptionError, refuse_without_effect
from sparse_serve.metrics import greater_is_better

SimcseForm = Literal["infonce", "cross-entropy"]

SCORE = "score"


@dataclass(frozen=True, kw_only=True)
class MultitaskOptions(TrainingOptions):
    """How to train several tasks on one encoder (the PAL paper, section 4.1).

    Attributes:
        tasks: what they are, and their rows.
        adapters: whether each task has projected attention layers of its own.
        adapter_size: their width d_s; None for the paper's in proportion to the encoder's.
        adapter_heads: heads of their attention, likewise.
        share_projections: whether all layers have one V^E and one V^D of a task.
        adapter_learning_rate: of the adapters, which at the encoder's hardly move.
        sampling: how the task of each step is chosen.
        steps_per_epoch: of annealed sampling; None for as many as one pass over all rows takes.
        simcse: the form of unsupervised SimCSE, for which every row is encoded twice; None goes without. It
            tells rows apart that a process computes at once: fewer, the more parts a batch is computed in.
        simcse_tasks: tasks whose steps it joins; none for all.
        simcse_weight: factor on its loss.
        simcse_temperature: of InfoNCE.
        freeze_encoder: train heads and adapters alone.
        add_task: add the tasks to those of the checkpoint, whose weights all stay as they are.
    """

    tasks: TaskFile
    adapters: bool = True
    adapter_size: int | None = None
    adapter_heads: int | None = None
    share_projections: bool = False
    adapter_learning_rate: float = 8e-4
    sampling: Sampling = "annealed"
    steps_per_epoch: int | None = None
    simcse: SimcseForm | None = None
    simcse_tasks: tuple[str, ...] = ()
    simcse_weight: float = 1.0
    simcse_temperature: float = 0.05
    freeze_encoder: bool = False
    add_task: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_out_of_range(
            self,
            (
                ("adapter_size", self.adapter_size is None or self.adapter_size >= 1, "at least 1"),
                ("adapter_heads", self.adapter_heads is None or self.adapter_heads >= 1, "at least 1"),
                ("adapter_learning_rate", 0 < self.adapter_learning_rate < math.inf, "above 0 and finite"),
                ("sampling", self.sampling in get_args(Sampling), f"one of {', '.join(get_args(Sampling))}"),
                ("steps_per_epoch", self.steps_per_epoch is None or self.steps_per_epoch >= 1, "at least 1"),
                ("simcse_weight", 0 < self.simcse_weight < math.inf, "above 0 and finite"),
                ("simcse_temperature", 0 < self.simcse_temperature < math.inf, "above 0 and finite"),
            ),
        )
        self._refuse_without_effect()

    def _refuse_without_effect(self) -> None:
        if self.add_task and self.from_scratch:
            raise OptionError(
                "--from-scratch makes all weights anew, and --add-task leaves those of the other tasks as "
                "they are; leave one of the two out"
            )
        adapters = {
            "--adapter-size": self.adapter_size is not None,
            "--adapter-heads": self.adapter_heads is not None,
            "--share-projections": self.share_projections,
        }
        others = {
            "--no-adapters": not self.adapters,
            "--freeze-encoder": self.freeze_encoder,
            "--freeze-layers": self.freeze_layers is not None,
            "--dense-epochs": bool(self.dense_epochs),
        }
        refuse_without_effect(
            ("--no-adapters", not self.adapters, adapters | self._changed("adapter_learning_rate")),
            # The checkpoint has adapters of its own sizes or none, and whatever it has stays as it is.
            ("--add-task", self.add_task, adapters | others),
            (
                f"--sampling {self.sampling}",
                self.sampling != "annealed",
                {"--steps-per-epoch": self.steps_per_epoch is not None},
            ),
            (
                "no --simcse",
                self.simcse is None,
                self._changed("simcse_tasks", "simcse_weight", "simcse_temperature"),
            ),
            # Both hidden states of a text are then the same, or learn nothing.
            ("--dropout 0", self.dropout == 0 and not self.learns, {"--simcse": self.simcse is not None}),
            (
                "--freeze-encoder and --no-adapters",
                self.freeze_encoder and not self.adapters and not self.learns,
                {"--simcse": self.simcse is not None},
            ),
            (
                "--simcse cross-entropy",
                self.simcse == "cross-entropy",
                self._changed("simcse_temperature"),
            ),
            (
                "--freeze-encoder",
                self.freeze_encoder,
                {"--from-scratch": self.from_scratch, "--freeze-layers": self.freeze_layers is not None},
            ),
        )
        rows = [each for task in self.tasks.tasks.values() for each in (task, *task.extra)]
        factors = [each.factor for each in rows if each.factor != 1]
        if factors and self.sampling != "annealed":
            raise OptionError(
                f"a factor of {factors[0]:g} is for --sampling annealed, and this is {self.sampling}: leave "
                "it out of the task file"
            )
        unknown = [name for name in self.simcse_tasks if name not in self.tasks.tasks]
        if unknown:
            raise OptionError(
                f"--simcse-tasks names {', '.join(unknown)}; the tasks are {', '.join(self.tasks.tasks)}"
            )

    def _changed(self, *names: str) -> dict[str, bool]:
        """Return of options whether they are other than where they are not given."""
        defaults = {field.name: field.default for field in fields(self)}
        return {f"--{name.replace('_', '-')}": getattr(self, name) != defaults[name] for name in names}

    @property
    def learns(self) -> bool:
        """Whether a part of the attention pattern is learned: not where tasks are added to a trained one."""
        return super().learns and not self.add_task

    @property
    def metrics(self) -> Sequence[str]:
        """The overall score, then each task's figures: "sentiment.accuracy"."""
        tasks = self.tasks.tasks.items()
        return (SCORE, *(f"{name}.{metric}" for name, task in tasks for metric in (LOSS, *task.kind.metrics)))

    @property
    def headline(self) -> str:
        """The overall score."""
        return SCORE

    @property
    def greater_is_better(self) -> bool:
        """Whether a larger `selection_metric` is a better one."""
        metric = self.selection_metric.rpartition(".")[2]
        return metric == SCORE or (metric != LOSS and greater_is_better(metric))
