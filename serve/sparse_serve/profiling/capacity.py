"""How much fits a memory limit: the longest text and the largest batch, found by sending them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from sparse_serve.profiling.memory import peak_bytes, reset_peaks
from sparse_serve.profiling.subjects import ServedSubject
from sparse_serve.profiling.workload import Batch
from sparse_serve.report.measured import Capacity


@dataclass(frozen=True)
class CapacityLimits:
    """What a model takes at most: `length` tokens, `rows` of a request; `shortest` is the least length."""

    shortest: int
    length: int
    rows: int
    batch_length: int


def measure_capacity(
    served: ServedSubject, limit: int, bounds: CapacityLimits, batch: Callable[[int, int], Batch]
) -> Capacity:
    """Find the longest single text, and the largest batch of texts of `bounds.batch_length` tokens.

    Both by bisection, since memory grows with either; the smaller is always sent before the greater is found
    to be too much.

    Args:
        served: a fresh server with the arena off.
        limit: bytes that all its processes together may reach, with what they hold at rest.
        bounds: how far to look.
        batch: makes a request of so many rows of so many tokens.

    Raises:
        ServerError: the server is gone.
    """

    @cache
    def peak(rows: int, length: int) -> int:
        served.load.send(batch(rows, length), (served.load.output,))  # what is allocated but once
        reset_peaks(served.process_ids())
        served.load.send(batch(rows, length), (served.load.output,))
        return peak_bytes(served.process_ids())

    longest = _greatest(bounds.shortest, bounds.length, lambda length: peak(1, length) <= limit)
    at_length = min(bounds.batch_length, longest) if longest else bounds.batch_length
    largest = _greatest(1, bounds.rows, lambda rows: peak(rows, at_length) <= limit) if longest else None
    return Capacity(
        model=served.subject.entry.name,
        variant=served.subject.variant,
        limit=limit,
        longest_text=longest,
        longest_total=peak(1, longest) if longest else None,
        batch_length=at_length,
        largest_batch=largest,
        batch_total=peak(largest, at_length) if largest else None,
        is_all=(longest, largest) == (bounds.length, bounds.rows),
    )


def _greatest(least: int, most: int, fits: Callable[[int], bool]) -> int | None:
    """Return the greatest number from `least` to `most` that fits, None where the least does not."""
    if not fits(least):
        return None
    step = 1
    low, high = least, most + 1
    while low + step < high and fits(low + step):  # upwards, so that nothing far too large is tried first
        low, step = low + step, 2 * step
    high = min(high, low + step)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
