"""Packages by role: `sparse-serve` alone asks a server, the extras of pyproject.toml bring all else."""

from collections.abc import Iterator
from contextlib import contextmanager

from sparse_serve.errors import MissingPackageError


def install_hint(extras: str) -> str:
    """Return what brings a role, as the end of an error says it: for an installed package, and in a clone.

    A clone's line has the versions that the package is tested with.

    Args:
        extras: of this package, one or several joined by commas.
    """
    return (
        f"pip install 'sparse-serve[{extras}]' "
        f"(in a clone: pip install --constraint constraints.txt '.[{extras}]')"
    )


@contextmanager
def needing(what: str, extras: str) -> Iterator[None]:
    """Import something that a role brings.

    Args:
        what: needs it, as the error names it.
        extras: of this package, one or several joined by commas.

    Raises:
        MissingPackageError: a package of it is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in {"sparse_serve", "sparse_export"}:
            raise
        raise MissingPackageError(
            f"{what} needs {package}, which is not installed: {install_hint(extras)}"
        ) from error
