"""The commands of the serving side, each of a module of its own that is imported when it is called."""

import typer

from sparse_serve.cli.commands import CommandGroup, add_command
from sparse_serve.cli.options import run
from sparse_serve.scoring import EXTRAS

__all__ = ["app", "run"]

app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
reports = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    help="What changed between two reports of profile, or one again.",
)
# A group is listed after the commands of its app: a group without a name has those that come after `report`.
others = typer.Typer(cls=CommandGroup)

add_command(app, "serve", "sparse_serve.cli.serve:serve", extras="serve")
add_command(app, "classify", "sparse_serve.cli.classify:classify")
add_command(app, "profile", "sparse_serve.cli.profile:profile_command", extras="serve,report")
add_command(reports, "diff", "sparse_serve.cli.report:diff", extras="entries")
add_command(reports, "show", "sparse_serve.cli.report:show", extras="entries")
app.add_typer(reports, name="report")
add_command(others, "score", "sparse_serve.cli.score:score", extras=EXTRAS)
add_command(others, "deploy", "sparse_serve.cli.deploy:deploy", extras="cpu")
add_command(others, "check", "sparse_serve.cli.check:check", extras="cpu")
add_command(others, "info", "sparse_serve.cli.info:info", extras="cpu")
app.add_typer(others)
