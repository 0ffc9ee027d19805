"""The requests of a profile: real texts, tokenised and cut to exact lengths, mixed where a batch is.

A task that needs second texts is asked about pairs: a short question, and a context that fills the length.
A model of several tasks is sent texts of each in turn.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from math import ceil, gcd
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from sparse_serve.data import TextData
from sparse_serve.errors import DataError, OptionError, RepositoryError, TaskError
from sparse_serve.records import PLAIN, TABLES, iter_records, place
from sparse_serve.tasks import TASK_IDS, EncodedText, Pairs, Task
from sparse_serve.tasks.encoding import Truncation, graph_inputs, load_tokenizer, of_tasks, pad_id

Row = TypeVar("Row")

BUILT_IN = "built-in texts"
REQUESTS = 4
MOST_OWN_REQUESTS = 512

# The column of recorded traffic, called as the output that tells it.
TOKEN_COUNT = "token_count"

# Lengths of a batch go evenly from a fifth of the longest to the longest, so that their mean is 0.6 of it.
SHORTEST_SHARE = 0.2

# The longest question, and the most of a row's tokens that a question takes.
QUESTION_TOKENS = 12
QUESTION_SHARE = 1 / 3

Turns = Sequence[str | None]
"""The names of tasks that texts are of in turn, one as often as its share; (None,) on a model of one task."""

ONE_TASK: Turns = (None,)

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """One request: its texts, and ids, mask and segments of their windows, each `(windows, length)` int64.

    Of several tasks the numbers of the windows' are beside them, `(windows, 1)`. `text_pairs` are the second
    texts, None where the texts are single. A text has one window, but where the task reads long ones in
    several.
    """

    texts: tuple[str, ...]
    text_pairs: tuple[str, ...] | None
    encoded: tuple[EncodedText, ...]
    arrays: dict[str, Int64]

    @property
    def row_lengths(self) -> tuple[int, ...]:
        """True length of each row in tokens, special tokens included."""
        return tuple(int(length) for length in self.arrays["attention_mask"].sum(axis=1))

    @property
    def tokens(self) -> int:
        """True tokens of all rows together."""
        return sum(self.row_lengths)

    @property
    def tasks(self) -> tuple[str, ...] | None:
        """The name of each text's task; None on a model of one."""
        return tuple(text.task for text in self.encoded if text.task is not None) or None

    def parts(self, rows: int) -> Iterator[Self]:
        """Yield batches of so many windows at most, for a graph that takes no more at a time."""
        for start in range(0, len(self.arrays["input_ids"]), rows):
            arrays = {name: array[start : start + rows] for name, array in self.arrays.items()}
            yield replace(self, arrays=arrays)


@dataclass(frozen=True)
class Workload:
    """The different requests that are sent in turn; all have as many texts, the longest of `length` tokens.

    Cut to a length, all have the same row lengths; texts of a user's own are as long as they are, and those
    of recorded traffic as its were. Together they have as many texts of each task as its share says.
    """

    length: int
    source: str
    batches: tuple[Batch, ...]

    @property
    def tokens_per_request(self) -> float:
        """True tokens of a request, on average."""
        return sum(batch.tokens for batch in self.batches) / len(self.batches)

    @property
    def heaviest(self) -> Batch:
        """The request with the longest row, and of those the one with the most tokens."""
        return max(self.batches, key=lambda batch: (max(batch.row_lengths), batch.tokens))

    def order(self, seed: int) -> list[int]:
        """Return the numbers of the requests, shuffled, so that the first ones are of all kinds."""
        numbers: list[int] = np.random.default_rng(seed).permutation(len(self.batches)).tolist()
        return numbers

    @property
    def task_shares(self) -> dict[str, float]:
        """Each task's share of the texts, by its name; none on a model of one."""
        tasks = [name for batch in self.batches for name in batch.tasks or ()]
        return {name: number / len(tasks) for name, number in Counter(tasks).items()}


