"""Texts as they are given to be answered: any number, one string each."""

from collections.abc import Mapping, Sequence

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


def require_pairs_of_tasks(
    tasks: Sequence[str], pairs: Sequence[str] | None, paired: Mapping[str, bool], model: str
) -> None:
    """See that texts have second ones where their tasks read pairs, and none, or empty ones, where not.

    Args:
        tasks: that of each text.
        pairs: the second text of each, None for none.
        paired: whether a task reads pairs; texts of others may have what they like.
        model: that has the tasks, as the error names it.

    Raises:
        RequestError: one has what it should not, or lacks it.
    """
    for task, pair in zip(tasks, [""] * len(tasks) if pairs is None else pairs, strict=True):
        if pair and not paired.get(task, True):
            raise RequestError(
                f"task '{task}' of {model} reads one text: leave out its second one, of text_pairs or "
                "--text-pair"
            )
        if pairs is None and paired.get(task, False):
            raise RequestError(
                f"task '{task}' of {model} reads pairs: give each text its second one, by text_pairs, "
                "--text-pair or a file of both"
            )
