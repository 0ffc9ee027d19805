"""Whose turn it is: long requests beside short ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread

import pytest

from sparse_serve.stub.runs import RUN_TOKENS
from sparse_serve.stub.turns import AWAY_SECONDS, CROWD, EQUALS, Turns


class Clock:
    """A clock that stands still, but for its `tick` each time that it is read."""

    seconds = 0.0
    tick = 0.0

    def __call__(self) -> float:
        self.seconds += self.tick
        return self.seconds


@dataclass(frozen=True)
class Part:
    name: str
    tokens: int = RUN_TOKENS


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def turns(clock: Clock) -> Turns[Part]:
    return Turns(clock)


def put(turns: Turns[Part], names: str, tokens: int = RUN_TOKENS) -> None:
    for name in names:
        turns.put([Part(name, tokens)])


def names_of(run: Sequence[Part]) -> str:
    return "".join(part.name for part in run)


def taken(turns: Turns[Part], clock: Clock, seconds: float, run_seconds: float = 1.0) -> list[str]:
    """The runs of a turn after short ones took so many seconds, where each run takes `run_seconds`."""
    runs = []
    for run in turns.turn(seconds):
        runs.append(names_of(run))
        clock.seconds += run_seconds
    return runs


def test_few_have_no_turns(turns: Turns[Part], clock: Clock) -> None:
    put(turns, "abcdefghijkl"[: CROWD - 1])
    assert taken(turns, clock, 100.0) == []
    assert names_of(next(turns.runs())) == "a"


def test_a_crowd_has_its_share_of_the_time(turns: Turns[Part], clock: Clock) -> None:
    """As much as the short ones for every so many of it; runs are not divided, but they are made up for."""
    put(turns, "a" * 3 * EQUALS)
    assert taken(turns, clock, 1.0) == ["a"] * 3
    put(turns, "a" * 3)
    assert taken(turns, clock, 0.1, run_seconds=0.9) == ["a"]
    put(turns, "a")
    assert taken(turns, clock, 0.1, run_seconds=0.9) == []
    assert taken(turns, clock, 0.2, run_seconds=0.9) == ["a"]


def test_a_share_that_was_not_taken_is_not_kept(turns: Turns[Part], clock: Clock) -> None:
    put(turns, "a" * (CROWD + 1))
    for _ in turns.runs():
        assert taken(turns, clock, 100.0) == []
        break
    assert taken(turns, clock, 0.1) == ["a"]


def test_all_have_their_turn_where_no_short_ones_are_expected(turns: Turns[Part], clock: Clock) -> None:
    put(turns, "abcdefghijkl", RUN_TOKENS // 4)
    assert [names_of(run) for run in turns.turn()] == ["abcd", "efgh", "ijkl"]
    put(turns, "abcdefghijkl")
    assert taken(turns, clock, 0.1) == ["a"]


def test_large_requests_are_computed_in_parts(turns: Turns[Part], clock: Clock) -> None:
    """They count once, and their parts come in order, with what fits beside the last."""
    turns.put([Part("a"), Part("b"), Part("c", 10)])
    assert not turns.is_crowded
    put(turns, "d" * CROWD, RUN_TOKENS - 10)
    assert turns.is_crowded
    assert taken(turns, clock, 2.5 * EQUALS / (CROWD + 1)) == ["a", "b", "cd"]
    assert not turns.is_crowded


def test_the_thread_leaves_a_crowd_to_the_turns_and_ends_with_what_waits(
    turns: Turns[Part], clock: Clock
) -> None:
    answered: SimpleQueue[str] = SimpleQueue()

    def work() -> None:
        for run in turns.runs():
            answered.put(names_of(run))

    thread = Thread(target=work, daemon=True)
    put(turns, "a" * (CROWD + 1))
    assert taken(turns, clock, 0.1) == ["a"]
    thread.start()
    assert taken(turns, clock, EQUALS) == ["a"] * CROWD
    put(turns, "b")
    assert answered.empty()
    clock.seconds += AWAY_SECONDS
    put(turns, "c")
    assert [answered.get(timeout=30) for _ in range(2)] == ["b", "c"]
    put(turns, "d" * CROWD)
    turns.close()
    assert [answered.get(timeout=30) for _ in range(CROWD)] == ["d"] * CROWD
    thread.join(timeout=30)
    assert not thread.is_alive()


def test_the_thread_begins_however_time_passes_while_it_looks(turns: Turns[Part], clock: Clock) -> None:
    """Turns are expected when it first looks at the clock, and would be no more at a second look."""
    begun: SimpleQueue[str] = SimpleQueue()
    put(turns, "a" * (CROWD + 1))
    assert taken(turns, clock, 0.1) == ["a"]
    clock.tick = 0.6 * AWAY_SECONDS
    Thread(target=lambda: begun.put(names_of(next(turns.runs()))), daemon=True).start()
    assert begun.get(timeout=5) == "a"
