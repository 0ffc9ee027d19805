"""Whose turn it is: long requests beside short ones, by the backend's `turns.h`."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

import pytest

from shared_library import compile_library

SOURCE = Path(__file__).with_name("turns_bridge.cc")
SERVE = Path(__file__).parents[2] / "serve"
MOST_ROWS = 50

ClockFunction = ctypes.CFUNCTYPE(ctypes.c_double)
ComputeFunction = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_int), ctypes.c_int)


class Part(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_int),
        ("rows", ctypes.c_size_t),
        ("tokens", ctypes.c_size_t),
        ("is_last", ctypes.c_bool),
        ("kind", ctypes.c_int),
    )


class Clock:
    """A clock that stands still, but for its `tick` each time that it is read."""

    seconds = 0.0
    tick = 0.0

    def __call__(self) -> float:
        self.seconds += self.tick
        return self.seconds


class Turns:
    """Turns of parts whose names are single letters; what computes a run gets them as one string."""

    def __init__(self, library: ctypes.CDLL, clock: Clock) -> None:
        self.run_tokens: int = library.run_tokens()
        self.turn_threshold: int = library.turn_threshold()
        self.max_waiting_counted: int = library.max_waiting_counted()
        self.waiting_per_equal_share: float = library.waiting_per_equal_share()
        self.expected_per_turn: float = library.expected_per_turn()
        self.least_expected_seconds: float = library.least_turn_expected_seconds()
        self.most_expected_seconds: float = library.most_turn_expected_seconds()
        self._library = library
        self._clock = ClockFunction(clock)
        self._turns = ctypes.c_void_p(library.make_turns(MOST_ROWS, self._clock))
        self._thread: Thread | None = None

    def enqueue(self, names: str, tokens: int | None = None, kind: int = 0, rows: int = 1) -> None:
        """Let requests of one part each wait, by default of as many tokens as a run."""
        for name in names:
            self.enqueue_parts([(name, self.run_tokens if tokens is None else tokens)], kind, rows)

    def enqueue_parts(self, parts: Sequence[tuple[str, int]], kind: int = 0, rows: int = 1) -> None:
        """Let one request wait, in parts of a name and tokens."""
        count = len(parts)
        array = (Part * count)(
            *(
                Part(ord(name), rows, tokens, number == count, kind)
                for number, (name, tokens) in enumerate(parts, start=1)
            )
        )
        self._library.enqueue(self._turns, array, count)

    @property
    def is_empty(self) -> bool:
        return bool(self._library.is_empty(self._turns))

    def close(self) -> None:
        self._library.close_turns(self._turns)

    def turn(self, seconds: float, compute: Callable[[str], object]) -> None:
        self._library.turn(self._turns, ctypes.c_double(seconds), _by_names(compute))

    def start_work(self, compute: Callable[[str], object]) -> None:
        """Have the thread that gives way compute runs."""
        arguments = (self._turns, _by_names(compute))
        self._thread = Thread(target=self._library.work, args=arguments, daemon=True)
        self._thread.start()

    def wait_for_work(self) -> None:
        """Wait until the thread has ended."""
        assert self._thread
        self._thread.join(timeout=30)
        assert not self._thread.is_alive()

    def end(self) -> None:
        self.close()
        if self._thread:
            self.wait_for_work()
        self._library.delete_turns(self._turns)


def _by_names(compute: Callable[[str], object]) -> "ctypes._FuncPointer":
    def called(names: "ctypes._Pointer[ctypes.c_int]", count: int) -> None:
        compute("".join(map(chr, names[:count])))

    return ComputeFunction(called)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The header, compiled. Needs a C++ compiler, CXX or g++."""
    path = tmp_path_factory.mktemp("turns") / "turns.so"
    compile_library(path, [SOURCE], f"-I{SERVE}")
    library = ctypes.CDLL(str(path))
    for count in (library.run_tokens, library.turn_threshold, library.max_waiting_counted):
        count.restype = ctypes.c_size_t
    for number in (
        library.waiting_per_equal_share,
        library.expected_per_turn,
        library.least_turn_expected_seconds,
        library.most_turn_expected_seconds,
    ):
        number.restype = ctypes.c_double
    library.make_turns.restype = ctypes.c_void_p
    library.is_empty.restype = ctypes.c_bool
    return library


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def turns(library: ctypes.CDLL, clock: Clock) -> Iterator[Turns]:
    turns = Turns(library, clock)
    yield turns
    turns.end()


