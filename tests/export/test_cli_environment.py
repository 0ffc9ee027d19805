"""Every option of every command is also an environment variable."""

import pytest
import typer

from sparse_export.cli import app

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OPTIONS = [
    pytest.param(command, option, id=f"{name} {option.opts[-1]}")
    for name, command in COMMANDS.items()
    for option in command.params
    if option.param_type_name == "option"
]


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_an_option_reads_the_variable_of_its_name(
    command: typer.core.TyperCommand, option: typer.core.TyperOption, monkeypatch: pytest.MonkeyPatch
) -> None:
    (long,) = (name for name in option.opts if name.startswith("--"))
    variable = f"SPARSE_SERVE_{long.removeprefix('--').replace('-', '_').upper()}"
    monkeypatch.setenv(variable, "from outside")
    context = command.make_context(command.name, [], resilient_parsing=True)
    assert option.resolve_envvar_value(context) == "from outside"


def test_all_commands_were_walked() -> None:
    own = {"finetune", "export", "inspect"}
    assert set(COMMANDS) == own | {"serve", "classify", "score", "profile", "deploy", "check", "info"}
