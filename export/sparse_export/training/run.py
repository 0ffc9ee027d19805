"""One run: from an encoder and rows to a checkpoint, with Transformers' `Trainer`."""

import json
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from transformers import TrainerState

from sparse_export.checkpoint import checkpoint_digest, save_checkpoint
from sparse_export.encoders.stored_files import RECORD_NAME
from sparse_export.training.callbacks import DivergedError, History, evaluations, is_finished
from sparse_export.training.distributed import (
    agreed,
    ending_together,
    join_processes,
    shared,
    warn_of_idle_devices,
)
from sparse_export.training.job import Job, Training
from sparse_export.training.learning import CALIBRATED
from sparse_export.training.options import FinetuneOptions, TrainingOptions
from sparse_export.training.partial import (
    PartialRun,
    discard_leftover,
    partial_run,
    read_state,
    refuse_occupied,
)
from sparse_export.training.records import (
    CalibrationRecord,
    EpochRecord,
    FinetuneRecord,
    RunSettings,
    TrainingRecord,
    stored_settings,
    versions,
)
from sparse_export.training.schedule import Stages
from sparse_export.training.sources import Rows, Source
from sparse_export.training.sparsity import layer_sparsity
from sparse_export.training.task import TaskJob
from sparse_export.training.trainer import RunTrainer, make_trainer
from sparse_serve.errors import DeviceError, in_brief


def finetune(  # noqa: PLR0913  rows are of three kinds
    encoder: str | Path,
    train: Source,
    output: Path,
    options: FinetuneOptions,
    *,
    evaluation: Source | None = None,
    test: Source | None = None,
    force: bool = False,
    resume: bool = False,
    console: Console | None = None,
) -> FinetuneRecord:
    """Fine-tune `encoder` for a task: `train_checkpoint` with labelled rows.

    What `train` says of labels becomes the model's. Arguments, result and errors are those of
    `train_checkpoint`.
    """
    record = train_checkpoint(
        TaskJob(options),
        encoder,
        train,
        output,
        evaluation=evaluation,
        test=test,
        force=force,
        resume=resume,
        console=console,
    )
    return cast(FinetuneRecord, record)


