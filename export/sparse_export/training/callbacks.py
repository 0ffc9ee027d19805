"""What a run does between steps: show where it is, save, and know when to end."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from accelerate import PartialState  # type: ignore[import-untyped]
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from sparse_export.training.batches import FullBatches
from sparse_export.training.options import LOSS, TrainingOptions
from sparse_export.training.partial import PartialRun, mark_whole
from sparse_export.training.schedule import stage_of
from sparse_serve.errors import CheckpointError

History = Sequence[Mapping[str, float]]


class DivergedError(CheckpointError):
    """The loss is no number any more, and going on from here would not mend it."""


def evaluations(history: History) -> list[Mapping[str, float]]:
    """Return the evaluations in a trainer's log, one per epoch."""
    return [entry for entry in history if "eval_loss" in entry]


def best_epoch(history: History, options: TrainingOptions) -> int | None:
    """Return the epoch, from 1, that did best so far, the first of equals; None before any that counts."""
    sign = 1 if options.greater_is_better else -1
    figures = {
        epoch: sign * entry[f"eval_{options.selection_metric}"]
        for epoch, entry in enumerate(evaluations(history), start=1)
        if stage_of(options, epoch) == "final"
    }
    return max(figures, key=figures.__getitem__, default=None)


def is_finished(history: History, options: TrainingOptions) -> bool:
    """Tell whether a run with this log has trained all its epochs, or lost its patience."""
    trained = len(evaluations(history))
    if trained >= options.epochs:
        return True
    patience, best = options.early_stopping_patience, best_epoch(history, options)
    return patience is not None and best is not None and trained - best >= patience


class Steering(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    """Gives each epoch its order, saves within epochs, and ends the run."""

    def __init__(self, options: TrainingOptions, batches: FullBatches, run: PartialRun) -> None:
        self._options = options
        self._batches = batches
        self._run = run

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Order the rows; also where the run is resumed in the middle of an epoch."""
        self._batches.epoch = state.global_step // self._batches.steps

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Have a state saved, where one is due."""
        every = self._options.save_steps
        # An epoch's end is saved by the trainer, and only after the evaluation that belongs to it.
        if every and state.global_step % every == 0 and state.global_step % self._batches.steps:
            control.should_save = True
            control.should_log = True  # the sum of losses since the last log is in no state

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
        """Note the best epoch, whose state is kept; end a run that diverged, or is finished."""
        if not math.isfinite(metrics["eval_loss"]):
            raise DivergedError(
                f"training diverged: the evaluation loss is {metrics['eval_loss']} after epoch "
                f"{state.epoch:.0f}; lower --learning-rate"
            )
        best = best_epoch(state.log_history, self._options)
        if best is not None:
            state.best_global_step = best * self._batches.steps
        if is_finished(state.log_history, self._options):
            control.should_training_stop = True


class Report(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    """A bar over the steps and one line per epoch."""

    def __init__(self, console: Console, options: TrainingOptions) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._bar: TaskID = self.progress.add_task("training", total=None)
        self._options = options

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
        """Print the epoch's figures."""
        epoch = round(state.epoch)
        stage = stage_of(self._options, epoch)
        shown = dict.fromkeys((self._options.shown_metric, *(["rho"] if "eval_rho" in metrics else [])))
        shown.pop(LOSS, None)
        named = [f"evaluation loss {metrics['eval_loss']:.4f}"]
        named += [f"{name} {metrics[f'eval_{name}']:.4f}" for name in shown]
        self.progress.console.print(
            f"epoch {epoch} of {self._options.epochs}{'' if stage == 'final' else f' ({stage})'}: "
            f"{', '.join(named)}"
        )
