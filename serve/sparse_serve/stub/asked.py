"""A request of a graph, as a whole and in the parts that it is computed in."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparse_serve.stub.runs import run_borders

# Of a request that others can wait for.
_SHORT_TOKENS = 256

Arrays = dict[str, npt.NDArray[Any]]
"""Tensors by name, of N rows each."""


class Asked(NamedTuple):
    """A request of N rows.

    Attributes:
        feed: the graph's inputs, `(N, …)` each, of the graph's types.
        wanted: the names of the outputs that are asked for.
        row_tokens: about how many tokens each row has.
        fault: why it is none, `without_frames`.
    """

    feed: Arrays
    wanted: Sequence[str]
    row_tokens: Sequence[int]
    fault: Exception | None = None

    @property
    def tokens(self) -> int:
        """Of all rows."""
        return sum(self.row_tokens)

    @property
    def is_short(self) -> bool:
        """Whether others can wait for it."""
        return self.tokens <= _SHORT_TOKENS

    def parts(self) -> list["Asked"]:
        """Return it in parts of which each is a run, or fits one."""
        borders = run_borders(self.row_tokens)
        if not borders or self.fault is not None:
            return [self]
        feeds = split(self.feed, borders)
        ranges = pairwise([0, *borders, len(self.row_tokens)])
        return [
            self._replace(feed=feed, row_tokens=self.row_tokens[begin:end])
            for feed, (begin, end) in zip(feeds, ranges, strict=True)
        ]


class Pending:
    """A request that is answered later: its sender, and what has come out of its parts."""

    def __init__(self, asked: Asked, sender: Any) -> None:
        """`sender` is a `pb_utils.InferenceResponseSender`."""
        self.asked, self.sender = asked, sender
        self.results: list[Arrays | Exception] = []
        self.is_answered = False

    def joined(self) -> Arrays | Exception:
        """Return the outputs of all its rows, or what is wrong with one part or with joining them."""
        parts: list[Arrays] = []
        for result in self.results:
            if isinstance(result, Exception):
                return result
            parts.append(result)
        try:
            return {name: np.concatenate([part[name] for part in parts]) for name in self.asked.wanted}
        except Exception as error:  # for want of memory, say
            return without_frames(error)


class Part(NamedTuple):
    """What is computed at a time of a request that is answered later."""

    pending: Pending
    asked: Asked
    is_last: bool

    @property
    def tokens(self) -> int:
        """Of all its rows."""
        return self.asked.tokens


def without_frames(error: Exception) -> Exception:
    """Return an exception that can be kept: it no longer says where it was raised.

    The frames of that are those that hold the request, and its tensors in shared memory. Kept beside the
    request's other results, they would hold each other until Python's cyclic garbage collector comes by,
    which counts objects, not their megabytes.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def split(feed: Mapping[str, npt.NDArray[Any]], borders: Sequence[int]) -> list[Arrays]:
    """Return the rows of tensors `(N, …)` in parts, divided at borders: one part more than borders."""
    parts = zip(*(np.split(array, borders) for array in feed.values()), strict=True)
    return [dict(zip(feed, part, strict=True)) for part in parts]
