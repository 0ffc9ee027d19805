"""Where figures of a run are logged to besides its record, by Transformers' integrations."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers.integrations import get_available_reporting_integrations

from sparse_serve.errors import OptionError

_TENSORBOARD_FOLDER = "TENSORBOARD_LOGGING_DIR"


@contextmanager
def reporting(name: str | None, output: Path) -> Iterator[None]:
    """Have the integrations that a trainer makes meanwhile write where the run removes nothing.

    TensorBoard's events go to `OUTPUT.logs`, unless its own environment variable says otherwise.

    Raises:
        OptionError: there is no such integration, or its package is not installed.
    """
    installed = get_available_reporting_integrations()
    if name is not None and name not in installed:
        raise OptionError(
            f"--report-to {name} is not here; known and installed: "
            f"{', '.join(installed) or 'none is installed'}: install its package, or leave it out"
        )
    if name is None or _TENSORBOARD_FOLDER in os.environ:
        yield
        return
    os.environ[_TENSORBOARD_FOLDER] = str(output.with_name(f"{output.name}.logs"))
    try:
        yield
    finally:
        del os.environ[_TENSORBOARD_FOLDER]
