"""The commands `report diff` and `report show`: what changed between two reports, and one of them again."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sparse_serve.cli.options import Verbose, make_output_folder, table_console
from sparse_serve.cli.variants import variants_named
from sparse_serve.errors import GateError, in_brief
from sparse_serve.extras import needing
from sparse_serve.report.comparison import compare
from sparse_serve.report.document import read_report
from sparse_serve.report.files import write_report
from sparse_serve.report.terminal import show_comparison, show_report


def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="The report.json that is held to.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="The report.json that is judged.")],
    *,
    variants: Annotated[str, typer.Option(metavar="NAME,...", help="What is compared.")] = "model,text",
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="Percent below which a change is noise whatever the servers say.")
    ] = 0.0,
    max_loss: Annotated[
        float, typer.Option(min=0.0, help="How much of the task's metric may be lost.")
    ] = 0.005,
    as_json: Annotated[
        bool, typer.Option("--json", envvar="SPARSE_SERVE_JSON", help="Differences and cautions as JSON.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Say what changed between two reports beyond their noise; exit 3 where something became worse."""
    comparison = compare(
        read_report(before), read_report(after), variants_named(variants), tolerance / 100, max_loss
    )
    for caution in comparison.cautions:
        print(f"caution: {in_brief(caution)}", file=sys.stderr)
    if as_json:
        print(json.dumps(asdict(comparison) | {"worse": len(comparison.regressions)}, indent=2))
    else:
        show_comparison(comparison, table_console())
    if comparison.regressions:
        named = [f"{each.what}: {each.figure}" for each in comparison.regressions[:3]]
        more = len(comparison.regressions) - len(named)
        rest = f" and {more} more" if more else ""
        raise GateError(
            f"{after} is worse than {before}, beyond the noise of both or --max-loss, in "
            f"{'; '.join(named)}{rest}: see the table"
        )


def show(
    report: Annotated[Path, typer.Argument(metavar="REPORT", help="A report.json of profile.")],
    *,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir",
            envvar="SPARSE_SERVE_REPORT_SHOW_OUTPUT_DIR",
            help="Write report.json, report.csv and report.html anew into this folder.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", envvar="SPARSE_SERVE_JSON", help="Print it as JSON, of today's schema.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Show a report on the terminal, or draw its page anew."""
    found = read_report(report)
    if output_dir is not None:
        with needing("report show --output-dir", "report"):  # what draws
            import sparse_serve.report.page  # noqa: F401, PLC0415
        make_output_folder(output_dir)
        for path in write_report(found, output_dir):
            print(f"wrote {path}", file=sys.stderr)
    if as_json:
        print(found.to_json(), end="")
    elif output_dir is None:
        show_report(found, table_console())
