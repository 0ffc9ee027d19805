"""Who computes when, of requests that take long and short ones beside them."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from sparse_serve.stub.runs import RUN_TOKENS

CROWD = 12
"""Requests: so many that wait have turns. More than eight clients have, some of whom went away."""
EQUALS = 4
"""Requests: for so many that wait, turns take as long as short ones do."""
AWAY_SECONDS = 0.25
"""So long after a turn others are expected."""


class Part(Protocol):
    """A request, or of a larger one so many rows as are computed at a time."""

    @property
    def tokens(self) -> int:
        """About how many there are: at most `RUN_TOKENS`, or those of one row."""


P = TypeVar("P", bound=Part)


class Turns(Generic[P]):
    """Requests that take long, first come, first served; never are two runs of them computed at a time.

    A thread that gives way takes their `runs` as they come. While few wait, that hurts short ones least.
    But where many ask, each again after its answer, it costs all: short ones are answered at once, few at a
    time, until nearly all who ask wait for long ones; and two runs on the same cores take longer than one
    after the other. So a crowd is left to the thread that answers the short ones, for a `turn` after each
    batch of those.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells seconds."""
        self._clock = clock
        self._waiting: deque[tuple[P, bool]] = deque()  # each part, and whether it is its request's last
        self._requests = 0
        self._is_running = False
        self._is_closed = False
        self._owed = 0.0
        self._held_until = clock()
        self._changed = threading.Condition()

    @property
    def is_crowded(self) -> bool:
        """Whether so many wait that they have turns."""
        return self._requests >= CROWD

    def put(self, parts: Sequence[P]) -> None:
        """Let a request wait, in parts that each fit a run."""
        with self._changed:
            self._waiting.extend((part, number == len(parts)) for number, part in enumerate(parts, start=1))
            self._requests += 1
            self._changed.notify()

    def close(self) -> None:
        """Let `runs` end with what waits now."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def turn(self, seconds: float = math.inf) -> Iterator[list[P]]:
        """Yield the runs whose turn it is after short ones were computed for so long, or all runs.

        A crowd gets `seconds` for every `EQUALS` of it: the more wait, the larger is their share. What a run
        takes more is taken off the next turns. There are none while the thread is at a run; it begins no
        other as long as turns are expected.
        """
        if not self.is_crowded:
            return
        self._owed += seconds * self._requests / EQUALS
        while True:
            with self._changed:
                self._hold()
                run = self._begin() if self._owed > 0 and not self._is_running else []
            if not run:
                break
            begun = self._clock()
            try:
                yield run
            finally:
                with self._changed:
                    self._hold()
                    self._end()
            self._owed -= self._clock() - begun
        self._owed = min(self._owed, 0.0)

    def runs(self) -> Iterator[list[P]]:
        """Yield runs whenever no turns are expected, for the thread; wait for the next one until closed."""
        while True:
            with self._changed:
                while (seconds := self._to_wait()) > 0:
                    self._changed.wait(seconds if seconds < math.inf else None)
                run = self._begin()
            if not run:
                return
            try:
                yield run
            finally:
                with self._changed:
                    self._end()

    def _hold(self) -> None:
        """Let the thread wait: turns are expected."""
        self._held_until = self._clock() + AWAY_SECONDS

    def _to_wait(self) -> float:
        """Return the seconds until the thread may begin a run, or end; infinite where others say when."""
        if not self._waiting and self._is_closed:
            return 0.0
        if not self._waiting or self._is_running:
            return math.inf
        # Read once: the moment could come between two looks at the clock, and be waited for without end.
        return 0.0 if self._is_closed else self._held_until - self._clock()

    def _begin(self) -> list[P]:
        """Take the first parts that wait, as many as make a run; none where none wait."""
        run: list[P] = []
        tokens = 0
        while self._waiting:
            part, is_last = self._waiting[0]
            tokens += part.tokens
            if run and tokens > RUN_TOKENS:
                break
            run.append(part)
            self._waiting.popleft()
            self._requests -= is_last
        self._is_running = bool(run)
        return run

    def _end(self) -> None:
        self._is_running = False
        self._changed.notify()
