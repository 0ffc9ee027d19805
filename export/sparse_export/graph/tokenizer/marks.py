"""Combining marks, as the library's normalizers order them and BERT's removes them."""

from collections.abc import Iterable
from functools import cache
from itertools import pairwise

import numpy as np
from tokenizers import normalizers

from sparse_export.graph.tokenizer.code_points import COUNT, chunks, code_points, points_of, ranges

# Marks of combining classes 226 and 9, which BERT's normalizer leaves in a text.
HIGH_MARK, LOW_MARK = "\U0001d16d", "\u1b44"

# A character that is no mark and is removed nevertheless: `ops/README.md`, "Tokenizing".
_REMOVED_BASE = 255

# A sign across which nothing is normalized.
_SEPARATOR = "|"


@cache
def marks() -> list[int]:
    """Return the attribute `marks` of a normalizer that strips accents: (first code point, number), flat.

    It is one for all tokenizers: what cleaning removes before is no mark.
    """
    decompose = normalizers.NFD().normalize_str
    strip = normalizers.BertNormalizer(False, False, True, False).normalize_str
    numbers = np.zeros(COUNT, np.int32)
    moving: list[str] = []
    composed: list[str] = []
    for chunk in chunks(code_points()):
        characters = [character for character in chunk if character != _SEPARATOR]
        left = set(strip("".join(characters)))
        among_marks = [f"{HIGH_MARK}{character}{LOW_MARK}" for character in characters]
        together = decompose(_SEPARATOR.join(among_marks)).split(_SEPARATOR)
        for character, before, after in zip(characters, among_marks, together, strict=True):
            if not after.startswith(HIGH_MARK):
                moving.append(character)
            elif after != before:
                composed.append(character)
            elif character not in left:
                numbers[ord(character)] = _REMOVED_BASE
    classes = _classes(decompose(character)[0] for character in moving)
    for character in moving:
        numbers[ord(character)] = classes[decompose(character)[0]]
    for character in composed:
        left_of_it = strip(character)
        numbers[ord(character)] = -classes.get(left_of_it[-1], 0) if left_of_it else _REMOVED_BASE
    flat: list[int] = ranges(numbers[points_of("".join(code_points()))]).ravel().tolist()
    return flat


def _classes(characters: Iterable[str]) -> dict[str, int]:
    """Return numbers from 1 that order marks as their combining classes do.

    Marks of one class stay in the order in which they come.
    """
    order = normalizers.NFD().normalize_str
    given = sorted(set(characters))
    ordered = order("".join(given))
    backwards = {mark: place for place, mark in enumerate(order("".join(reversed(given))))}
    classes = {ordered[0]: 1}
    for left, right in pairwise(ordered):
        classes[right] = classes[left] + (backwards[left] < backwards[right])
    return classes
