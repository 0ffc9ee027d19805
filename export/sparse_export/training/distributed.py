"""One run in several processes, started by `torchrun` or `accelerate launch`: who speaks, who ends when."""

import atexit
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import (
    broadcast_object_list,
    gather_object,
)
from rich.console import Console

from sparse_export.training.options import TrainingOptions
from sparse_serve.errors import OptionError, SparseServeError

Shared = TypeVar("Shared")

ENDED_BY_LAUNCHER = 128 + signal.SIGTERM
"""The exit status of a process that SIGTERM ends."""

TOGETHER_WITHIN = timedelta(days=1)
"""How long processes wait for each other: the first of them tries a result on rows while the others wait."""

# How long the launcher's store is waited for. It may be gone.
_STORE_ANSWERS = timedelta(seconds=5)


def on_cpu() -> bool:
    """Whether this machine has nothing faster than its CPU to train on."""
    return not torch.accelerator.is_available()


def is_first_process() -> bool:
    """Whether this is the process that speaks and writes; known before it has joined the others."""
    return int(os.environ.get("RANK", "0")) == 0


def join_processes() -> PartialState:
    """Join the processes that the launcher started along with this one; alone where there was no launcher."""
    state = PartialState(cpu=on_cpu(), timeout=TOGETHER_WITHIN)
    atexit.unregister(_leave)  # of an earlier run of this process
    atexit.register(_leave)
    return state


def _leave() -> None:
    """End the connections before the interpreter does, which would abort the process."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def warn_of_idle_devices(processes: int, console: Console) -> None:
    """Say that a run uses one of several accelerators, and how it would use all."""
    devices = 0 if on_cpu() else torch.accelerator.device_count()
    if processes == 1 and devices > 1:
        console.print(
            f"warning: {devices} devices are here and one of them trains; to use all: torchrun "
            f"--nproc-per-node {devices} --no-python sparse-serve finetune …"
        )


def rows_per_pass(options: TrainingOptions, processes: int) -> int:
    """Return how many rows a process computes at once, so that all make up `options.batch_size`.

    Raises:
        OptionError: the batch cannot be divided equally.
    """
    parts = processes * options.gradient_accumulation_steps
    if options.batch_size % parts:
        raise OptionError(
            f"--batch-size is {options.batch_size}; it is the rows of one step over all processes, and must "
            f"be a multiple of {parts}: processes ({processes}) times --gradient-accumulation-steps "
            f"({options.gradient_accumulation_steps})"
        )
    return options.batch_size // parts


def shared(value: Shared) -> Shared:
    """Return the first process's `value` in every process."""
    return broadcast_object_list([value])[0]  # type: ignore[no-any-return]


@contextmanager
def said_once() -> Iterator[None]:
    """Raise an error that all processes make alike, before they have joined, in one of them alone."""
    try:
        yield
    except SparseServeError as error:
        if _is_first_to_say():
            raise
        raise SystemExit(error.exit_status) from error


@contextmanager
def one_line() -> Iterator[None]:
    """Have what ends a run of several processes be said by one of them, whichever it is that is left.

    The launcher ends all processes (SIGTERM, here `SystemExit`) as soon as one has ended. That may come
    before a process has seen for itself that another is gone, and while it is about to say what is wrong.

    Raises:
        SparseServeError: what is to be said.
    """
    try:
        yield
    except SparseServeError:
        _finish_undisturbed()
        raise
    except SystemExit as ended:
        if ended.code != ENDED_BY_LAUNCHER or _world_size() == 1 or isinstance(ended.__context__, SystemExit):
            raise
        about_to_say = isinstance(ended.__context__, SparseServeError)
        if not (about_to_say or _is_first_to_say()):
            raise
        _finish_undisturbed()
        if about_to_say:
            raise ended.__context__ from None  # type: ignore[misc]  # checked above
        raise SparseServeError(
            f"the launcher has ended this run of {_world_size()} processes: it was told to, or one of them "
            "has ended: see what that one said, or what the launcher says of it"
        ) from None


def _world_size() -> int:
    """Return how many processes the launcher says there are; known before they have joined."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _is_first_to_say() -> bool:
    """Tell whether this process is the one to say what ends all of them: the first that asks.

    The launcher's store knows, which outlives any of the processes.
    """
    if _world_size() == 1:
        return True
    try:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        # As torch types it, the class is private; as it documents it, it is not.
        store = torch.distributed.TCPStore(  # type: ignore[attr-defined]
            address, port, is_master=False, timeout=_STORE_ANSWERS
        )
        start, rank = (os.environ.get(name, "0") for name in ("TORCHELASTIC_RESTART_COUNT", "RANK"))
        first = store.compare_set(f"sparse_serve/says_the_error/{start}", "", rank)
    except (KeyError, RuntimeError):  # no such store, or not yet, or no more
        return is_first_process()
    return bool(first.decode() == rank)


def _finish_undisturbed() -> None:
    """Ignore the launcher's signal while the error is on its way out."""
    if _world_size() > 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


@contextmanager
def agreed() -> Iterator[None]:
    """Let all processes past the block, or none: one that failed raises, the others exit in silence."""
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    state = PartialState()
    with ending_together():
        statuses: list[int | None] = gather_object([None if failure is None else _exit_status(failure)])
    failed = [process for process, status in enumerate(statuses) if status is not None]
    if failed and failed[0] != state.process_index:
        raise SystemExit(statuses[failed[0]])
    if failure is not None:
        raise failure


@contextmanager
def ending_together() -> Iterator[None]:
    """Report what ends a training step once, though it ends every process.

    Raises:
        SparseServeError: another process is gone, for a reason that only it can tell.
    """
    state = PartialState()
    try:
        yield
    except SparseServeError as error:  # follows from figures that all processes share
        if _is_first_to_say():
            raise
        raise SystemExit(error.exit_status) from error
    except RuntimeError as error:
        if state.num_processes == 1 or not _is_lost_connection(error):
            raise
        if _is_first_to_say():
            raise SparseServeError(
                f"another of the {state.num_processes} processes has ended, so training cannot go on: see "
                "what it said, or what the launcher says of it"
            ) from error
        raise SystemExit(1) from error


def _exit_status(error: Exception) -> int:
    return error.exit_status if isinstance(error, SparseServeError) else SparseServeError.exit_status


def _is_lost_connection(error: RuntimeError) -> bool:
    # Gloo has no error class of its own.
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error).lower()
