"""Texts as they are given to be answered: any number, one string each."""

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
