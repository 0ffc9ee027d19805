"""Every option of every command is also an environment variable."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from sparse_export.cli import app

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def walked(commands: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every command, those of groups too."""
    for name, command in commands.items():
        if hasattr(command, "commands"):
            yield from walked(command.commands)
        else:
            yield name, command


OPTIONS = [
    pytest.param(command, option, id=f"{name} {option.opts[-1]}")
    for name, command in walked(COMMANDS)
    for option in command.params
    if option.param_type_name == "option"
]

# `classify --url` asks a server; `profile --url` decides what is measured. One variable must not mean both.
OF_ANOTHER_NAME = {("profile", "--url"): "SPARSE_SERVE_PROFILE_URL"}


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_an_option_reads_the_variable_of_its_name(
    command: typer.core.TyperCommand, option: typer.core.TyperOption, monkeypatch: pytest.MonkeyPatch
) -> None:
    (long,) = (name for name in option.opts if name.startswith("--"))
    variable = OF_ANOTHER_NAME.get(
        (command.name or "", long), f"SPARSE_SERVE_{long.removeprefix('--').replace('-', '_').upper()}"
    )
    monkeypatch.setenv(variable, "from outside")
    context = command.make_context(command.name, [], resilient_parsing=True)
    assert option.resolve_envvar_value(context) == "from outside"


def test_all_commands_were_walked() -> None:
    own = {"finetune", "export", "inspect"}
    assert set(COMMANDS) == own | {
        "serve",
        "classify",
        "score",
        "profile",
        "report",
        "deploy",
        "check",
        "info",
    }