class Tokens:
    """How an entry makes tokens of texts, or pairs, for its task."""

    def __init__(
        self,
        path: Path,
        task: Task,
        max_length: int,
        truncation: Truncation = "right",
        *,
        in_graph: bool = False,
    ) -> None:
        """Read a `tokenizer.json`; texts are cut, or read in windows, at `max_length` tokens.

        With the tokenizer `in_graph`, texts of a task that was trained on pairs come in pairs.

        Raises:
            RepositoryError: the file is missing or no tokenizer.
        """
        try:
            self._tokenizer = load_tokenizer(path)
        except TaskError as error:
            raise RepositoryError(f"tokenizer {path}: {error}") from error
        self._filler = pad_id(self._tokenizer)
        self._task = task
        self._max_length = max_length
        self._truncation: Truncation = truncation
        self._in_graph = in_graph

    @property
    def pairs(self) -> bool:
        """Whether requests need second texts."""
        return self._needs_pair(self._task)

    def needs_pair(self, name: str | None) -> bool:
        """Return whether a text of the task of that name needs a second one."""
        return self._needs_pair(self._task.member(name))

    def _needs_pair(self, task: Task) -> bool:
        return task.reads_pairs if self._in_graph else task.text_pair == "required"

    def require_readable(self, source: str, turns: Turns, *, has_pairs: bool) -> None:
        """See that the tasks that texts are of in turn read what a source has: single texts, or pairs.

        Raises:
            DataError: one does not.
        """
        kinds = {True: "pairs of texts", False: "single texts"}
        for name in dict.fromkeys(turns):
            task = self._task.member(name)
            takes_pairs = task.reads_pairs if self._in_graph else task.text_pair != "refused"
            if not takes_pairs if has_pairs else self._needs_pair(task):
                reader = "the model" if name is None else f"task '{name}'"
                instead = "give other rows" + ("" if name is None else ", or ask other tasks with --task")
                raise DataError(
                    f"{source} has {kinds[has_pairs]}, and {reader} reads {kinds[not has_pairs]}: {instead}"
                )

    @property
    def special(self) -> int:
        """The special tokens of a row."""
        return int(self._tokenizer.num_special_tokens_to_add(self.pairs))

    @property
    def shortest(self) -> int:
        """The tokens of the shortest row: one of each text beside the special ones."""
        return self.special + 1 + self.pairs

    @property
    def longest(self) -> int:
        """The tokens that a row is cut at."""
        return self._max_length

    def batch(self, texts: Sequence[str], text_pairs: Pairs = None, turns: Turns = ONE_TASK) -> Batch:
        """Tokenise texts, or pairs of texts, as the entry does, and pad them to the longest."""
        cut = self._task.encode(self._tokenizer, texts, text_pairs, self._max_length, self._truncation)
        encoded = of_tasks(cut, list(islice(cycle(turns), len(cut))))
        windows = [window for text in encoded for window in text.windows]
        arrays = graph_inputs(windows, self._filler)
        if tuple(turns) != ONE_TASK:
            arrays[TASK_IDS] = self._task.task_ids(encoded)
        pairs = None
        if text_pairs is not None or self.pairs:
            pairs = tuple(pair or "" for pair in text_pairs or [None] * len(texts))
        return Batch(tuple(texts), pairs, tuple(encoded), arrays)

    def count(self, text: str, pair: str | None = None, *, special: bool = True) -> int:
        """Return how many tokens a text, or a pair, has uncut, with the special ones or without."""
        return len(self._uncut().encode(text, pair, add_special_tokens=special).ids)

    def ends(self, text: str) -> list[int]:
        """Return where each token of a text, without special ones, ends in it."""
        return [end for _, end in self._uncut().encode(text, add_special_tokens=False).offsets]

    def _uncut(self) -> Tokenizer:
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        return self._tokenizer