def train_checkpoint(  # noqa: PLR0913  rows are of three kinds
    job: Job[Any],
    encoder: str | Path,
    train: Source,
    output: Path,
    *,
    evaluation: Source | None = None,
    test: Source | None = None,
    force: bool = False,
    resume: bool = False,
    console: Console | None = None,
) -> TrainingRecord:
    """Train on the rows of `train`, from `encoder` on, and write the best epoch's checkpoint to `output`.

    The checkpoint is made in `OUTPUT.partial` and renamed into place when it is whole; whatever fails before
    leaves `output` as it was, and an interrupted run there (see `partial`). The epoch that does best on the
    evaluation rows is kept, the first of equals.

    Started by `torchrun` or `accelerate launch`, all processes call this alike and train together, on files
    that all of them see; the first one speaks and writes.

    Args:
        job: what to train.
        encoder: a Transformers folder, or the id of a model on the hub.
        train: a file, or a data set's split.
        output: folder to be made; one with files in it is refused unless `force` replaces it.
        evaluation: rows that choose the best epoch; None takes a data set's split "validation", or else holds
            out a tenth of the training rows by the seed.
        test: rows that the result is tried on: its answers and figures are written into the checkpoint.
        force: replace the checkpoint that is at `output`, and discard an interrupted run.
        resume: continue the interrupted run, if there is one; to the bit, on a CPU with as many threads and
            the same versions. A checkpoint that the same run has finished is left as it is. With `force`, a
            run of other settings is discarded.
        console: where progress is shown; None = nowhere.

    Returns:
        The record of the run, in every process.

    Raises:
        OptionError: the job's options do not fit the encoder or the number of processes.
        DataError: rows that cannot be read, or do not fit the task.
        CheckpointError: the encoder cannot be loaded, `output` cannot be written, training diverged, or the
            run to be resumed had other settings.
        DeviceError: the device has no memory left.
    """
    started = time.monotonic()
    processes = join_processes()
    is_first = processes.is_main_process
    console = console if console is not None and is_first else Console(quiet=True)
    run = PartialRun(output)
    with agreed():
        if is_first and not resume:
            refuse_occupied(run, force=force, resume=resume)
        train_rows, eval_rows, held_out = job.read(train, evaluation, console)
        test_rows = None if test is None else job.read_test(test)
        console.print(
            f"{run.output.name}: {train_rows.record.rows} rows to train on, "
            f"{eval_rows.record.rows} to evaluate on",
            highlight=False,
        )
        settings = RunSettings(
            str(encoder),
            checkpoint_digest(encoder, job.options.revision),
            job.options,
            train_rows.record,
            eval_rows.record,
            held_out,
            processes.num_processes,
            None if test_rows is None else test_rows.record,
        )
        warn_of_idle_devices(processes.num_processes, console)
        done = _finished(job, settings, run.output, console) if resume and is_first else None
        if done is not None:
            discard_leftover(run, settings)
    done = shared(done)
    if done is not None:
        console.print(f"{run.output} was finished before")
        return done
    with ExitStack() as stack:
        with agreed(), _telling_memory(job.options):
            if is_first:
                stack.enter_context(partial_run(run, settings, force=force, resume=resume, console=console))
            training = job.prepare(settings.encoder, train_rows.data, eval_rows.data)
            if test_rows is not None:
                job.require_testable(training, train_rows.data, test_rows)
            if training.calibration:
                console.print(
                    f"{run.output.name}: {len(training.calibration)} of the rows to train on are set aside, "
                    "to set the pattern's threshold on",
                    highlight=False,
                )
            del train_rows, eval_rows  # texts, of which only tokens are needed from here on
            stages = Stages.of(job.options, training.batches.plan.steps)
            trainer = make_trainer(job, settings, training, stages, run, console)
        latest = shared(run.latest_state() if is_first else None)
        state = _train(trainer, job.options, stages, run, latest, console)
        with agreed(), _telling_memory(job.options):
            result = Result(training, trainer, state, test_rows)
            record = _write(job, result, settings, run, started) if is_first else None
        return cast(TrainingRecord, shared(record))


def _finished(job: Job[Any], settings: RunSettings, output: Path, console: Console) -> TrainingRecord | None:
    """Return the record of the checkpoint at `output` if a run of these settings made it."""
    stored = stored_settings(output / RECORD_NAME)
    if stored is None:
        return None
    schema = stored.get("schema_version")
    if schema != job.record.schema_version:
        console.print(
            f"warning: {output / RECORD_NAME} has schema {schema}, this version writes "
            f"{job.record.schema_version}: whether the same run made the checkpoint cannot be told"
        )
        return None
    if settings.differences(stored):
        return None
    try:
        return TypeAdapter(job.record).validate_python(stored)
    except ValidationError:  # damaged
        return None


def _train(
    trainer: RunTrainer,
    options: TrainingOptions,
    stages: Stages,
    run: PartialRun,
    latest: Path | None,
    console: Console,
) -> TrainerState:
    """Train from the state `latest`, or from the beginning, to the end; return where that was.

    A run that diverges ends there, with the best of the epochs before.

    Raises:
        DivergedError: there is none.
    """
    if latest is not None and is_finished((state := read_state(latest)).log_history, options, stages):
        return state
    with ending_together(), _telling_memory(options):
        try:
            trainer.train(resume_from_checkpoint=None if latest is None else str(latest))
        except DivergedError as error:
            state = trainer.state
            if state.best_global_step is None:
                if trainer.is_world_process_zero():
                    run.discard()
                raise
            state.log_history = [
                entry for entry in state.log_history if math.isfinite(entry.get("eval_loss", 0.0))
            ]
            best = stages.epoch(state.best_global_step)
            console.print(f"warning: {error}; the best epoch before, {best:.3g}, is kept", highlight=False)
        except RuntimeError as error:
            # All that torch.save says of a disk that is full.
            if "inline_container" not in str(error):
                raise
            raise OSError(f"the state cannot be saved, is the disk full? {error}") from error
    return trainer.state


