"""Spans: windows as Transformers makes them, answers as a loop over windows and tokens finds them."""

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from tiny_tokenizers import KINDS, TEXTS, wordpiece
from transformers import PreTrainedTokenizerFast

from sparse_serve.errors import TaskError
from sparse_serve.tasks import EncodedText, QuestionAnswering
from sparse_serve.tasks.encoding import Window

Reply = tuple[str, int, int, float]


def outputs_of(
    encoded: Sequence[EncodedText], rng: np.random.Generator, levels: int | None = None
) -> npt.NDArray[np.float32]:
    """Random logits of all windows, filled up; of few `levels`, so that many are equal."""
    windows = [window for text in encoded for window in text.windows]
    shape = (len(windows), max(map(len, windows)) + 2, 2)
    if levels is None:
        return rng.normal(0, 3, shape).astype(np.float32)
    return rng.integers(0, levels, shape).astype(np.float32)


def by_a_loop(task: QuestionAnswering, text: EncodedText, logits: Sequence[npt.NDArray[np.float32]]) -> Reply:
    """The answer of the contract, a window and a pair of tokens at a time."""
    best: tuple[float, Reply] | None = None
    null: tuple[float, float] | None = None
    for window, (starts, ends) in zip(
        text.windows, (each.T.astype(np.float64) for each in logits), strict=True
    ):
        inside = [token for token, sequence in enumerate(window.sequence_ids) if sequence == 1]

        def probability(values: npt.NDArray[np.float64], token: int, among: list[int]) -> float:
            return float(1 / np.exp(values[among] - values[token]).sum())

        if inside:
            none = float(starts[0] + ends[0])
            if null is None or none < null[0]:
                among = [0, *inside]
                null = none, probability(starts, 0, among) * probability(ends, 0, among)
        for first in inside:
            for last in inside:
                if not first <= last < first + task.max_answer_tokens:
                    continue
                total = float(starts[first] + ends[last])
                if best is None or total > best[0]:
                    start, end = window.offsets[first][0], window.offsets[last][1]
                    score = probability(starts, first, inside) * probability(ends, last, inside)
                    best = total, (text.text[start:end], start, end, score)
    if best is None:
        return "", -1, -1, 0.0
    if task.no_answer and null is not None and null[0] > best[0]:
        return "", -1, -1, null[1]
    return best[1]


def replies(columns: dict[str, npt.NDArray[np.generic]]) -> list[Reply]:
    rows = zip(*(columns[name][:, 0] for name in ("answer", "start", "end", "score")), strict=True)
    return [(answer.decode(), int(start), int(end), float(score)) for answer, start, end, score in rows]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("no_answer", [False, True])
@pytest.mark.parametrize("levels", [None, 3])
def test_answers_are_those_of_a_loop(kind: str, no_answer: bool, levels: int | None) -> None:
    task = QuestionAnswering(max_answer_tokens=5, stride=6, no_answer=no_answer)
    contexts = [*TEXTS, *(f"{a} {b} " * 4 for a, b in zip(TEXTS, TEXTS[3:], strict=False))]
    questions = [("who", "why so", "")[row % 3] for row in range(len(contexts))]
    encoded = task.encode(KINDS[kind](), questions, contexts, 24)
    assert max(len(text.windows) for text in encoded) > 9
    for seed in range(5):
        output = outputs_of(encoded, np.random.default_rng(seed), levels)
        found = replies(task.answer(encoded, output))
        row = 0
        for text, reply in zip(encoded, found, strict=True):
            logits = output[row : row + len(text.windows)]
            row += len(text.windows)
            expected = by_a_loop(
                task, text, [each[: len(window)] for each, window in zip(logits, text.windows, strict=True)]
            )
            assert reply[:3] == expected[:3]
            assert reply[3] == pytest.approx(expected[3], rel=1e-5)
            if reply[1] >= 0:
                assert text.text[reply[1] : reply[2]] == reply[0]


