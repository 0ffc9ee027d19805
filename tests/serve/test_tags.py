"""Tags of tokens and the entities they mark, beside seqeval, which reads them as conlleval does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from sparse_serve.tags import Chunk, chunks, split_tag

TAGS = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "LOC", "x-y")), *"BIES"]


@given(st.lists(st.sampled_from(TAGS), max_size=12))
@settings(max_examples=300, deadline=None)
def test_entities_are_those_of_seqeval(tags: list[str]) -> None:
    assert chunks(tags) == [Chunk(kind, first, last + 1) for kind, first, last in get_entities(tags)]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ([], []),
        (["O", "I-PER", "I-PER", "O"], [("PER", 1, 3)]),  # begins with I
        (["B-PER", "I-LOC"], [("PER", 0, 1), ("LOC", 1, 2)]),
        (["B-PER", "B-PER", "I-PER"], [("PER", 0, 1), ("PER", 1, 3)]),
        (["S-PER", "I-PER", "E-PER", "E-PER"], [("PER", 0, 1), ("PER", 1, 3), ("PER", 3, 4)]),
        (["NOUN", "NOUN", "O", "VERB", "b-per"], [("NOUN", 0, 2), ("VERB", 3, 4), ("b-per", 4, 5)]),
        (["B-PER", "PER"], [("PER", 0, 2)]),
        (["B", "I", "O", "I"], [("_", 0, 2), ("_", 3, 4)]),
    ],
)
def test_entities_by_hand(tags: list[str], expected: list[tuple[str, int, int]]) -> None:
    assert chunks(tags) == expected


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ("", "is empty"),
        (" ", "is empty"),
        ("B-", "has no type after B-; give one, such as B-PER"),
        ("I- ", "has no type after I-"),
        ("U-PER", "has the prefix U-; accepted are O and B-TYPE, I-TYPE, E-TYPE, S-TYPE"),
        ("O-PER", "has the prefix O-"),
        ("X-", "has the prefix X-"),
    ],
)
def test_tags_of_no_scheme_are_refused(tag: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_tag(tag)
    with pytest.raises(ValueError, match=message):
        chunks(["O", tag])
