"""One run: from an encoder and labelled rows to a checkpoint, with Transformers' `Trainer`."""

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import cast

import torch
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from transformers import TrainerState

from sparse_export.checkpoint import load_classifier, save_classifier, task_of
from sparse_export.training.callbacks import DivergedError, History, evaluations, is_finished
from sparse_export.training.distributed import agreed, ending_together, join_processes, shared
from sparse_export.training.options import FinetuneOptions
from sparse_export.training.partial import (
    PartialRun,
    discard_leftover,
    partial_run,
    read_state,
    refuse_occupied,
)
from sparse_export.training.records import (
    RECORD_NAME,
    EpochRecord,
    FinetuneRecord,
    RunSettings,
    stored_settings,
    versions,
)
from sparse_export.training.sources import Source, read_rows
from sparse_export.training.sparsity import layer_sparsity
from sparse_export.training.trainer import ClassifierTrainer, make_trainer
from sparse_serve.metrics import METRICS


def finetune(
    encoder: str | Path,
    train: Source,
    output: Path,
    options: FinetuneOptions,
    *,
    evaluation: Source | None = None,
    force: bool = False,
    resume: bool = False,
    console: Console | None = None,
) -> FinetuneRecord:
    """Fine-tune `encoder` on the rows of `train` and write the best epoch's checkpoint to `output`.

    The checkpoint is made in `OUTPUT.partial` and renamed into place when it is whole; whatever fails before
    leaves `output` as it was, and an interrupted run there (see `partial`). The epoch that does best on the
    evaluation rows is kept, the first of equals.

    Started by `torchrun` or `accelerate launch`, all processes call this alike and train together, on files
    that all of them see; the first one speaks and writes.

    Args:
        encoder: a Transformers folder, or the id of a model on the hub.
        train: a TSV, CSV or JSONL file, or a data set's split; its labels, sorted, become the model's.
        output: folder to be made; one with files in it is refused unless `force` replaces it.
        options: how to train.
        evaluation: rows that choose the best epoch; None takes a data set's split "validation", or else holds
            out a tenth of the training rows by the seed.
        force: replace the checkpoint that is at `output`, and discard an interrupted run.
        resume: continue the interrupted run, if there is one; to the bit, on a CPU with as many threads and
            the same versions. A checkpoint that the same run has finished is left as it is.
        console: where progress is shown; None = nowhere.

    Returns:
        The record of the run, in every process.

    Raises:
        OptionError: `options` do not fit the encoder or the number of processes.
        DataError: rows that cannot be read, or too few labels.
        CheckpointError: the encoder cannot be loaded, `output` cannot be written, training diverged, or the
            run to be resumed had other settings.
    """
    started = time.monotonic()
    processes = join_processes()
    is_first = processes.is_main_process
    console = console if console is not None and is_first else Console(quiet=True)
    run = PartialRun(output)
    with agreed():
        if is_first and not resume:
            refuse_occupied(run, force=force, resume=resume)
        train_rows, eval_rows, held_out = read_rows(train, evaluation, options, console)
        console.print(
            f"{run.output.name}: {train_rows.record.rows} rows to train on, "
            f"{eval_rows.record.rows} to evaluate on",
            highlight=False,
        )
        settings = RunSettings(
            str(encoder),
            options,
            train_rows.record,
            eval_rows.record,
            held_out,
            processes.num_processes,
        )
        done = _finished(run.output, settings) if resume and is_first else None
        if done is not None:
            discard_leftover(run, settings)
    done = shared(done)
    if done is not None:
        console.print(f"{run.output} was finished before")
        return done
    with ExitStack() as stack:
        with agreed():
            if is_first:
                stack.enter_context(partial_run(run, settings, force=force, resume=resume, console=console))
            trainer = make_trainer(settings, train_rows.data, eval_rows.data, run, console)
        latest = shared(run.latest_state() if is_first else None)
        state = _train(trainer, options, run, latest)
        with agreed():
            record = _write(trainer, state, settings, run, started) if is_first else None
        return cast(FinetuneRecord, shared(record))


def _finished(output: Path, settings: RunSettings) -> FinetuneRecord | None:
    """Return the record of the checkpoint at `output` if a run of these settings made it."""
    stored = stored_settings(output / RECORD_NAME)
    if stored is None or stored.get("schema_version") != FinetuneRecord.schema_version:
        return None
    if settings.differences(stored):
        return None
    try:
        return TypeAdapter(FinetuneRecord).validate_python(stored)
    except ValidationError:  # damaged
        return None


def _train(
    trainer: ClassifierTrainer, options: FinetuneOptions, run: PartialRun, latest: Path | None
) -> TrainerState:
    """Train from the state `latest`, or from the beginning, to the end; return where that was."""
    if latest is not None and is_finished((state := read_state(latest)).log_history, options):
        return state
    with ending_together():
        try:
            trainer.train(resume_from_checkpoint=None if latest is None else str(latest))
        except DivergedError:
            if trainer.is_world_process_zero():
                run.discard()
            raise
        except RuntimeError as error:
            # All that torch.save says of a disk that is full.
            if "inline_container" not in str(error):
                raise
            raise OSError(f"the state cannot be saved, is the disk full? {error}") from error
    return trainer.state


def _write(
    trainer: ClassifierTrainer, state: TrainerState, settings: RunSettings, run: PartialRun, started: float
) -> FinetuneRecord:
    """Write the best epoch's checkpoint with its record, and put it into its place."""
    device = trainer.model.device
    model = load_classifier(run.state_after(state.best_global_step)).to(device)
    sparse = settings.options.attention.kind != "softmax"
    record = FinetuneRecord(
        **{name: getattr(settings, name) for name in asdict(settings)},
        labels=task_of(model.config).labels,
        max_length=trainer.max_length,
        epochs=_epoch_records(state.log_history, METRICS[settings.options.problem_type]),
        best_epoch=round(state.best_global_step / trainer.batches.steps),
        layers=layer_sparsity(model, trainer.eval_dataset, trainer.data_collator) if sparse else [],
        seconds=round(time.monotonic() - started, 1),
        device=str(device),
        threads=torch.get_num_threads(),
        versions=versions(),
    )
    # Truncation is how this run encoded, not a property of the tokenizer.
    trainer.processing_class.backend_tokenizer.no_truncation()
    save_classifier(model, trainer.processing_class, run.checkpoint)
    (run.checkpoint / RECORD_NAME).write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")
    run.install()
    return record


def _epoch_records(history: History, metrics: Sequence[str]) -> list[EpochRecord]:
    records = []
    start = 0
    for number, entry in enumerate(evaluations(history), start=1):
        end = int(entry["step"])
        # Each logged loss is a mean over the steps since the one before.
        logged = [each for each in history if "loss" in each and start < each["step"] <= end]
        steps = [start, *(int(each["step"]) for each in logged)]
        weighted = zip(logged, pairwise(steps), strict=True)
        total = sum(each["loss"] * (to - since) for each, (since, to) in weighted)
        figures = {name: entry[f"eval_{name}"] for name in metrics}
        records.append(EpochRecord(number, total / (end - start), entry["eval_loss"], figures))
        start = end
    return records
