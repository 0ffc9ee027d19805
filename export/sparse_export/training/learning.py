"""Training a model that attends by a pattern: how the pattern is drawn at each step, and what it costs."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from accelerate.utils import broadcast
from rich.console import Console
from torch import Tensor
from transformers import (
    EvalPrediction,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from sparse_export.attention.masks import LayerMask
from sparse_export.attention.measures import mask_shares
from sparse_export.encoders.extension import parameter_groups
from sparse_export.encoders.patterned import PatternModule, set_sampling
from sparse_export.tasks.trained import Encoded
from sparse_export.training.calibration import calibrate
from sparse_export.training.distributed import shared
from sparse_export.training.groups import group_of
from sparse_export.training.job import Figures, Training
from sparse_export.training.objectives import Objective, Part
from sparse_export.training.options import TrainingOptions
from sparse_export.training.schedule import PatternSchedule, Stages, fixed_rho
from sparse_export.training.sparsity import mean_rho, spread

# The keys of a measured ρ in the trainer's log, and of one after thresholds were set.
_MEASURED, CALIBRATED = "rho", "calibrated_rho"
# The most rows of those set aside that are measured in training.
_ROWS_IN_TRAINING = 128

Reduced = Callable[[Any, Any], Tensor]


class PatternLearning(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    """Trains a model's pattern along its schedule.

    What the sparsity loss compares with its target is the ρ that Eq. 9 speaks of: of the pattern as it is
    served, over a data set. It is measured now and then, on rows that are neither trained on nor judged, and
    noted in the trainer's log, with which a resumed run goes on. A batch's own ρ would not do: it is that of
    texts of its own length, under noise.

    Attributes:
        schedule: of the run.
        weights: what is learned of the pattern; a group of the optimiser, where there is any.
    """

    def __init__(self, training: Training, schedule: PatternSchedule) -> None:
        self.schedule = schedule
        self._training = training
        weights = parameter_groups(training.model).get(PatternModule.parameter_group, [])
        self.weights = [weight for weight in weights if weight.requires_grad]
        self._moment = schedule.at(0)
        self._rho = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Take up the last ρ of a run that is resumed."""
        self._rho = next((each[_MEASURED] for each in reversed(state.log_history) if _MEASURED in each), 0.0)

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        optimizer: torch.optim.Optimizer,
        **_: Any,
    ) -> None:
        """Bring model and optimiser to where the schedule is."""
        self._moment = moment = self.schedule.at(state.global_step)
        set_sampling(self._training.model, moment.sampling)
        if not self.weights:
            return
        group_of(optimizer, PatternModule.parameter_group)["lr"] = moment.learning_rate
        if moment.settles:
            self._calibrate(state)  # what remains of training gets used to it
        if moment.measures:
            rows = self._training.calibration
            self._rho = shared(self._measured(spread(rows, _ROWS_IN_TRAINING)))
            state.log_history.append({"step": state.global_step, _MEASURED: self._rho})

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Set the thresholds of a model that is judged within an epoch."""
        self.on_epoch_end(args, state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Set the thresholds of a model that may become the best."""
        is_judged = control.should_evaluate
        if is_judged and self.weights and self.schedule.stages.is_settled(state.global_step):
            self._calibrate(state)

    def _calibrate(self, state: TrainerState) -> None:
        def measure() -> float:
            return self._measured(self._training.calibration)

        shift = calibrate(self._training.model, measure, self.schedule.rho_target)
        # Processes that add up in another order may have come to different thresholds.
        broadcast([weight.data for weight in self.weights])
        entry = {"step": state.global_step, CALIBRATED: shared(measure()), "shift": shared(shift)}
        state.log_history.append(entry)

    def _measured(self, rows: Sequence[Encoded]) -> float:
        return mean_rho(self._training.model, rows, self._training.collator)

    def cost(self, masks: Sequence[LayerMask]) -> Tensor | float:
        """Return alpha · max(0, target − ρ) (AAA, Eq. 10), with the gradient of the ρ drawn for a batch."""
        drawn = [mask.rho for mask in masks if mask.rho is not None]
        lacking = self._moment.rho_target - self._rho
        if not drawn or lacking <= 0:
            return 0.0
        rho = torch.stack(drawn).mean()
        return self._moment.alpha * (lacking + rho.detach() - rho)


class SparsityCost(Objective):
    """What a learned pattern lacks of the ρ that it is to reach."""

    def __init__(self, learning: PatternLearning) -> None:
        self._learning = learning

    def loss(self, part: Part) -> Tensor | float:
        """Return alpha · max(0, target − ρ)."""
        return self._learning.cost(part.masks)


def make_learning(
    options: TrainingOptions, training: Training, stages: Stages, console: Console
) -> PatternLearning | None:
    """Make what trains the pattern of a model on its rows; None without a pattern.

    Raises:
        OptionError: the pattern is larger than the rows can be.
    """
    pattern, model = options.attention.pattern, training.model
    if pattern is None:
        return None
    pattern.require_within(training.max_length)
    lengths = [len(row["input_ids"]) for row in training.evaluation]
    reachable = fixed_rho(pattern, lengths, model.config.num_hidden_layers) if pattern.learns else 0.0
    schedule = PatternSchedule.of(options, stages, reachable)
    if pattern.learns and schedule.rho_target > reachable:
        console.print(
            f"warning: --rho-target is {schedule.rho_target:g}, but what is fixed in {pattern.name} leaves "
            f"at most {reachable:.3f} on these texts: training will switch off all that can be learned"
        )
    return PatternLearning(training, schedule)


def share_of(masks: Sequence[LayerMask], attention_mask: Tensor) -> Tensor:
    """Return ρ `(B, 2)` of evaluated rows, with and without what is fixed: means over the layers.

    Without masks, as in the dense stage, it is 0.
    """
    if not masks:
        return torch.zeros(len(attention_mask), 2, device=attention_mask.device)
    return torch.stack([mask_shares(mask, attention_mask)[:, :2] for mask in masks]).mean(0)


def with_rho(figures: Figures, reduced: Reduced | None) -> tuple[Figures, Callable[[Any, Any], Any]]:
    """Let what judges a task's outputs judge them beside ρ `(B, 2)`, and add `rho` and `rho_without_band`."""

    def judge(prediction: EvalPrediction) -> dict[str, float]:
        outputs, shares = prediction.predictions
        rho, rho_without_band = shares.mean(0, dtype="float64").tolist()
        own = figures(EvalPrediction(outputs, prediction.label_ids))
        return {**own, "rho": rho, "rho_without_band": rho_without_band}

    def reduce(both: tuple[Any, Tensor], targets: Any) -> tuple[Any, Tensor]:
        outputs, shares = both
        return (outputs if reduced is None else reduced(outputs, targets), shares)

    return judge, reduce
