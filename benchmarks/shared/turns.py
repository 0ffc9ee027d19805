"""Times of variants that take turns in one process."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

SECONDS = 2.0  # for each variant
MIN_ROUNDS, MAX_ROUNDS = 3, 200

Run = Callable[[], Any]
Variant = TypeVar("Variant", bound=Hashable)


def time_in_turns(
    variants: Mapping[Variant, Run], seconds_each: float = SECONDS
) -> tuple[dict[Variant, float], dict[Variant, int]]:
    """Return the best seconds and the number of runs of each variant; slow ones run less often."""
    best = dict.fromkeys(variants, float("inf"))
    rounds = dict.fromkeys(variants, 0)
    spent = dict.fromkeys(variants, 0.0)
    for run in variants.values():
        run()
    order = list(variants.items())
    for turn in range(MAX_ROUNDS):
        order = (
            order[1:] + order[:1]
        )  # so that each comes after every other, whatever that leaves in the caches
        for name, run in order:
            if turn >= MIN_ROUNDS and spent[name] > seconds_each:
                continue
            start = time.perf_counter()
            run()
            seconds = time.perf_counter() - start
            best[name] = min(best[name], seconds)
            spent[name] += seconds
            rounds[name] += 1
    return best, rounds