def row_lengths(length: int, batch_size: int, shortest: int) -> tuple[int, ...]:
    """Return the true lengths of a batch's rows: the longest exactly `length`, the mean about 0.6 of it.

    A single row has exactly `length` tokens; no row has fewer than `shortest`.
    """
    if batch_size == 1:
        return (length,)
    shares = np.linspace(1.0, SHORTEST_SHARE, batch_size)
    return tuple(max(shortest, round(length * share)) for share in shares.tolist())


def make_workload(
    tokens: Tokens,
    texts: Sequence[str],
    length: int,
    batch_size: int,
    source: str = BUILT_IN,
    turns: Turns = ONE_TASK,
) -> Workload:
    """Make different requests of `batch_size` rows, the longest of which has `length` tokens.

    They are `REQUESTS`, or as many more as it takes to have every task as often as the others, or its share.

    Raises:
        OptionError: `length` leaves no room for a token of each text beside the tokenizer's special tokens.
        DataError: the texts cannot be cut to a length (no word of them is a single token).
    """
    if length < tokens.shortest:
        what = " for a question and its context" if tokens.pairs else ""
        raise OptionError(
            f"length {length} leaves no room{what} beside the {tokens.special} special tokens; give more"
        )
    lengths = row_lengths(length, batch_size, tokens.shortest)
    whole = len(turns) // gcd(len(turns), batch_size)  # after so many requests, each has had its turns
    requests = [lengths] * (whole * ceil(REQUESTS / whole))
    return Workload(length, source, tuple(_cut_batches(tokens, texts, requests, turns)))


def read_token_counts(path: Path) -> list[int]:
    """Return how many tokens the texts of recorded traffic had.

    They are the lines of plain text (.txt), or the column `token_count` of a table (.tsv, .csv, .jsonl), as
    what a model answers has it.

    Raises:
        DataError: the file cannot be read, has no such column, or something else than whole numbers from 1.
    """
    counts = []
    for line, record in iter_records(path, [TOKEN_COUNT], {**TABLES, **PLAIN}):
        text = str(record[TOKEN_COUNT]).strip()
        if text:
            if not (text.isdecimal() and int(text) > 0):
                raise DataError(
                    f"{place(path, line)}: '{text}' is no number of tokens: give whole ones from 1"
                )
            counts.append(int(text))
    if not counts:
        raise DataError(f"data file {path} has no numbers of tokens; it needs one or more")
    return counts


def recorded_workload(
    tokens: Tokens,
    texts: Sequence[str],
    counts: Sequence[int],
    batch_size: int,
    source: str,
    turns: Turns = ONE_TASK,
) -> Workload:
    """Make requests whose texts are as long as those of recorded traffic, in its order.

    Of more than `MOST_OWN_REQUESTS` requests as many are taken, evenly from all of it; of fewer rows than a
    request has, some are sent again. A count of more tokens than the model takes is cut there, as its text
    would be, and one of fewer than a text has is as many as that.

    Raises:
        DataError: the texts cannot be cut to a length (no word of them is a single token).
    """
    lengths: Int64 = np.clip(np.array(_requests_of(counts, batch_size)), tokens.shortest, tokens.longest)
    batches = tuple(_cut_batches(tokens, texts, lengths.tolist(), turns))
    return Workload(int(lengths.max()), source, batches)


