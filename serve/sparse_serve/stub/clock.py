"""An end where the wall clock is set while Triton waits for an answer."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

_STEP_SECONDS = 0.25
"""Far more than a clock is ever slewed by meanwhile."""


@contextmanager
def no_stale_answer() -> Iterator[None]:
    """End this process if the wall clock is set forward within the block, which answers requests.

    Triton's Python backend waits for an answer by the wall clock, a second at a time. Where that is set
    forward, as by a laptop that wakes up, it takes the process for hung, gives the requests up, and takes
    their answers for those of the next. So nothing is answered any more: whoever started Triton sees that the
    process has ended.
    """
    before = _ahead()
    yield
    if _ahead() - before > _STEP_SECONDS:
        os._exit(1)


def _ahead() -> float:
    return time.time() - time.monotonic()
