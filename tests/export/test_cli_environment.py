"""Every option of every command is also an environment variable."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from command_line import outcome
from sparse_export.cli import app

PROGRAM: Any = typer.main.get_command(app)


def walked(group: Any) -> Iterator[tuple[str, Any]]:
    """Every command, those of groups too."""
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "commands"):
            yield from walked(command)
        else:
            yield name, command


FOUND = [
    (name, command, option)
    for name, command in walked(PROGRAM)
    for option in command.params
    if option.param_type_name == "option"
]
OPTIONS = [pytest.param(command, option, id=f"{name} {option.opts[-1]}") for name, command, option in FOUND]

# `classify --url` asks a server; `profile --url` decides what is measured. `--task` is what a model learns or
# answers, elsewhere one of its tasks; `--text-pair` is whether there are pairs, elsewhere the second texts.
# `finetune --attention` trains a model; `export --attention` puts another into it. What `finetune --force`
# replaces is no version of an entry, and its batches are steps, not requests. What `deploy` writes over,
# publishes or gives a server is not what others do, nor is where `report show` draws a report where `profile`
# writes a new one. One variable must not mean both.
OF_ANOTHER_NAME = {
    ("finetune", "--task"): "SPARSE_SERVE_FINETUNE_TASK",
    ("finetune", "--batch-size"): "SPARSE_SERVE_FINETUNE_BATCH_SIZE",
    ("finetune", "--force"): "SPARSE_SERVE_FINETUNE_FORCE",
    ("export", "--task"): "SPARSE_SERVE_EXPORT_TASK",
    ("export", "--attention"): "SPARSE_SERVE_EXPORT_ATTENTION",
    ("export", "--lambda"): "SPARSE_SERVE_EXPORT_LAMBDA",
    ("export", "--text-pair"): "SPARSE_SERVE_EXPORT_TEXT_PAIR",
    ("profile", "--url"): "SPARSE_SERVE_PROFILE_URL",
    ("profile", "--ca-certificates"): "SPARSE_SERVE_PROFILE_CA_CERTIFICATES",
    ("deploy", "--force"): "SPARSE_SERVE_DEPLOY_FORCE",
    ("deploy", "--gpus"): "SPARSE_SERVE_DEPLOY_GPUS",
    ("deploy", "--host"): "SPARSE_SERVE_DEPLOY_HOST",
    ("deploy", "--http-port"): "SPARSE_SERVE_DEPLOY_HTTP_PORT",
    ("deploy", "--grpc-port"): "SPARSE_SERVE_DEPLOY_GRPC_PORT",
    ("deploy", "--output-dir"): "SPARSE_SERVE_DEPLOY_OUTPUT_DIR",
    ("show", "--output-dir"): "SPARSE_SERVE_REPORT_SHOW_OUTPUT_DIR",
}


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


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_an_option_with_a_variable_of_its_own_reads_no_other(
    command: typer.core.TyperCommand, option: typer.core.TyperOption, monkeypatch: pytest.MonkeyPatch
) -> None:
    (long,) = (name for name in option.opts if name.startswith("--"))
    for name in {long.removeprefix("--").replace("-", "_"), option.name or ""}:
        monkeypatch.setenv(f"SPARSE_SERVE_{name.upper()}", "from outside")
    if option.envvar is not None:
        monkeypatch.delenv(str(option.envvar), raising=False)
        context = command.make_context(command.name, [], resilient_parsing=True)
        assert option.resolve_envvar_value(context) is None


REPEATED = {
    f"{name} {option.opts[-1]}": (command, option) for name, command, option in FOUND if option.multiple
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_variable_has_a_line_for_each_time_that_an_option_is_repeated(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, option = REPEATED[name]
    context = command.make_context(command.name, [], resilient_parsing=True)
    variable = option.envvar or f"SPARSE_SERVE_{option.name.upper()}"
    monkeypatch.setenv(variable, "Authorization: Bearer a b\n\nX-Tenant: c\n")
    assert option.value_from_envvar(context) == ["Authorization: Bearer a b", "X-Tenant: c"]


def test_there_are_options_that_are_repeated() -> None:
    assert set(REPEATED) >= {"classify --header", "score --input", "inspect --text-pair"}


def test_all_commands_were_walked() -> None:
    """In the order of the root's help: each beside those that it is used with."""
    assert PROGRAM.list_commands(typer.Context(PROGRAM)) == [
        "finetune",
        "export",
        "inspect",
        "serve",
        "classify",
        "profile",
        "report",
        "score",
        "deploy",
        "check",
        "info",
    ]


# Options that the first panel has, which is not of one subject.
WITHOUT_PANEL = {
    "export": {"--model-repository", "--name", "--json", "--verbose"},
    "profile": {"--model-repository", "--verbose"},
}


@pytest.mark.parametrize("command", WITHOUT_PANEL)
def test_the_help_of_many_options_has_them_in_panels(command: str) -> None:
    context = typer.Context(PROGRAM)
    options = [
        each for each in PROGRAM.get_command(context, command).params if each.param_type_name == "option"
    ]
    assert {each.opts[-1] for each in options if each.rich_help_panel is None} == WITHOUT_PANEL[command]


def test_columns_have_the_same_names_everywhere() -> None:
    """Where rows may be of questions or words; `score` and `inspect` read texts alone."""
    told: dict[str, set[str]] = {}
    for name, command in walked(PROGRAM):
        if name not in {"score", "inspect"}:
            for option in command.params:
                if option.opts[-1].endswith("-column") and isinstance(option.show_default, str):
                    told.setdefault(option.opts[-1], set()).add(option.show_default)
    assert told == {
        "--text-column": {"text_a; for questions question, for words tokens"},
        "--text-pair-column": {"text_b, where there is one; for questions context"},
        "--label-column": {"label; for questions answer, for words tags"},
    }


def test_metrics_tell_where_texts_become_tokens() -> None:
    export = PROGRAM.get_command(typer.Context(PROGRAM), "export")
    (metrics,) = (option for option in export.params if "--metrics" in option.opts)
    assert metrics.help.endswith("Implies --tokenizer server.")


def test_a_checkpoint_that_is_profiled_is_exported_by_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What exports is this program, started anew: torch does not come into the one that measures."""
    called: list[list[str]] = []

    def started(command: list[str], **_options: object) -> subprocess.CompletedProcess[str]:
        called.append(command)
        return subprocess.CompletedProcess(command, 1, None, "error: enough")

    monkeypatch.setattr(subprocess, "run", started)
    status, _, errors = outcome(capsys, app, "profile", "trained/reviews", f"--output-dir={tmp_path}")
    assert status == 1
    assert "checkpoint trained/reviews could not be exported: enough" in errors
    (command,) = called
    program = "from sparse_export.cli import main; main()"
    assert command[:6] == [sys.executable, "-P", "-c", program, "export", "trained/reviews"]
