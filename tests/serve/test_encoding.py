"""Texts that are cut: as the `tokenizers` library cuts them, from either side, at the cost of their bytes."""

import pytest
from tiny_tokenizers import KINDS, TEXTS
from tokenizers import Tokenizer

from sparse_serve.tasks.encoding import Pairs, Truncation, encode_cut

SINGLES = [*TEXTS, *(text * 4 for text in TEXTS)]
# Each text in front of others, and behind them.
FIRSTS, SECONDS = zip(
    *((a * 3, TEXTS[number - apart] * 2) for number, a in enumerate(TEXTS) for apart in (1, 4)), strict=True
)


def by_the_library(
    tokenizer: Tokenizer, rows: list[object], max_length: int, side: Truncation, *, offsets: bool
) -> list[tuple[object, ...]]:
    tokenizer.enable_truncation(max_length, strategy="longest_first", direction=side)
    encode = tokenizer.encode_batch if offsets else tokenizer.encode_batch_fast
    return [
        (each.ids, each.type_ids, each.sequence_ids, each.word_ids, bool(each.overflowing))
        + ((each.offsets, each.tokens) if offsets else ())
        for each in encode(rows)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("offsets", [False, True])
def test_texts_and_pairs_are_cut_as_the_library_cuts_them(kind: str, side: Truncation, offsets: bool) -> None:
    tokenizer = KINDS[kind]()
    cases: list[tuple[list[str], Pairs, list[object]]] = [
        (SINGLES, None, [*SINGLES]),
        ([*FIRSTS], SECONDS, [*zip(FIRSTS, SECONDS, strict=True)]),
    ]
    for texts, pairs, rows in cases:
        for max_length in (5, 8, 9, 16, 29):
            found = encode_cut(tokenizer, texts, pairs, max_length, side, offsets=offsets)
            expected = by_the_library(tokenizer, rows, max_length, side, offsets=offsets)
            for text, wanted in zip(found, expected, strict=True):
                (cut,) = text.windows
                told = (cut.ids, cut.type_ids, cut.sequence_ids, cut.word_ids, text.truncated)
                assert told + ((cut.offsets, cut.tokens) if offsets else ()) == wanted
                assert text.token_count == len(cut) == len(cut.ids) <= max_length
                assert text.truncated == (text.length > text.limit == max_length)


@pytest.mark.parametrize("kind", KINDS)
def test_two_long_texts_keep_half_of_a_row_each(kind: str) -> None:
    """A row of every two parts that are cut off would be 10⁸ of them."""
    (text,) = encode_cut(KINDS[kind](), ["ab " * 60_000], ["cd " * 60_000], 24)
    (cut,) = text.windows
    assert text.length > 120_000
    assert cut.sequence_ids.count(1) - cut.sequence_ids.count(0) in (0, 1)
    assert not getattr(cut, "overflowing", [])
