"""What is answered later: by a thread that gives way, and through a sender."""

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

_NICENESS = 10
"""How much a thread gives way that computes what takes long: beside another it gets a tenth of a core."""

# Triton has the stub's stderr in its log, which needs none of the shared memory that may have run out.
_logger = logging.getLogger("sparse_serve")


def give_way() -> None:
    """Have the thread that this is called on yield to others."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def send(sender: Any, response: Any, flags: int, refusal: Callable[[Exception], Any]) -> None:
    """Send a response, or the refusal of one that cannot be sent, and log it: nothing is raised.

    Whoever sends has others to answer. Triton takes a sender that has failed in shared memory for closed: the
    client of that request hears nothing then, and gives up after its own time.

    Args:
        sender: of the request, `pb_utils.InferenceResponseSender`.
        response: `pb_utils.InferenceResponse`.
        flags: which say that no further response comes.
        refusal: returns the response to a request whose answer met an exception.
    """
    try:
        sender.send(response, flags=flags)
    except Exception as error:  # whatever Triton raises
        _logger.error("an answer could not be sent (%s)", in_one_line(error))
        try:
            sender.send(refusal(error), flags=flags)
        except Exception as again:
            _logger.error("neither could its refusal: its client hears nothing (%s)", in_one_line(again))


def in_one_line(error: Exception) -> str:
    """Return what an unforeseen exception is and says, without line breaks."""
    return " ".join(f"{type(error).__name__}: {error}".split())
