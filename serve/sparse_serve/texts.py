"""Texts as they are given to be answered: any number, one string each."""

from collections.abc import Sequence

from sparse_serve.errors import RequestError

_SHOWN_CHARACTERS = 40


def require_many(*given: object) -> None:
    """See that what is given for texts is not one text, which is a sequence of strings too.

    Raises:
        TypeError: it is.
    """
    for each in given:
        if isinstance(each, str | bytes):
            raise TypeError(
                f"one text is given, {each[:_SHOWN_CHARACTERS]!r}, where any number is taken: give a list"
            )


def require_whole(texts: Sequence[str], first: int = 0) -> None:
    """See that texts can be sent as UTF-8; they are counted from `first`, and told from 1.

    Raises:
        RequestError: one holds half a surrogate pair.
    """
    for number, text in enumerate(texts, start=first + 1):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"text {number} has half a character at {error.start}: it cannot be sent"
            ) from None