def taken(turns: Turns, clock: Clock, seconds: float, run_seconds: float = 1.0) -> list[str]:
    """The runs of a turn after short ones took so many seconds, where each run takes `run_seconds`."""
    runs = []

    def compute(names: str) -> None:
        runs.append(names)
        clock.seconds += run_seconds

    turns.turn(seconds, compute)
    return runs


def is_left_empty(answered: SimpleQueue[str]) -> bool:
    """Whether the thread, which had time to, computed nothing."""
    try:
        answered.get(timeout=0.1)
    except Empty:
        return True
    return False


def test_few_have_no_turns(turns: Turns, clock: Clock) -> None:
    """They are left to the thread, which has not to wait for turns."""
    few = "abcdefghijkl"[: turns.turn_threshold - 1]
    turns.enqueue(few)
    assert taken(turns, clock, 100.0) == []
    answered: SimpleQueue[str] = SimpleQueue()
    turns.start_work(answered.put)
    assert [answered.get(timeout=30) for _ in few] == list(few)


def test_a_crowd_has_its_share_of_the_time(turns: Turns, clock: Clock) -> None:
    """As much as the short ones for every so many of it; runs are not divided, but they are made up for."""
    turns.enqueue("a" * 3 * int(turns.waiting_per_equal_share))
    assert taken(turns, clock, 1.0) == ["a"] * 3
    turns.enqueue("a" * 3)
    assert taken(turns, clock, 0.1, run_seconds=0.9) == ["a"]
    turns.enqueue("a")
    assert taken(turns, clock, 0.1, run_seconds=0.9) == []
    assert taken(turns, clock, 0.2, run_seconds=0.9) == ["a"]


def test_a_share_that_was_not_taken_is_not_kept(turns: Turns, clock: Clock) -> None:
    """There are no turns while the thread is at a run."""
    beside: list[list[str]] = []
    turns.enqueue("a" * (turns.turn_threshold + 1))
    turns.close()
    turns.start_work(lambda _names: beside.append(taken(turns, clock, 100.0)))
    turns.wait_for_work()
    assert beside == [[]] * (turns.turn_threshold + 1)
    turns.enqueue("a" * turns.turn_threshold)
    assert taken(turns, clock, 0.1) == ["a"]


def test_a_crowd_does_not_keep_short_ones_waiting_for_all_of_it(turns: Turns, clock: Clock) -> None:
    turns.enqueue("a" * 10 * turns.max_waiting_counted)
    assert len(taken(turns, clock, 1.0)) == turns.max_waiting_counted / turns.waiting_per_equal_share