@contextmanager
def _telling_memory(options: TrainingOptions) -> Iterator[None]:
    """Say what takes less memory, where the device has none left.

    Raises:
        DeviceError: it has none.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            f"the run does not fit into the device's memory: {in_brief(error)}; give more "
            f"--gradient-accumulation-steps (now {options.gradient_accumulation_steps}) or "
            "--gradient-checkpointing, which keep the gradient as it is, or else a shorter --max-length or "
            f"a smaller --batch-size (now {options.batch_size})"
        ) from error


@dataclass(frozen=True)
class Result:
    """What has been trained: on what, by what, how far, and on which rows it is to be tried, if on any."""

    training: Training
    trainer: RunTrainer
    state: TrainerState
    test: Rows | None


def _write(
    job: Job[Any], result: Result, settings: RunSettings, run: PartialRun, started: float
) -> TrainingRecord:
    """Write the best epoch's checkpoint with its record, and put it into its place."""
    training, trainer, state = result.training, result.trainer, result.state
    device = trainer.model.device
    model = job.load(run.state_after(state.best_global_step)).to(device)
    options = settings.options
    sparse = not options.attention.is_dense
    stages = Stages.of(options, training.batches.plan.steps)
    epochs = _epoch_records(state.log_history, options, stages)
    best = next(each for each in epochs if each.step == state.best_global_step)
    # Truncation is how this run encoded, not a property of the tokenizer.
    training.tokenizer.backend_tokenizer.no_truncation()
    save_checkpoint(model, training.tokenizer, run.checkpoint)
    tried = None if result.test is None else job.test(model, training, result.test, run.checkpoint)
    record = job.record(
        **{name: getattr(settings, name) for name in asdict(settings)},
        labels=job.labels(model),
        max_length=training.max_length,
        epochs=epochs,
        best_epoch=best.epoch,
        layers=layer_sparsity(model, trainer.eval_dataset, trainer.data_collator) if sparse else [],
        calibration=_calibration(training, state.log_history, best.step, options.seed),
        rho_target=trainer.learning.schedule.rho_target
        if trainer.learning and options.learns
        else training.rho_target,
        rho=best.rho,
        rho_without_band=best.rho_without_band,
        test=tried,
        seconds=round(time.monotonic() - started, 1),
        device=str(device),
        threads=torch.get_num_threads(),
        versions=versions(),
    )
    (run.checkpoint / RECORD_NAME).write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")
    run.install()
    return record


def _calibration(training: Training, history: History, step: int, seed: int) -> CalibrationRecord | None:
    entries = [entry for entry in history if CALIBRATED in entry and entry["step"] == step]
    if not entries:
        return None
    return CalibrationRecord(len(training.calibration), seed, entries[-1][CALIBRATED], entries[-1]["shift"])


def _epoch_records(history: History, options: TrainingOptions, stages: Stages) -> list[EpochRecord]:
    records = []
    start = 0
    for entry in evaluations(history):
        end = int(entry["step"])
        # Each logged loss is a mean over the steps since the one before.
        logged = [each for each in history if "loss" in each and start < each["step"] <= end]
        steps = [start, *(int(each["step"]) for each in logged)]
        weighted = zip(logged, pairwise(steps), strict=True)
        total = sum(each["loss"] * (to - since) for each, (since, to) in weighted)
        figures = {name: entry[f"eval_{name}"] for name in options.metrics}
        records.append(
            EpochRecord(
                stages.epoch(end),
                end,
                total / (end - start),
                entry["eval_loss"],
                figures,
                stages.stage(end),
                rho=entry.get("eval_rho"),
                rho_without_band=entry["eval_rho_without_band"] if options.learns else None,
            )
        )
        start = end
    return records
