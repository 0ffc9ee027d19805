"""Rows for next-sentence prediction, made as BERT's own `create_pretraining_data` makes them.

A row is two segments of whole sentences, about as many as fit. In half of the rows the second goes on where
the first ends; in the others it comes from another document, and the sentences that it displaced begin the
next row. Unlike there, every row may be either: a document's last sentence, if it remains alone, makes none.
"""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerFast

from sparse_export.pretraining.text import LEAST_DOCUMENTS
from sparse_export.tasks.trained import Encoded
from sparse_serve.data import TextData
from sparse_serve.errors import DataError

NEXT, RANDOM = 0, 1  # as Transformers' heads number them

# [CLS] first [SEP] second [SEP]
_SPECIAL_TOKENS = 3
# Of so many rows the length is drawn, so that short ones occur too.
_SHORT_SHARE = 0.1

Sentence = Sequence[int]
Document = Sequence[Sentence]


class Pair(NamedTuple):
    """Two segments of token ids, and whether the second is NEXT or RANDOM."""

    first: Sentence
    second: Sentence
    label: int


def encode_pairs(
    tokenizer: PreTrainedTokenizerFast, data: TextData, max_length: int, seed: int
) -> list[Encoded]:
    """Make rows of documents, whose sentences are the lines of `data`'s texts.

    Args:
        tokenizer: of the BERT kind.
        data: documents.
        max_length: tokens of a row, special ones included.
        seed: seeds what is drawn.

    Returns:
        One dict per row: `input_ids`, `token_type_ids` 0 for the first segment and 1 for the second, and
        `next_sentence_label`.

    Raises:
        DataError: there are fewer than two documents, or none with two sentences.
    """
    documents = list(_tokenized(tokenizer, data))
    if len(documents) < LEAST_DOCUMENTS:
        raise DataError(
            f"{data.source} has {len(documents)} document of the {LEAST_DOCUMENTS} or more that --nsp needs: "
            "separate documents by blank lines"
        )
    rows = [
        _encoded(tokenizer, pair)
        for pair in pairs_of(documents, max_length - _SPECIAL_TOKENS, random.Random(seed))
    ]
    if not rows:
        raise DataError(
            f"no document of {data.source} has two sentences; --nsp needs documents of several lines, a "
            "sentence in each"
        )
    return rows


def pairs_of(documents: Sequence[Document], budget: int, rng: random.Random) -> Iterator[Pair]:
    """Yield the pairs of every document in order; `budget` ≥ 2 are the tokens of both segments together."""
    for number, document in enumerate(documents):
        start = 0
        while start + 1 < len(document):
            target = budget if rng.random() >= _SHORT_SHARE else rng.randint(2, budget)
            end = _end_of_chunk(document, start, target)
            middle = rng.randint(start + 1, end - 1)
            first = _joined(document[start:middle])
            if rng.random() < 0.5:
                second, label = _joined(document[middle:end]), NEXT
                start = end
            else:
                other = rng.randrange(len(documents) - 1)
                other += other >= number
                second, label = _from(documents[other], target - len(first), rng), RANDOM
                start = middle
            yield Pair(*_cut(first, second, budget, rng), label)


def _tokenized(tokenizer: PreTrainedTokenizerFast, data: TextData) -> Iterator[Document]:
    for row in data.rows:
        sentences = tokenizer(row.text.split("\n"), add_special_tokens=False, verbose=False)["input_ids"]
        if document := [sentence for sentence in sentences if sentence]:
            yield document


def _end_of_chunk(document: Document, start: int, target: int) -> int:
    """Return the end of as many sentences as have `target` tokens together, and of two at least."""
    end, length = start, 0
    while end < len(document) and (length < target or end < start + 2):
        length += len(document[end])
        end += 1
    return end


def _from(document: Document, target: int, rng: random.Random) -> list[int]:
    """Return sentences from a random one on, until they have `target` tokens; one at least."""
    tokens: list[int] = []
    for sentence in document[rng.randrange(len(document)) :]:
        tokens += sentence
        if len(tokens) >= target:
            break
    return tokens


def _joined(sentences: Sequence[Sentence]) -> list[int]:
    return [token for sentence in sentences for token in sentence]


def _cut(first: Sentence, second: Sentence, budget: int, rng: random.Random) -> tuple[Sentence, Sentence]:
    """Take tokens off either end, at random, of what is the longer segment, until both fit."""
    fronts, lengths = [0, 0], [len(first), len(second)]
    while sum(lengths) > budget:
        longer = 0 if lengths[0] > lengths[1] else 1
        lengths[longer] -= 1
        fronts[longer] += rng.random() < 0.5
    (of_first, of_second), (first_length, second_length) = fronts, lengths
    return first[of_first : of_first + first_length], second[of_second : of_second + second_length]


def _encoded(tokenizer: PreTrainedTokenizerFast, pair: Pair) -> Encoded:
    start, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    first, second = [start, *pair.first, end], [*pair.second, end]
    return {
        "input_ids": first + second,
        "token_type_ids": [0] * len(first) + [1] * len(second),
        "next_sentence_label": pair.label,
    }
