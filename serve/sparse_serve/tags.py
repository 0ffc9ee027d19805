"""Tags of tokens, and the entities they mark, as conlleval and seqeval's default mode read them.

    O                   outside of every entity
    B-TYPE              the first token of an entity; I-TYPE a later one
    E-TYPE, S-TYPE      the last token of an entity; the only one (IOBES)
    B, I, E, S          the same without a type, where there is but one: "_" as seqeval calls it
    TYPE                no prefix: tokens side by side of one type are one entity

An entity may also begin with I-TYPE: after O, after E and S, and after a token of another type.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

OUTSIDE = "O"
PREFIXES = ("B", "I", "E", "S")
UNTYPED = "_"

_PREFIXED = re.compile(r"([A-Z])-(.*)", re.DOTALL)


class Chunk(NamedTuple):
    """An entity: its type, its first token, and the one after its last."""

    type: str
    start: int
    end: int


def split_tag(tag: str) -> tuple[str, str]:
    """Return a tag's prefix, "O" or one of `PREFIXES`, and its type, which is empty outside of entities.

    Raises:
        ValueError: the tag is empty or blank, has no type after its prefix, or another prefix.
    """
    if tag == OUTSIDE:
        return OUTSIDE, ""
    if tag in PREFIXES:
        return tag, UNTYPED
    found = _PREFIXED.fullmatch(tag)
    if found is None and tag.strip():
        return "I", tag
    if found is None:
        raise ValueError("is empty; a token outside of entities has the tag O")
    prefix, kind = found.groups()
    if prefix not in PREFIXES:
        raise ValueError(
            f"has the prefix {prefix}-; accepted are O and {', '.join(f'{each}-TYPE' for each in PREFIXES)}"
        )
    if not kind.strip():
        raise ValueError(f"has no type after {prefix}-; give one, such as {prefix}-PER")
    return prefix, kind


def continued(tag: str) -> tuple[str, ...]:
    """Return a tag, and the tags by which its entity would go on, were its token several."""
    prefixes = {"B": "BI", "S": "SBIE", "E": "EI"}.get(split_tag(tag)[0], "")
    return tuple(f"{prefix}{tag[1:]}" for prefix in prefixes) or (tag,)


def chunks(tags: Sequence[str]) -> list[Chunk]:
    """Return the entities that the tags of one sentence mark, in their order.

    Raises:
        ValueError: as `split_tag`.
    """
    found: list[Chunk] = []
    before, kind_before, start = OUTSIDE, "", 0
    for index, tag in enumerate((*tags, OUTSIDE)):
        prefix, kind = split_tag(tag)
        begins = prefix in ("B", "S") or before in ("O", "E", "S") or kind != kind_before
        if before != OUTSIDE and begins:
            found.append(Chunk(kind_before, start, index))
        if begins:
            start = index
        before, kind_before = prefix, kind
    return found
