"""Options from a YAML file, in the place of their defaults: command line and environment come first."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sparse_export.yaml_file import read_yaml
from sparse_serve.errors import OptionError

# A nested option would be none of a command line.
_Value = str | int | float | bool


def _read(context: typer.Context, path: Path | None) -> Path | None:
    if path is None or context.resilient_parsing:
        return path
    known = {
        parameter.name: parameter.name.replace("_", "-")
        for parameter in context.command.params
        if parameter.name not in (None, "config", "verbose")
    }
    by_option = {_option(parameter): parameter.name for parameter in context.command.params}
    values = {}
    for key, value in _load(path).items():
        name = by_option.get(str(key).replace("_", "-"))
        if name not in known:
            options = ", ".join(sorted(option for option, each in by_option.items() if each in known))
            raise OptionError(f"{path}: there is no option {key!r:.80}; there are {options}")
        values[name] = _value(path, str(key), value)
    context.default_map = {**(context.default_map or {}), **values}
    return path


def _option(parameter: Any) -> str:
    """Return what an option is called on the command line, without dashes; an argument by its name."""
    longest: str = max(parameter.opts, key=len)
    return longest.lstrip("-").replace("_", "-")


def _load(path: Path) -> dict[Any, Any]:
    content = read_yaml("config", path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise OptionError(
            f"--config {path} holds a {type(content).__name__}; give options by name: epochs: 3"
        )
    return content


def _value(path: Path, key: str, value: object) -> object:
    """Return a value as a command line gives it: lists with commas between their items."""
    if isinstance(value, list) and all(isinstance(each, _Value) for each in value):
        return ",".join(map(str, value))
    if isinstance(value, _Value):
        return value if isinstance(value, bool) else str(value)
    raise OptionError(
        f"{path}: {key} is {value!r:.80}; a number, a text, true or false is needed, or a list of such"
    )


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=_read,
        is_eager=True,
        metavar="FILE",
        help="YAML file with options by their names: epochs: 3. What the command line says comes first.",
        show_default=False,
        rich_help_panel="Run",
    ),
]
