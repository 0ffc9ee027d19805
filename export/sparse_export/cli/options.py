"""What `finetune`, `export` and `inspect` share: options, and how they come by torch."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging import getLogger
from types import FrameType
from typing import Annotated

import typer

from sparse_serve.cli.signals import handled
from sparse_serve.errors import SparseServeError
from sparse_serve.extras import install_hint

EXTRAS = "export,cpu"
"""What brings the commands of the model side."""

Json = Annotated[
    bool, typer.Option("--json", envvar="SPARSE_SERVE_JSON", help="Print the figures as JSON on stdout.")
]


def load_model_side(*, verbose: bool, training: bool = False) -> None:
    """Import torch and Transformers, which takes seconds, and keep them quiet unless asked.

    For `training` also what only that needs, so that nothing else fails where it does not load.

    Raises:
        SparseServeError: they are not installed, or do not load in this environment.
    """
    try:
        import torch  # noqa: F401, PLC0415
        from transformers import PreTrainedModel  # noqa: F401, PLC0415
        from transformers.utils import logging  # noqa: PLC0415

        if training:
            import accelerate  # noqa: F401, PLC0415
            import datasets  # noqa: F401, PLC0415
            from transformers import Trainer  # noqa: F401, PLC0415
    except ImportError as error:
        needed = "torch, transformers, accelerate and datasets" if training else "torch and transformers"
        raise SparseServeError(
            f"this command needs {needed}, which do not load here ({error}): {install_hint(EXTRAS)}"
        ) from error
    if not verbose:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        getLogger("huggingface_hub").setLevel("ERROR")


@contextmanager
def ending_cleanly() -> Iterator[None]:
    """End on any signal as on Ctrl-C: by an exception, so that scratch folders are removed."""
    is_ignored = False
    try:
        with handled(_end):
            try:
                yield
            finally:
                is_ignored = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        if is_ignored:  # by a process that has yet to say why it ends
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _end(number: int, _frame: FrameType | None) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)