def _requests_of(rows: Sequence[Row], batch_size: int) -> list[list[Row]]:
    """Divide rows into `MOST_OWN_REQUESTS` requests at most, in their order.

    Of more rows than these have room for as many are taken, evenly; fewer than a request has are repeated.
    """
    requests = min(max(len(rows) // batch_size, 1), MOST_OWN_REQUESTS)
    step = max(len(rows) / (requests * batch_size), 1)
    taken = [rows[int(number * step) % len(rows)] for number in range(requests * batch_size)]
    return [taken[first : first + batch_size] for first in range(0, len(taken), batch_size)]


def _cut_batches(
    tokens: Tokens, texts: Sequence[str], requests: Sequence[Sequence[int]], turns: Turns
) -> Iterator[Batch]:
    """Yield requests whose rows have these lengths, each beginning with another of the texts."""
    cuts, first = _Cuts(tokens, texts), 0
    for lengths in requests:
        own_turns = [turns[(first + row) % len(turns)] for row in range(len(lengths))]
        rows = [
            cuts.row(first + row, true, needs_pair=tokens.needs_pair(turn))
            for row, (true, turn) in enumerate(zip(lengths, own_turns, strict=True))
        ]
        pairs = [pair for _, pair in rows] if tokens.pairs else None
        yield tokens.batch([text for text, _ in rows], pairs, own_turns)
        first += len(lengths)


def own_workload(tokens: Tokens, data: TextData, batch_size: int, turns: Turns = ONE_TASK) -> Workload:
    """Make requests of texts, or pairs, as they are, in their order, `MOST_OWN_REQUESTS` of them at most.

    Of more rows than the requests have room for as many are taken, evenly from all of them; fewer rows than a
    request has are sent again.

    Raises:
        DataError: the rows are single texts where a task reads pairs, or pairs where it reads single texts.
    """
    tokens.require_readable(data.source, turns, has_pairs=data.has_pairs)
    batches = []
    for request, part in enumerate(_requests_of(data.rows, batch_size)):
        own_turns = [turns[(request * batch_size + row) % len(turns)] for row in range(batch_size)]
        pairs = [row.text_pair for row in part] if data.has_pairs else None
        batches.append(tokens.batch([row.text for row in part], pairs, own_turns))
    longest = max(max(batch.row_lengths) for batch in batches)
    return Workload(longest, data.source, tuple(batches))


class _Cuts:
    """Texts cut to exact numbers of tokens."""

    def __init__(self, tokens: Tokens, texts: Sequence[str]) -> None:
        self._tokens = tokens
        self._texts = texts
        self._filler = self._single_token_word()
        self._joined: dict[int, tuple[str, list[int]]] = {}

    def row(self, first: int, length: int, *, needs_pair: bool) -> tuple[str, str | None]:
        """Return a text, and where it needs one a second text, of exactly `length` tokens together.

        It begins with text `first` modulo their count, a question about it with the one after.
        """
        if not needs_pair:
            return self._cut(first, length, self._tokens.count), None
        room = length - self._tokens.special
        asked = max(1, min(QUESTION_TOKENS, int(room * QUESTION_SHARE)))
        question = self._cut(first + 1, asked, partial(self._tokens.count, special=False))
        return question, self._cut(first, length, partial(self._tokens.count, question))

    def _cut(self, first: int, length: int, count: Callable[[str], int]) -> str:
        """Return a text that begins with text `first`, for which `count` gives exactly `length` tokens."""
        words, ends = self._words(first % len(self._texts), length)
        end = ends[length - count("") - 1]
        text = words[:end] if words[end : end + 1] in ("", " ") else words[: max(0, words.rfind(" ", 0, end))]
        while (found := count(text)) < length:
            text = f"{text} {self._filler}".lstrip()
        if found != length:
            raise DataError(
                f"the texts could not be cut to {length} tokens: this tokenizer makes {found} of them; "
                "give other texts with --inputs"
            )
        return text

    def _words(self, start: int, least: int) -> tuple[str, list[int]]:
        """Return texts as one, from text `start`, of so many tokens at least, and where each ends."""
        words, ends = self._joined.get(start, ("", []))
        count = 1
        while len(ends) < least:
            words = " ".join(islice(cycle(self._texts), start, start + count))
            ends = self._tokens.ends(words)
            count *= 2
        self._joined[start] = words, ends
        return words, ends

    def _single_token_word(self) -> str:
        """Return a word that adds exactly one token wherever it is appended."""
        for word in dict.fromkeys(word for text in self._texts for word in text.split()):
            if self._tokens.count(f"{word} {word} {word}", special=False) == 3:
                return word
        raise DataError(
            "no word of the texts is a single token to this tokenizer; give other texts with --inputs"
        )
