"""What a run does between steps: show where it is, save, and know when to end."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accelerate import PartialState
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from sparse_export.training.batches import Plan, PlannedBatches
from sparse_export.training.options import LOSS, TrainingOptions
from sparse_export.training.partial import PartialRun, mark_whole
from sparse_export.training.schedule import Stages
from sparse_serve.errors import CheckpointError

History = Sequence[Mapping[str, float]]


class DivergedError(CheckpointError):
    """The loss is no number any more, and going on from here would not mend it."""


def evaluations(history: History) -> list[Mapping[str, float]]:
    """Return the evaluations in a trainer's log."""
    return [entry for entry in history if "eval_loss" in entry]


def best_step(history: History, options: TrainingOptions, stages: Stages) -> int | None:
    """Return after how many steps the model did best so far, the first of equals; None before any counts."""
    sign = 1 if options.greater_is_better else -1
    figures = {
        int(entry["step"]): sign * entry[f"eval_{options.selection_metric}"]
        for entry in evaluations(history)
        if stages.stage(int(entry["step"])) == "final"
    }
    return max(figures, key=figures.__getitem__, default=None)


def is_finished(history: History, options: TrainingOptions, stages: Stages) -> bool:
    """Tell whether a run with this log has trained all its steps, or lost its patience.

    Transformers' own early stopping counts every evaluation; here those of a pattern that is still to come
    to its target do not.
    """
    steps = [int(entry["step"]) for entry in evaluations(history)]
    if steps and steps[-1] >= stages.steps:
        return True
    patience, best = options.early_stopping_patience, best_step(history, options, stages)
    return patience is not None and best is not None and sum(step > best for step in steps) >= patience


class Steering(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    """Gives each epoch its order, evaluates and saves within epochs, and ends the run."""

    def __init__(
        self, options: TrainingOptions, batches: PlannedBatches, stages: Stages, run: PartialRun
    ) -> None:
        self._options = options
        self._batches = batches
        self._stages = stages
        self._run = run

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Order the rows; also where the run is resumed in the middle of an epoch."""
        self._batches.epoch = state.global_step // self._stages.per_epoch

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Have the model evaluated, and a state saved, where that is due."""
        step, stages = state.global_step, self._stages
        if step % stages.per_epoch == 0 or step == stages.steps:
            return  # an end is evaluated and saved by the trainer
        if self._options.eval_steps and step % self._options.eval_steps == 0:
            control.should_evaluate = control.should_save = True  # it may become the best
        if self._options.save_steps and step % self._options.save_steps == 0:
            control.should_save = True
        if control.should_save:
            control.should_log = True  # the sum of losses since the last log is in no state

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Evaluate and save nothing twice, where the run was ended by an evaluation within the epoch."""
        done = evaluations(state.log_history)
        if done and done[-1]["step"] == state.global_step:
            control.should_evaluate = control.should_save = False

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Mark the state as whole when every process has written its random numbers."""
        PartialState().wait_for_everyone()
        if state.is_world_process_zero:
            mark_whole(self._run.state_after(state.global_step))

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, float],
        **_: Any,
    ) -> None:
        """Note the best model, whose state is kept; end a run that diverged, or is finished."""
        if not math.isfinite(metrics["eval_loss"]):
            raise DivergedError(
                f"training diverged: the evaluation loss is {metrics['eval_loss']} after epoch "
                f"{self._stages.epoch(state.global_step):.3g}; lower --learning-rate"
            )
        best = best_step(state.log_history, self._options, self._stages)
        if best is not None:
            state.best_global_step = best
        if is_finished(state.log_history, self._options, self._stages):
            control.should_training_stop = True


class Report(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    """A bar over the steps and one line per evaluation, with a table where there are many figures."""

    def __init__(
        self,
        console: Console,
        options: TrainingOptions,
        stages: Stages,
        plan: Plan,
        table: Callable[[Mapping[str, float]], Table] | None = None,
    ) -> None:
        """Show what `plan` does, and of each evaluation its `table`."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._bar: TaskID = self.progress.add_task("training", total=None)
        self._options = options
        self._stages = stages
        self._plan = plan
        self._table = table

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Say what is trained."""
        if not self.progress.disable:
            doing = self._plan.doing(*divmod(state.global_step, self._stages.per_epoch))
            self.progress.update(self._bar, description=doing)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Show how many steps there are."""
        self.progress.update(self._bar, total=state.max_steps, completed=state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Advance the bar."""
        self.progress.update(self._bar, completed=state.global_step)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, float],
        **_: Any,
    ) -> None:
        """Print the figures."""
        stages, step = self._stages, state.global_step
        stage = stages.stage(step)
        shown = dict.fromkeys((self._options.shown_metric, *(["rho"] if "eval_rho" in metrics else [])))
        shown.pop(LOSS, None)
        named = [f"evaluation loss {metrics['eval_loss']:.4f}"]
        named += [f"{name} {metrics[f'eval_{name}']:.4f}" for name in shown]
        self.progress.console.print(
            f"epoch {stages.epoch(step):.3g} of {stages.epoch(stages.steps):.3g}"
            f"{'' if stage == 'final' else f' ({stage})'}: "
            f"{', '.join(named)}"
        )
        if self._table is not None:
            figures = {name.removeprefix("eval_"): value for name, value in metrics.items()}
            self.progress.console.print(self._table(figures))