@pytest.mark.parametrize("kind", KINDS)
def test_windows_are_those_of_transformers(kind: str) -> None:
    tokenizer = KINDS[kind]()
    task = QuestionAnswering(stride=7)
    plain = PreTrainedTokenizerFast(tokenizer_object=KINDS[kind](), pad_token="x")
    contexts = [text * 5 for text in TEXTS if text]
    for context, text in zip(
        contexts, task.encode(tokenizer, ["who is"] * len(contexts), contexts, 32), strict=True
    ):
        expected = plain(
            "who is",
            context,
            truncation="only_second",
            max_length=32,
            stride=7,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        assert [window.ids for window in text.windows] == expected["input_ids"]
        assert [window.offsets for window in text.windows] == expected["offset_mapping"]
        assert not text.truncated


def context_tokens(window: Window) -> list[int]:
    return [token for token, sequence in zip(window.ids, window.sequence_ids, strict=True) if sequence == 1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stride", [0, 1, 5, 1000])
@pytest.mark.parametrize("words", [0, 3, 30])
def test_windows_advance_and_leave_nothing_out(kind: str, stride: int, words: int) -> None:
    """Whatever the question takes, at least half of the room is the context's, and half of that is new."""
    task = QuestionAnswering(stride=stride)
    tokenizer = KINDS[kind]()
    question, context = "q" * words, " ".join("abcdefgh"[: 1 + number % 8] for number in range(60))
    (text,) = task.encode(tokenizer, [question], [context], 20)
    tokenizer.no_truncation()
    whole = tokenizer.encode(context, add_special_tokens=False).ids
    room = 20 - tokenizer.num_special_tokens_to_add(True)
    assert text.truncated == (words == 30)
    seen = context_tokens(text.windows[0])
    assert len(seen) >= room / 2
    overlap = min(stride, len(seen) // 2)
    assert all(len(window) <= 20 for window in text.windows)
    for window in text.windows[1:]:
        tokens = context_tokens(window)
        assert seen[len(seen) - overlap :] == tokens[:overlap]
        seen += tokens[overlap:]
    assert seen == whole
    offsets = [window.offsets[-2] for window in text.windows]
    assert offsets == sorted(offsets)


def test_a_question_that_is_too_long_is_cut_only_where_it_must_be() -> None:
    task, tokenizer = QuestionAnswering(stride=4), wordpiece()
    fitting, cut = task.encode(tokenizer, ["q" * 12, "q" * 12], ["abc", "abcdef"], 19)
    assert (len(fitting.windows), fitting.truncated, fitting.token_count) == (1, False, 3 + 12 + 3)
    assert cut.truncated
    (window,) = cut.windows
    assert window.type_ids == [0] * 10 + [1] * 7
    assert window.tokens[:10] == ["[CLS]", "q", *["##q"] * 7, "[SEP]"]


def test_rows_do_not_depend_on_their_companions() -> None:
    task = QuestionAnswering(stride=5)
    questions = ["who", "q" * 30, "", "why is that so"]
    contexts = ["ab " * 40, "cd " * 9, "", "ef"]
    tokenizer = wordpiece()
    together = task.encode(tokenizer, questions, contexts, 24)
    for question, context, text in zip(questions, contexts, together, strict=True):
        (alone,) = task.encode(tokenizer, [question], [context], 24)
        assert [window.ids for window in alone.windows] == [window.ids for window in text.windows]


@pytest.mark.parametrize("pairs", [None, [None, "x"], ["x", None]])
def test_a_question_needs_a_context(pairs: list[str | None] | None) -> None:
    with pytest.raises(TaskError, match="question answering needs TEXT_PAIR beside TEXT"):
        QuestionAnswering().encode(wordpiece(), ["a", "b"], pairs, 24)


def test_numbers_that_are_none_answer_nothing() -> None:
    task = QuestionAnswering()
    encoded = task.encode(wordpiece(), ["a"], ["b c"], 24)
    output = np.full((1, len(encoded[0].windows[0]), 2), np.nan, np.float32)
    assert replies(task.answer(encoded, output)) == [("", -1, -1, 0.0)]


def test_a_long_context_takes_no_longer_than_its_tokens() -> None:
    """Of up to 200,000 characters, 800 windows: four times as many take some four times as long."""
    task, tokenizer = QuestionAnswering(), wordpiece()
    seconds: list[float] = []
    for words in (10_000, 40_000):
        context = "abcd " * words
        encoded = task.encode(tokenizer, ["who"], [context], 384)
        assert len(encoded[0].windows) > words / 80
        output = outputs_of(encoded, np.random.default_rng(0))
        tries = []
        for _ in range(3):
            begun = time.process_time()
            ((answer, start, end, _),) = replies(task.answer(encoded, output))
            tries.append(time.process_time() - begun)
            assert context[start:end] == answer
        seconds.append(min(tries))
    assert seconds[1] < 8 * seconds[0]
