"""An end where the wall clock is set while Triton waits for an answer."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

_STEP_SECONDS = 0.25
"""Far more than a clock is ever slewed by meanwhile. Of a wait of a second no more than that may be left."""


@contextmanager
def no_stale_answer() -> Iterator[None]:
    """End this process if the wall clock is set forward by more than 0.25 s within the block, which answers.

    Triton's Python backend waits for an answer by the wall clock, a second at a time. Where that is set
    forward, as by a laptop that wakes up, it takes the process for hung, gives the requests up, and takes
    their answers for those of the next. So nothing is answered any more: whoever started Triton sees that the
    process has ended.

    Triton waits from a little before the block, while the process reads what it was handed. A step there is
    not seen: seen from the last block on, it could not be told from one while nobody waited.
    """
    before = _ahead()
    try:
        yield
    finally:
        if _ahead() - before > _STEP_SECONDS:
            os._exit(1)


def _ahead() -> float:
    return time.time() - time.monotonic()
