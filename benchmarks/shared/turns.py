"""Times of variants that take turns in one process."""

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, TypeVar

SECONDS = 2.0  # for each variant
MIN_ROUNDS, MAX_ROUNDS = 3, 200

Run = Callable[[], Any]
Variant = TypeVar("Variant", bound=Hashable)


def time_in_turns(
    variants: Mapping[Variant, Run], seconds_each: float = SECONDS, *, warm: bool = False
) -> dict[Variant, list[float]]:
    """Return the seconds of each variant's runs, one a turn; slow ones are left out of later turns.

    Where `warm` is set a run that counts follows one that does not, and so finds in the caches what a run of
    its own has left there, not what another variant has.
    """
    times: dict[Variant, list[float]] = {name: [] for name in variants}
    for run in variants.values():
        run()
    order = list(variants.items())
    for turn in range(MAX_ROUNDS):
        order = (
            order[1:] + order[:1]
        )  # so that each comes after every other, whatever that leaves in the caches
        for name, run in order:
            if turn >= MIN_ROUNDS and sum(times[name]) > seconds_each:
                continue
            if warm:
                run()
            times[name].append(seconds_of(run))
    return times


def best_ratio(one: Sequence[float], other: Sequence[float]) -> float:
    """Return how many times as long as the other one takes, each at its best in the turns that both ran.

    The best of more turns would be of a better time as well, where the machine's speed moves.
    """
    shared = min(len(one), len(other))
    return min(one[:shared]) / min(other[:shared])


def times_in_turns(variants: Mapping[Variant, Run], turns: Iterable[object]) -> dict[Variant, list[float]]:
    """Return the seconds of every run; all run in every turn, so that those of a turn make a ratio."""
    times: dict[Variant, list[float]] = {name: [] for name in variants}
    for run in variants.values():
        run()
    for _ in turns:
        for name, run in variants.items():
            times[name].append(seconds_of(run))
    return times


def turns_for(seconds: float, at_least: int) -> Iterator[int]:
    """Yield the numbers of turns until the time is over, and so many in any case."""
    end = time.perf_counter() + seconds
    for number in count():
        if number >= at_least and time.perf_counter() >= end:
            return
        yield number


def seconds_of(run: Run) -> float:
    """Return what one run takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
