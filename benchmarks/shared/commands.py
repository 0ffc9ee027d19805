"""The commands that benchmarks run, and how they end: with the benchmark, whatever ends it."""

import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import AnyStr

COMMAND = Path(sysconfig.get_path("scripts"), "sparse-serve")


def exit_on_sigterm() -> None:
    """Have SIGTERM end this process as `sys.exit` does, so that what it has started is ended first."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


@contextmanager
def ending(process: "subprocess.Popen[AnyStr]") -> Iterator["subprocess.Popen[AnyStr]"]:
    """Tell a process to end behind the block, and wait until it has."""
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def run(*arguments: str) -> None:
    """Run a command of `sparse-serve`, and end where it fails."""
    with ending(subprocess.Popen([COMMAND, *arguments])) as process:
        status = process.wait()
    if status:
        raise SystemExit(status)
