"""Texts in parts of one size."""

from collections.abc import Sequence


def parts(texts: Sequence[str], size: int) -> list[Sequence[str]]:
    """Return texts in parts of one size, those left over left out."""
    return [texts[start : start + size] for start in range(0, len(texts) - size + 1, size)]
