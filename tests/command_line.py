"""Command lines, run in this process or in one of their own."""

import sys

import pytest
import typer

from sparse_serve.cli.options import run

_SERVING = "from sparse_serve.cli import app, run; run(app)"


def exit_status(app: typer.Typer, *arguments: object) -> int:
    """Run a command line of an app in this process; the exit status."""
    with pytest.raises(SystemExit) as ended:
        run(app, [str(argument) for argument in arguments])
    status = ended.value.code
    assert isinstance(status, int)
    return status


def outcome(
    capture: pytest.CaptureFixture[str], app: typer.Typer, *arguments: object
) -> tuple[int, str, str]:
    """Run a command line of an app in this process; the exit status, stdout and stderr."""
    status = exit_status(app, *arguments)
    output, errors = capture.readouterr()
    return status, output, errors


def own_process(*arguments: object) -> list[str]:
    """What starts a command of the serving side in a process of its own."""
    return [sys.executable, "-c", _SERVING, *map(str, arguments)]
