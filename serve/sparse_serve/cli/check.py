"""`sparse-serve check`: an entry of a model repository held against what serves it, without a server."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from sparse_serve.cli.options import DEFAULT_REPOSITORY, Verbose, table_console
from sparse_serve.errors import RepositoryError
from sparse_serve.repository.check import Finding, Level, check_entry
from sparse_serve.repository.entries import is_entry
from sparse_serve.repository.releases import DEFAULT_RELEASE


def check(
    entry: Annotated[Path, typer.Argument(metavar="DIR/NAME", help="Public folder of an entry.")],
    triton: Annotated[str, typer.Option(help="Triton release to check against.")] = DEFAULT_RELEASE,
    as_json: Annotated[
        bool, typer.Option("--json", envvar="SPARSE_SERVE_JSON", help="Findings as JSON.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Validate a repository entry without a server."""
    _require_path(entry)
    findings = check_entry(entry, triton)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        table_console().print(_findings_table(findings))
    errors = sum(finding.level is Level.error for finding in findings)
    if errors:
        raise RepositoryError(
            f"entry {entry} is not fit to serve: {errors} of {len(findings)} findings are errors"
        )


def _require_path(entry: Path) -> None:
    """Refuse the bare name of an entry that `export` wrote where it writes by default.

    Raises:
        RepositoryError: says the path, or why it cannot be read.
    """
    path = DEFAULT_REPOSITORY / entry
    if not is_entry(entry) and is_entry(path):
        raise RepositoryError(
            f"{entry} is no entry of a model repository, where its path is taken: give check {path}"
        )


def _findings_table(findings: list[Finding]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("level", "check", "message"):
        table.add_column(column)
    for finding in findings:
        table.add_row(finding.level, Text(finding.check), Text(finding.message))
    return table
