"""The command `sparse-serve`: the model side's commands and, mounted beside them, the serving side's.

Importing this module loads no torch, so that the command works on a machine that only serves.
"""

import sys

import typer

from sparse_export.cli.options import EXTRAS
from sparse_serve.cli import app as serving
from sparse_serve.cli.commands import CommandGroup, add_command
from sparse_serve.cli.options import Program, Version, run

app = typer.Typer(
    cls=CommandGroup,
    name="sparse-serve",
    help="Train, export and serve BERT-style models (classification, question answering, entities, "
    "embeddings) with Triton, with sparse attention where wanted, and measure what that saves.",
    no_args_is_help=True,
    add_completion=False,
)
add_command(app, "finetune", "sparse_export.cli.finetune:finetune_command", extras=EXTRAS)
add_command(app, "export", "sparse_export.cli.export:export_command", extras=EXTRAS)
add_command(app, "inspect", "sparse_export.cli.inspect:inspect_command", extras=EXTRAS)
app.add_typer(serving)


@app.callback()
def root(context: typer.Context, version: Version = False) -> None:
    """Take the options that come before a command."""
    # Nothing is imported from the current folder (-P), as by the program itself.
    context.obj = Program((sys.executable, "-P", "-c", f"from {__name__} import main; main()"))


def main() -> None:
    """Run the command line; errors are one line on stderr, exit statuses as the README lists them."""
    run(app)
