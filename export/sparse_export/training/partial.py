"""The folder in which a checkpoint is made, `OUTPUT.partial`: what an interrupted run is resumed from.

    OUTPUT.partial/
      settings.json     what decides the run's outcome, and the environment that it was started in
      states/           Trainer's own checkpoints, with optimiser, schedule and random numbers; a file `whole`
                        in each says that all processes have written their part
      checkpoint/       the result while it is written; renamed to OUTPUT when it is whole
      replaced/         what was at OUTPUT, in the moment between

The folder goes when the checkpoint has appeared, and after a run that ended before its first state or
diverged before any epoch could be its best. Else it stays, however the run ended.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors import SafetensorError
from transformers import TrainerState

from sparse_export.training.records import RunSettings, differences, environment, stored_settings
from sparse_serve.errors import CheckpointError

_SETTINGS = "settings.json"
_TRAINER_STATE = "trainer_state.json"
_STATE_PREFIX = "checkpoint-"
_WHOLE = "whole"


class PartialRun:
    """A run in the making; what it is to become is at `output`."""

    def __init__(self, output: Path) -> None:
        self.output = Path(os.path.expanduser(output)).resolve()  # noqa: PTH111  leaves ~name alone
        self.folder = self.output.parent / f"{self.output.name}.partial"
        self.states = self.folder / "states"
        self.checkpoint = self.folder / "checkpoint"
        self.replaced = self.folder / "replaced"

    def state_after(self, step: int) -> Path:
        """The folder of the state that was saved after so many optimiser steps."""
        return self.states / f"{_STATE_PREFIX}{step}"

    def latest_state(self) -> Path | None:
        """The newest state that was saved whole."""
        names = (path.parent.name for path in self.states.glob(f"{_STATE_PREFIX}*/{_WHOLE}"))
        steps = [int(name.removeprefix(_STATE_PREFIX)) for name in names]
        return self.state_after(max(steps)) if steps else None

    def remove_incomplete(self) -> None:
        """Remove what a kill left half-written: the result, and states."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        for state in self.states.iterdir():
            if not (state / _WHOLE).exists():
                shutil.rmtree(state)

    def install(self) -> None:
        """Put `checkpoint` in the place of `output` and remove this folder."""
        if self.output.exists():
            self.output.rename(self.replaced)
        try:
            self.checkpoint.rename(self.output)
        finally:
            self.recover()
        self.discard()

    def recover(self) -> None:
        """Put back what was to be replaced, where the replacement did not arrive."""
        if self.replaced.exists() and not self.output.exists():
            self.replaced.rename(self.output)

    def discard(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def mark_whole(state: Path) -> None:
    """Say that a state is complete, once it is."""
    (state / _WHOLE).touch()


def read_state(state: Path) -> TrainerState:
    """Read what the trainer knew when it saved a state: its step, its best epoch and its log."""
    return TrainerState.load_from_json(str(state / _TRAINER_STATE))


def refuse_occupied(run: PartialRun, *, force: bool, resume: bool) -> None:
    """Refuse to write over a checkpoint or an interrupted run, unless told to; over anything else, always.

    Raises:
        CheckpointError: something is where the run would write.
    """
    run.recover()
    if not (force or resume) and run.latest_state() is not None:
        raise CheckpointError(
            f"{run.folder} holds an interrupted run; continue it with --resume or discard it with --force"
        )
    output = run.output
    if os.path.ismount(output):
        raise CheckpointError(
            f"{output} is a mount point, which a checkpoint cannot replace; choose a folder in it as --output"
        )
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not force:
        raise CheckpointError(
            f"{output} exists and is not empty; choose another --output or replace it with --force"
        )
    if not (output / "config.json").is_file():
        raise CheckpointError(
            f"{output} is not a checkpoint (it has no config.json), so --force will not replace it"
        )


@contextmanager
def partial_run(
    run: PartialRun, settings: RunSettings, *, force: bool, resume: bool, console: Console
) -> Iterator[None]:
    """Open the folder of a run, empty or with the states that it is to be resumed from.

    Args:
        run: where it is.
        settings: of the run that is starting.
        force: discard an interrupted run that is there; with `resume`, only one of other settings.
        resume: keep its states, if it was trained by the same settings.
        console: told what remains when the run ends early.

    Raises:
        CheckpointError: the output is occupied; or the folder cannot be written, is in use, or holds an
            interrupted run that was neither to be resumed nor discarded, or had other settings.
    """
    refuse_occupied(run, force=force, resume=resume)
    with _errors_of(run):
        run.output.parent.mkdir(parents=True, exist_ok=True)
        if run.folder.exists() and not _is_of_a_run(run):
            raise CheckpointError(
                f"{run.folder} is in the way, and is not of an interrupted run; move it elsewhere"
            )
        run.folder.mkdir(exist_ok=True)
        with _locked(run.folder):
            _prepare(run, settings, force=force, resume=resume, console=console)
            try:
                yield
            finally:
                _leave(run, console)


def discard_leftover(run: PartialRun, settings: RunSettings) -> None:
    """Remove what is left of a finished run that was killed before it had removed its folder.

    A run of other settings that was interrupted there stays.

    Raises:
        CheckpointError: the folder is in use.
    """
    with _errors_of(run):
        if not _is_of_a_run(run):
            return
        with _locked(run.folder):
            # The settings may be gone, if the removal had begun: the rest is of no use without them.
            stored = stored_settings(run.folder / _SETTINGS)
            if stored is None or not settings.training_differences(stored):
                run.discard()


@contextmanager
def _errors_of(run: PartialRun) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        where = getattr(error, "filename", None) or run.output
        raise CheckpointError(f"{run.output} was not written: {reason} ({where})") from error


def _is_of_a_run(run: PartialRun) -> bool:
    """Tell whether the folder is there, and has nothing in it but what runs leave."""
    names = {_SETTINGS, *(path.name for path in (run.states, run.checkpoint, run.replaced))}
    return run.folder.is_dir() and {path.name for path in run.folder.iterdir()} <= names


def _prepare(run: PartialRun, settings: RunSettings, *, force: bool, resume: bool, console: Console) -> None:
    latest = run.latest_state()
    if resume and latest is None:
        console.print(f"nothing to resume in {run.folder}: starting anew")
    elif resume and latest is not None:
        stored = stored_settings(run.folder / _SETTINGS) or {}
        if (other := _other_run(run, settings, stored)) is None:
            for what, changed in (
                ("in another environment", differences(environment(), stored)),
                ("with other settings", settings.training_differences(stored)),
            ):
                if changed:
                    console.print(
                        f"warning: started {what}: {', '.join(changed)}; the result will be as good, but not "
                        "the same to the bit"
                    )
            run.remove_incomplete()
            console.print(f"resuming after step {latest.name.removeprefix(_STATE_PREFIX)} ({run.folder})")
            return
        what, remedy = other
        if not force:
            raise CheckpointError(f"{what}; {remedy}")
        console.print(f"{what}: discarded, starting anew")
    for path in run.folder.iterdir():
        path.unlink() if path.is_file() else shutil.rmtree(path)
    started = {**asdict(settings), **environment()}
    (run.folder / _SETTINGS).write_text(json.dumps(started, indent=2) + "\n", encoding="utf-8")


def _other_run(run: PartialRun, settings: RunSettings, stored: Mapping[str, Any]) -> tuple[str, str] | None:
    """Tell why what is stored cannot be told to be a run of `settings`, and what to do; None where it is."""
    if stored and "encoder_digest" not in stored:
        return (
            f"{run.folder} was started by an earlier version, which did not record what "
            f"{settings.encoder} held: whether it is the same cannot be told",
            "discard the run with --force",
        )
    if changed := settings.training_differences(stored, in_objective=True):
        return (
            f"{run.folder} was started with other settings: {', '.join(changed)}",
            "give the same ones with --resume, or discard it with --force",
        )
    return None


def _leave(run: PartialRun, console: Console) -> None:
    if not run.folder.exists():
        return
    if run.latest_state() is None:
        run.discard()
    else:
        console.print(f"{run.folder} holds the run so far: the same command with --resume continues it")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the kernel releases if this process dies."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            flock(descriptor, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(f"another process is training in {folder}: wait for it to end") from None
        yield
    finally:
        os.close(descriptor)
