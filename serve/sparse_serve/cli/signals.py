"""The signals that end a command, for as long as it works."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object]

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def handled(handler: Handler) -> Iterator[None]:
    """Have a handler called for what ends a command; what is ignored stays so, as nohup has it of SIGHUP."""
    former = {number: signal.getsignal(number) for number in ENDING}
    taken = [number for number, own in former.items() if own is not signal.SIG_IGN]
    for number in taken:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, former[number])
