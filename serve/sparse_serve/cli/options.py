"""What all commands share: options that several have, verbosity, and one way to fail."""

import logging
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer
from rich.console import Console

from sparse_serve import __version__
from sparse_serve.errors import OptionError, SparseServeError

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

_logger = logging.getLogger("sparse_serve")


def _set_verbosity(verbose: bool) -> bool:
    if verbose:
        logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
        _logger.setLevel(logging.DEBUG)
    return verbose


Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", callback=_set_verbosity, is_eager=True, help="Details of errors and logs on stderr."
    ),
]

ModelRepository = Annotated[Path, typer.Option("--model-repository", help="Triton model repository.")]
DEFAULT_REPOSITORY = Path("model_repository")

Task = Annotated[
    str | None, typer.Option("--task", help="The task of the texts, where the model has several.")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"sparse-serve {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
]


@dataclass(frozen=True)
class Program:
    """The whole program, as a command may start it anew: `arguments` go before those of the command line.

    The model side gives it to the commands of this one, which knows nothing of it.
    """

    arguments: tuple[str, ...]


# Rows of a table that is read by a program are not to be folded.
_WIDTH_OF_FILES = 10_000


def table_console(*, stderr: bool = False) -> Console:
    """Return a console for tables on stdout or stderr, folded to a terminal's width and to no other."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=_WIDTH_OF_FILES)


def given(context: typer.Context, names: Iterable[str]) -> Iterator[str]:
    """Yield those of the parameters that the command line itself has, and not the environment."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            yield name


def read_size(option: str, text: str, most: int = 1 << 40) -> int:
    """Return the bytes that an option says: a number, whole or not, with b, k, m or g behind it.

    Raises:
        OptionError: it is none, or above `most`.
    """
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([bkmg]?)", text.lower())
    size = round(float(match[1]) * _UNITS[match[2]]) if match else 0
    if not 0 < size <= most:
        raise OptionError(
            f"--{option} '{text}' is no size up to {most >> 30}g: give a number with b, k, m or g behind it, "
            "such as 4m or 1.5g"
        )
    return size


def make_output_folder(path: Path) -> None:
    """Make the folder of `--output-dir` and see that it can be written: before the work, not after it.

    Raises:
        SparseServeError: it cannot.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise SparseServeError(
            f"--output-dir {path} cannot be written: {error.strerror}; give another"
        ) from error


def run(app: typer.Typer, args: Sequence[str] | None = None) -> None:
    """Run a command line (default: the process's own) and exit with the status of the contract.

    0 done; 1 failed; 2 the command line is wrong; 3 a gate was not met; 130 interrupted. An error is one
    line on stderr, with a traceback only under `--verbose`.
    """
    # ONNX Runtime's wheels report usage over the network unless told not to, before they are imported.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    sys.exit(_status(app, args))


def _status(app: typer.Typer, args: Sequence[str] | None) -> int:
    try:
        result = typer.main.get_command(app).main(
            args=None if args is None else list(args), standalone_mode=False
        )
    except typer.TyperException as error:
        # Of a value that is none of a type's, pydantic says first that it is an error.
        return _fail(error.format_message().replace(": Value error, ", ": ", 1), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except SparseServeError as error:
        return _fail(str(error), error.exit_status)
    except Exception as error:  # the promise of one line holds for our own mistakes too
        return _fail(f"internal error: {type(error).__name__}: {error}; run again with --verbose", 1)
    return result if isinstance(result, int) else 0


def _fail(message: str, status: int) -> int:
    if _logger.isEnabledFor(logging.DEBUG):
        traceback.print_exc()
    if message:
        line = " ".join(message.split())
        # What a broken file holds is shown, but does not reach the terminal as control characters.
        shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)
        print("error:", shown, file=sys.stderr)
    return status
