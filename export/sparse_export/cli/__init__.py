"""The command `sparse-serve`: the model side's commands and, mounted beside them, the serving side's.

Importing this module loads no torch, so that the command works on a machine that only serves.
"""

import sys

import typer

from sparse_serve.cli import app as serving
from sparse_serve.cli.commands import CommandGroup, add_command
from sparse_serve.cli.options import Program, Version, run

_EXTRAS = "export,cpu"

app = typer.Typer(
    cls=CommandGroup,
    name="sparse-serve",
    help="Train, export and serve sparse-attention text classifiers with Triton, and measure what is saved.",
    no_args_is_help=True,
    add_completion=False,
)
add_command(app, "finetune", "sparse_export.cli.finetune:finetune_command", extras=_EXTRAS)
add_command(app, "export", "sparse_export.cli.export:export_command", extras=_EXTRAS)
add_command(app, "inspect", "sparse_export.cli.inspect:inspect_command", extras=_EXTRAS)
app.add_typer(serving)


@app.callback()
def root(context: typer.Context, version: Version = False) -> None:
    """Take the options that come before a command."""
    context.obj = Program((sys.executable, "-c", f"from {__name__} import main; main()"))


def main() -> None:
    """Run the command line; errors are one line on stderr, exit statuses as the README lists them."""
    run(app)