def test_what_fits_is_one_run(turns: Turns, clock: Clock) -> None:
    turns.enqueue("abcdefghijkl", turns.run_tokens // 4)
    assert taken(turns, clock, 1.0) == ["abcd", "efgh", "ijkl"]


def test_a_run_has_no_more_rows_than_a_batch(turns: Turns, clock: Clock) -> None:
    turns.enqueue("abcdefghijkl", 1, rows=MOST_ROWS // 2)
    turns.enqueue("m", 1, rows=MOST_ROWS + 1)
    assert taken(turns, clock, 100.0) == ["ab", "cd", "ef", "gh", "ij", "kl", "m"]


def test_it_is_empty_when_nothing_waits_or_is_computed(turns: Turns) -> None:
    is_empty: list[bool] = [turns.is_empty]
    turns.enqueue("a" * turns.turn_threshold)
    is_empty.append(turns.is_empty)
    turns.turn(turns.waiting_per_equal_share, lambda _names: is_empty.append(turns.is_empty))
    assert is_empty == [True, False, *[False] * turns.turn_threshold]
    assert turns.is_empty


def test_large_requests_are_computed_in_parts(turns: Turns, clock: Clock) -> None:
    """They count once, and their parts come in order, with what fits beside the last."""
    turns.enqueue_parts([("a", turns.run_tokens), ("b", turns.run_tokens), ("c", 10)])
    turns.enqueue("d" * (turns.turn_threshold - 2), turns.run_tokens - 10)
    assert taken(turns, clock, 100.0) == []
    turns.enqueue("d", turns.run_tokens - 10)
    assert taken(turns, clock, 1.5 * turns.waiting_per_equal_share / turns.turn_threshold) == ["a", "b"]
    assert taken(turns, clock, 1.0 * turns.waiting_per_equal_share / turns.turn_threshold) == ["cd"]
    assert taken(turns, clock, 100.0) == []


def test_another_kind_is_not_put_into_the_same_run(turns: Turns) -> None:
    """It waits for the next run, and what came after it waits behind it."""
    runs: list[str] = []
    turns.enqueue("abcd", 1, kind=0)
    turns.enqueue("efgh", 1, kind=1)
    turns.enqueue("ijkl", 1, kind=0)
    turns.turn(1.0, runs.append)
    assert runs == ["abcd", "efgh", "ijkl"]


def test_the_thread_leaves_a_crowd_to_the_turns_and_ends_with_what_waits(turns: Turns, clock: Clock) -> None:
    answered: SimpleQueue[str] = SimpleQueue()
    turns.enqueue("a" * (turns.turn_threshold + 1))
    assert taken(turns, clock, 0.1) == ["a"]
    clock.seconds += turns.most_expected_seconds
    assert taken(turns, clock, 0.1) == []
    turns.start_work(answered.put)
    assert is_left_empty(answered)
    assert taken(turns, clock, turns.waiting_per_equal_share) == ["a"] * turns.turn_threshold
    assert is_left_empty(answered)
    turns.enqueue("b")
    assert is_left_empty(answered)
    clock.seconds += turns.most_expected_seconds
    turns.enqueue("c")
    assert [answered.get(timeout=30) for _ in range(2)] == ["b", "c"]
    turns.enqueue("d" * turns.turn_threshold)
    turns.close()
    assert [answered.get(timeout=30) for _ in range(turns.turn_threshold)] == ["d"] * turns.turn_threshold
    turns.wait_for_work()


def test_beside_a_trickle_of_short_ones_the_thread_has_the_time_between(turns: Turns, clock: Clock) -> None:
    """It holds back by how long a turn took, and one without a run takes as long as the short ones."""
    answered: SimpleQueue[str] = SimpleQueue()
    turns.enqueue("a" * (turns.turn_threshold + 2))
    assert taken(turns, clock, 0.005, run_seconds=0.1) == ["a"]
    clock.seconds += 0.09
    turns.start_work(answered.put)
    assert is_left_empty(answered)
    short_seconds = 2 * turns.least_expected_seconds / turns.expected_per_turn
    assert taken(turns, clock, short_seconds) == []
    clock.seconds += turns.least_expected_seconds
    assert is_left_empty(answered)
    clock.seconds += turns.least_expected_seconds
    left = turns.turn_threshold + 1
    assert [answered.get(timeout=30) for _ in range(left)] == ["a"] * left


def test_the_thread_begins_nothing_while_a_turn_is_at_a_run(turns: Turns, clock: Clock) -> None:
    """However long that takes; it goes on some time after the turn."""
    answered: SimpleQueue[str] = SimpleQueue()
    beside: list[bool] = []

    def compute(_names: str) -> None:
        clock.seconds += 2 * turns.most_expected_seconds
        turns.enqueue("b")
        beside.append(not is_left_empty(answered))

    turns.enqueue("a" * (turns.turn_threshold + 1))
    assert taken(turns, clock, 0.1) == ["a"]
    turns.start_work(answered.put)
    turns.turn(0.3, compute)
    assert beside == [False]
    clock.seconds += turns.most_expected_seconds
    assert [answered.get(timeout=30) for _ in range(turns.turn_threshold)] == ["a"] * (
        turns.turn_threshold - 1
    ) + ["b"]


def test_the_thread_begins_however_time_passes_while_it_looks(turns: Turns, clock: Clock) -> None:
    """Turns are expected when it first looks at the clock, and would be no more at a second look."""
    begun: SimpleQueue[str] = SimpleQueue()
    turns.enqueue("a" * (turns.turn_threshold + 1))
    assert taken(turns, clock, 0.1) == ["a"]
    clock.tick = 0.6 * turns.most_expected_seconds
    turns.start_work(begun.put)
    assert begun.get(timeout=5) == "a"
