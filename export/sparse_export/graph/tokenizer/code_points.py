"""Code points: all of them, and tables of a number for each."""

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

COUNT = 0x110000
_SURROGATES = range(0xD800, 0xE000)

Points = npt.NDArray[np.uint32]


@cache
def code_points() -> Sequence[str]:
    """Return what a text in UTF-8 can hold, in order: all but the surrogates."""
    numbers = np.r_[: _SURROGATES.start, _SURROGATES.stop : COUNT].astype("<u4")
    return tuple(numbers.tobytes().decode("utf-32-le"))


def points_of(text: str) -> Points:
    """Return the code points of a text."""
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def after_each(neighbour: str, characters: Sequence[str]) -> str:
    """Return a text of characters, each behind the same neighbour: they are at its odd offsets."""
    return "".join(f"{neighbour}{character}" for character in characters)


def chunks(characters: Sequence[str], size: int = 4096) -> Iterator[Sequence[str]]:
    """Cut characters into chunks: much is asked at once, and no text gets long."""
    return (characters[start : start + size] for start in range(0, len(characters), size))


def ranges(values: Sequence[int] | npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return one value for each of `code_points` as ranges `(R, 2)`: first code point and value.

    No text has a surrogate: these go on with the value before them.
    """
    array = np.asarray(values, np.int32)
    firsts = np.flatnonzero(np.r_[True, array[1:] != array[:-1]])
    points = np.where(firsts < _SURROGATES.start, firsts, firsts + len(_SURROGATES))
    table: npt.NDArray[np.int32] = np.stack([points, array[firsts]], 1).astype(np.int32)
    return table
