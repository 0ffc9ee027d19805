"""Commands that are imported when they are asked for: none waits for what the others need."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from sparse_serve.errors import MissingPackageError
from sparse_serve.extras import needing

# Every option of every command is also read from SPARSE_SERVE_<OPTION>, or from a variable of its own.
CONTEXT: dict[str, Any] = {"auto_envvar_prefix": "SPARSE_SERVE"}

# Whatever the options are.
_ANYTHING: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}


class _Later(TyperCommand):
    """Stands for a command that is not imported yet. Its callback imports that and returns it."""


class CommandGroup(TyperGroup):
    """What an app's commands are a group of (`typer.Typer(cls=CommandGroup)`), for `add_command`."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name, imported; None if there is none."""
        command = super().get_command(ctx, cmd_name)
        if isinstance(command, _Later) and command.callback is not None:
            command = self.commands[cmd_name] = command.callback()
        return command


def add_command(app: typer.Typer, name: str, path: str, *, extras: str | None = None) -> None:
    """Add a command to an app.

    Args:
        app: of the class `CommandGroup`; it becomes a command of this.
        name: what it is called.
        path: `module:function`, imported when somebody asks for the command, or for help on all of them.
            Where the module needs a package that is not installed, the command is there and says what brings
            it.
        extras: that bring it; None where `sparse-serve` alone does.
    """

    @app.command(name, cls=_Later)
    def imported() -> Any:
        module, _, function = path.partition(":")
        try:
            with needing(name, extras or ""):
                return _command(name, getattr(import_module(module), function), context_settings=CONTEXT)
        except MissingPackageError as error:
            if extras is None:
                raise
            told = f"Not installed here; the extras {extras} of sparse-serve bring it."
            return _command(name, _failing(error), context_settings=_ANYTHING, help=told)


def _command(name: str, function: Callable[..., None], **settings: Any) -> Any:
    alone = typer.Typer(add_completion=False)
    alone.command(name, **settings)(function)
    command: Any = typer.main.get_command(alone)
    for parameter in command.params:
        parameter.split_envvar_value = _lines
        # Or it would be read from that of its name as well, where this means another thing to other commands.
        parameter.allow_from_autoenv = parameter.envvar is None
    return command


def _lines(value: str) -> list[str]:
    """Split a variable of an option that may be repeated: a header, a text or a path has blanks itself."""
    return [line for line in value.splitlines() if line.strip()]


def _failing(error: MissingPackageError) -> Callable[..., None]:
    """Return a command in the place of one that cannot be imported."""

    def command(context: typer.Context) -> None:
        raise error

    return command
