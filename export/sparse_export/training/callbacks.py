"""What a run does between steps: show where it is, save, and know when to end."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from accelerate import PartialState  # type: ignore[import-untyped]
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from sparse_export.training.batches import FullBatches
from sparse_export.training.options import FinetuneOptions
from sparse_export.training.partial import PartialRun, mark_whole
from sparse_serve.errors import CheckpointError

History = Sequence[Mapping[str, float]]


class DivergedError(CheckpointError):
    """The loss is no number any more, and going on from here would not mend it."""


def evaluations(history: History) -> list[Mapping[str, float]]:
    """Return the evaluations in a trainer's log, one per epoch."""
    return [entry for entry in history if "eval_loss" in entry]


def is_finished(history: History, options: FinetuneOptions) -> bool:
    """Tell whether a run with this log has trained all its epochs, or lost its patience."""
    sign = 1 if options.greater_is_better else -1
    figures = [sign * entry[f"eval_{options.selection_metric}"] for entry in evaluations(history)]
    if len(figures) >= options.epochs:
        return True
    patience = options.early_stopping_patience
    if patience is None or not figures:
        return False
    return len(figures) - 1 - figures.index(max(figures)) >= patience


class Steering(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    """Gives each epoch its order, saves within epochs, and ends the run."""

    def __init__(self, options: FinetuneOptions, batches: FullBatches, run: PartialRun) -> None:
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
        """End a run that diverged, or is finished."""
        if not math.isfinite(metrics["eval_loss"]):
            raise DivergedError(
                f"training diverged: the evaluation loss is {metrics['eval_loss']} after epoch "
                f"{state.epoch:.0f}; lower --learning-rate"
            )
        if is_finished(state.log_history, self._options):
            control.should_training_stop = True


class Report(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    """A bar over the steps and one line per epoch."""

    def __init__(self, console: Console, metric: str) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._bar: TaskID = self.progress.add_task("training", total=None)
        self._metric = f"eval_{metric}"

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
        named = [f"evaluation loss {metrics['eval_loss']:.4f}"]
        if self._metric != "eval_loss":
            named.append(f"{self._metric.removeprefix('eval_')} {metrics[self._metric]:.4f}")
        self.progress.console.print(
            f"epoch {state.epoch:.0f} of {args.num_train_epochs:.0f}: {', '.join(named)}"
        )
