"""The command `sparse-serve`: the model side's commands and, mounted beside them, the serving side's.

Importing this module loads no torch, so that the command works on a machine that only serves.
"""

import typer

from sparse_export.cli.export import export_command
from sparse_export.cli.finetune import finetune_command
from sparse_export.cli.inspect import inspect_command
from sparse_serve.cli import app as serving
from sparse_serve.cli_options import CONTEXT, Version, run

app = typer.Typer(
    name="sparse-serve",
    help="Train, export and serve sparse-attention text classifiers with Triton, and measure what is saved.",
    no_args_is_help=True,
    add_completion=False,
)
app.command("finetune", context_settings=CONTEXT)(finetune_command)
app.command("export", context_settings=CONTEXT)(export_command)
app.command("inspect", context_settings=CONTEXT)(inspect_command)
app.add_typer(serving)


@app.callback()
def root(version: Version = False) -> None:
    """Take the options that come before a command."""


def main() -> None:
    """Run the command line; errors are one line on stderr, exit statuses as the README lists them."""
    run(app)
