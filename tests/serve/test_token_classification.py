"""Entities: the words of the pre-tokenizer, tagged at their first piece, as seqeval joins them."""

import json
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from seqeval.metrics.sequence_labeling import get_entities
from tiny_tokenizers import KINDS, TEXTS, bytelevel, wordpiece
from tokenizers import Tokenizer

from sparse_serve.errors import TaskError
from sparse_serve.tasks import EncodedText, TokenClassification

IOBES = ("O", *(f"{prefix}-{kind}" for kind, prefix in product(("PER", "LOC"), "BIES")))
MAX_LENGTH = 40


def logits_of(encoded: list[EncodedText], labels: int, seed: int) -> npt.NDArray[np.float32]:
    length = max(len(text.windows[0]) for text in encoded) + 3
    return np.random.default_rng(seed).normal(0, 3, (len(encoded), length, labels)).astype(np.float32)


def entities(task: TokenClassification, encoded: list[EncodedText], logits: npt.NDArray[Any]) -> list[Any]:
    return [json.loads(row) for row in task.answer(encoded, logits)["entities"][:, 0]]


def by_a_loop(
    tokenizer: Tokenizer, text: str, labels: tuple[str, ...], logits: npt.NDArray[np.float32]
) -> list[dict[str, Any]]:
    """The entities of the contract, from the tokenizer's own words and seqeval's entities."""
    tokenizer.enable_truncation(MAX_LENGTH)
    encoding = tokenizer.encode(text)
    words = sorted({word for word in encoding.word_ids if word is not None})
    firsts = [encoding.word_ids.index(word) for word in words]
    lasts = [len(encoding) - 1 - encoding.word_ids[::-1].index(word) for word in words]
    chosen = [int(logits[token].argmax()) for token in firsts]
    found = []
    for label, first, last in get_entities([labels[index] for index in chosen]):
        start, end = encoding.offsets[firsts[first]][0], encoding.offsets[lasts[last]][1]
        scores = []
        for word in range(first, last + 1):
            row = logits[firsts[word]].astype(np.float64)
            scores.append(float(1 / np.exp(row - row[chosen[word]]).sum()))
        score = pytest.approx(np.mean(scores), rel=1e-5)
        found.append({"label": label, "start": start, "end": end, "text": text[start:end], "score": score})
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "labels", [IOBES, ("I-PER", "O", "B-PER"), ("O", "person", "place"), ("O", "B", "I")]
)
def test_entities_are_those_of_a_loop(kind: str, labels: tuple[str, ...]) -> None:
    task = TokenClassification(labels)
    texts = [*TEXTS, *(f"{a} {b}" for a, b in zip(TEXTS, TEXTS[2:], strict=False))]
    encoded = task.encode(KINDS[kind](), texts, None, MAX_LENGTH)
    count = 0
    for seed in range(10):
        logits = logits_of(encoded, len(labels), seed)
        found = entities(task, encoded, logits)
        # seqeval reads a tag without a prefix by its first letter.
        spelled = tuple(
            label if label in ("O", "B", "I") or label[1] == "-" else f"I-{label}" for label in labels
        )
        for text, row, own in zip(texts, found, logits, strict=True):
            assert row == by_a_loop(KINDS[kind](), text, spelled, own)
            count += len(row)
            assert all(text[each["start"] : each["end"]] == each["text"] for each in row)
    assert count > 100


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("I-PER I-PER O", [("PER", "ab cd")]),
        ("O I-PER B-PER", [("PER", "cd"), ("PER", "ef")]),
        ("B-PER I-LOC I-LOC", [("PER", "ab"), ("LOC", "cd ef")]),
        ("E-PER S-PER I-PER", [("PER", "ab"), ("PER", "cd"), ("PER", "ef")]),
        ("O O O", []),
    ],
)
def test_an_entity_may_begin_with_any_tag(tags: str, expected: list[tuple[str, str]]) -> None:
    task, tokenizer = TokenClassification(IOBES), wordpiece()
    encoded = task.encode(tokenizer, ["ab cd ef"], None, MAX_LENGTH)
    logits = np.zeros((1, len(encoded[0].windows[0]), len(IOBES)), np.float32)
    for word, tag in enumerate(tags.split()):
        # The second piece says something else, and is not asked.
        logits[0, 1 + 2 * word, IOBES.index(tag)] = 9
        logits[0, 2 + 2 * word, IOBES.index("S-LOC")] = 99
    (row,) = entities(task, encoded, logits)
    assert [(each["label"], each["text"]) for each in row] == expected
    assert all(each["score"] == pytest.approx(np.exp(9) / (np.exp(9) + 8), rel=1e-6) for each in row)


@pytest.mark.parametrize("text", ["", "  \t\r\n", "\u200b"])
def test_a_text_without_words_has_no_entities(text: str) -> None:
    task = TokenClassification(IOBES)
    encoded = task.encode(wordpiece(), [text], None, MAX_LENGTH)
    assert entities(task, encoded, logits_of(encoded, len(IOBES), 0)) == [[]]


def test_long_texts_are_cut_and_flagged() -> None:
    task = TokenClassification(("O", "I-X"))
    encoded = task.encode(bytelevel(), ["a" * 38, "a" * 39], None, MAX_LENGTH)
    assert [text.truncated for text in encoded] == [False, True]
    logits = np.tile(np.array([0, 1], np.float32), (2, MAX_LENGTH, 1))
    assert [row[0]["end"] for row in entities(task, encoded, logits)] == [38, 38]


def test_a_second_text_is_refused() -> None:
    with pytest.raises(TaskError, match="token classification reads TEXT alone: leave out TEXT_PAIR"):
        TokenClassification(IOBES).encode(wordpiece(), ["a"], ["b"], MAX_LENGTH)
