"""The commands of the serving side, each of a module of its own."""

import typer

from sparse_serve.cli_options import add_command, run
from sparse_serve.scoring import EXTRAS

__all__ = ["app", "run"]

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

add_command(app, "serve", "sparse_serve.cli_serve:serve", extras="serve")
add_command(app, "classify", "sparse_serve.cli_classify:classify")
add_command(app, "profile", "sparse_serve.cli_profile:profile_command", extras="serve,report")
add_command(app, "score", "sparse_serve.cli_score:score", extras=EXTRAS)
add_command(app, "deploy", "sparse_serve.cli_deploy:deploy", extras="serve")
add_command(app, "check", "sparse_serve.cli_check:check", extras="serve")
add_command(app, "info", "sparse_serve.cli_info:info", extras="serve")
