"""Processes forked from one that has imported the model side, which costs most of starting a command."""

import gc
import multiprocessing
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType

import psutil
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["sparse_export.cli", "sparse_export.multitask", "sparse_export.pretraining", "sparse_export.training"]
)


class Forked:
    """A function of a module in a process of its own, which is killed where its block is left.

    Attributes:
        stderr: what it says, as it says it.
    """

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        """Start it."""
        reader, writer = multiprocessing.Pipe(duplex=False)
        self._stdout = tempfile.NamedTemporaryFile()  # noqa: SIM115  closed with the block
        self._process = _CONTEXT.Process(target=_run, args=(self._stdout.name, writer, function, *arguments))
        self._process.start()
        writer.close()
        self.stderr = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")
        reader.close()

    def __enter__(self) -> "Forked":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stderr.close()
        self._stdout.close()
        self._process.kill()
        self._process.join()

    @property
    def pid(self) -> int:
        """The process's number."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, or a signal's number below 0; None while it runs."""
        return self._process.exitcode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for the end; return what it wrote to stdout, and what to stderr since that was read.

        What has not ended after so many seconds is killed, with all that it started.
        """
        timer = threading.Timer(timeout, self._kill)
        timer.start()
        said = self.stderr.read()
        self._process.join()
        timer.cancel()
        return self._stdout.read().decode(), said

    def _kill(self) -> None:
        for process in psutil.Process(self.pid).children(recursive=True):
            process.kill()
        self._process.kill()


def _run(stdout: str, stderr: Connection, function: Callable[..., object], *arguments: object) -> None:
    """Be the process."""
    gc.freeze()  # what is imported: a tiny training would have the collector look through it for long
    os.dup2(stderr.fileno(), sys.stderr.fileno())
    stderr.close()
    os.dup2(os.open(stdout, os.O_WRONLY), sys.stdout.fileno())
    function(*arguments)


def launch(run: Callable[..., None], *arguments: object) -> None:
    """Have two processes do the same, and end as `torchrun --standalone --nproc-per-node 2` does."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id="tests",
        max_restarts=0,
        start_method="fork",
    )
    elastic_launch(config, run)(*arguments)


def sparse_serve(*arguments: str) -> None:
    """Run the command line."""
    from sparse_export.cli import main  # noqa: PLC0415

    sys.argv = ["sparse-serve", *arguments]
    main()
