"""`sparse-serve info`: what is installed here."""

import json
from typing import Annotated, Any

import typer

from sparse_serve.cli.options import Verbose
from sparse_serve.info import read_info


def info(
    as_json: Annotated[bool, typer.Option("--json", envvar="SPARSE_SERVE_JSON", help="As JSON.")] = False,
    verbose: Verbose = False,
) -> None:
    """Show versions, devices, the op library and the Triton that `serve` would start."""
    found = read_info()
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for title, part in found.items():
        print(f"{title}:")
        for line in _lines(part):
            print(f"  {line}")


def _lines(part: dict[str, Any]) -> list[str]:
    width = max(map(len, part))
    return [f"{key:{width}}  {_shown(value)}" for key, value in part.items()]


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    if isinstance(value, list) and value:
        return "; ".join(map(_shown, value))
    return str(value) if value else "none"
