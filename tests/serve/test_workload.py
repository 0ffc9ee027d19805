"""The requests that are sent: texts of exact lengths, rows of mixed ones."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_entry import CLASSES, PAIRS, SEVERAL, TAGS
from trained_tokenizers import bert_like, roberta_like

from sparse_serve.data import TextData, read_data, read_texts
from sparse_serve.errors import DataError, OptionError
from sparse_serve.profiling.workload import (
    BUILT_IN,
    REQUESTS,
    Tokens,
    make_workload,
    own_workload,
    row_lengths,
)
from sparse_serve.tasks import QuestionAnswering, Several, Task


@pytest.mark.parametrize(("make", "pad"), [(bert_like, 0), (roberta_like, 1)])
@pytest.mark.parametrize(("length", "batch_size"), [(3, 1), (17, 1), (512, 1), (64, 2), (128, 8)])
def test_texts_are_cut_to_exact_lengths(
    make: Callable[[Path], Tokens], pad: int, length: int, batch_size: int, tmp_path: Path
) -> None:
    tokens = make(tmp_path / "tokenizer.json")
    workload = make_workload(tokens, read_texts(None), length, batch_size)
    assert workload.source == BUILT_IN
    assert len(workload.batches) == REQUESTS
    assert length == 3 or len({batch.texts for batch in workload.batches}) == REQUESTS
    for batch in workload.batches:
        assert batch.row_lengths == row_lengths(length, batch_size, 3)
        assert [tokens.count(text) for text in batch.texts] == list(batch.row_lengths)
        ids, mask = batch.arrays["input_ids"], batch.arrays["attention_mask"]
        assert ids.shape == mask.shape == (batch_size, length)
        assert (ids[mask == 0] == pad).all()
        assert not (ids[mask == 1] == pad).any()


@pytest.mark.parametrize(("make", "special"), [(bert_like, 3), (roberta_like, 4)])
@pytest.mark.parametrize(("length", "batch_size"), [(6, 1), (7, 2), (64, 2), (128, 8), (512, 1)])
def test_questions_and_contexts_are_cut_to_exact_lengths(
    make: Callable[[Path, Task], Tokens], special: int, length: int, batch_size: int, tmp_path: Path
) -> None:
    tokens = make(tmp_path / "tokenizer.json", QuestionAnswering())
    workload = make_workload(tokens, read_texts(None), length, batch_size)
    for batch in workload.batches:
        assert batch.text_pairs is not None
        pairs = list(zip(batch.texts, batch.text_pairs, strict=True))
        assert batch.row_lengths == row_lengths(length, batch_size, special + 2)
        assert [tokens.count(question, context) for question, context in pairs] == list(batch.row_lengths)
        asked = [tokens.count(question, special=False) for question, _ in pairs]
        assert all(
            1 <= each <= max(1, min(12, (row - special) / 3))
            for each, row in zip(asked, batch.row_lengths, strict=True)
        )
        assert [len(each.windows) for each in batch.encoded] == [1] * batch_size
    with pytest.raises(
        OptionError, match=f"length {special + 1} leaves no room for a question and its context"
    ):
        make_workload(tokens, read_texts(None), special + 1, 1)


@pytest.mark.parametrize("length", [64, 512])
@pytest.mark.parametrize("batch_size", [2, 3, 8, 32])
def test_rows_of_a_batch_are_of_mixed_lengths(length: int, batch_size: int) -> None:
    lengths = row_lengths(length, batch_size, 3)
    assert len(lengths) == batch_size
    assert max(lengths) == length
    assert sum(lengths) / batch_size == pytest.approx(0.6 * length, abs=1)


def test_short_batches_keep_room_for_a_token() -> None:
    assert min(row_lengths(5, 8, 3)) == 3


def test_texts_without_a_single_token_word_are_refused(tmp_path: Path) -> None:
    tokens = bert_like(tmp_path / "tokenizer.json")
    with pytest.raises(DataError, match="no word of the texts is a single token"):
        make_workload(tokens, ["qqzzqqzz xxyyxxyy"], 16, 1)


@pytest.mark.parametrize(
    ("batch_size", "turns", "requests"),
    [(1, 4, 4), (2, 4, 4), (3, 4, 4), (4, 4, 4), (1, 3, 6), (2, 3, 6), (6, 3, 4), (1, 5, 5)],
)
def test_every_task_has_its_share_of_the_texts(
    tmp_path: Path, batch_size: int, turns: int, requests: int
) -> None:
    tokens = bert_like(tmp_path / "tokenizer.json", SEVERAL)
    names = [*SEVERAL.tasks, "sts"][:turns]
    workload = make_workload(tokens, read_texts(None), 16, batch_size, turns=names)
    assert len(workload.batches) == requests
    expected = {name: names.count(name) / turns for name in names}
    assert workload.task_shares == pytest.approx(expected)
    numbers = [*SEVERAL.tasks]
    for batch in workload.batches:
        ids = batch.arrays["task_ids"]
        assert ids.shape == (batch_size, 1)
        assert tuple(numbers[index] for index in ids[:, 0]) == batch.tasks


SINGLE, PAIRED = {"text_a": "a film"}, {"text_a": "a film", "text_b": "a fine one"}
BOTH = Several(tasks={"single": CLASSES, "paired": PAIRS})


def rows_of(folder: Path, record: dict[str, str]) -> TextData:
    """Three rows of a file."""
    path = folder / "rows.jsonl"
    path.write_text(f"{json.dumps(record)}\n" * 3)
    return read_data(path, labelled=False)


@pytest.mark.parametrize(
    ("task", "in_graph", "turns", "record", "sent"),
    [
        (CLASSES, False, (None,), SINGLE, None),
        (CLASSES, False, (None,), PAIRED, "a fine one"),
        (CLASSES, True, (None,), SINGLE, None),
        (PAIRS, True, (None,), PAIRED, "a fine one"),
        (TAGS, False, (None,), SINGLE, None),
        (QuestionAnswering(), False, (None,), PAIRED, "a fine one"),
        (SEVERAL, False, ("sts", "topics"), PAIRED, "a fine one"),
        (BOTH, True, ("single",), SINGLE, ""),
        (BOTH, True, ("paired",), PAIRED, "a fine one"),
    ],
)
def test_texts_of_a_file_are_sent_as_they_are(
    tmp_path: Path,
    task: Task,
    in_graph: bool,
    turns: tuple[str | None, ...],
    record: dict[str, str],
    sent: str | None,
) -> None:
    """A graph of several tasks is sent a second text with each, which some tasks leave unread."""
    tokens = bert_like(tmp_path / "tokenizer.json", task, in_graph=in_graph)
    workload = own_workload(tokens, rows_of(tmp_path, record), 2, turns)
    (batch,) = workload.batches
    assert (batch.texts, batch.text_pairs) == (("a film",) * 2, None if sent is None else (sent,) * 2)
    if sent != "":
        assert batch.row_lengths == (tokens.count("a film", sent),) * 2


def test_texts_of_a_long_file_are_taken_from_all_of_it(tmp_path: Path) -> None:
    tokens = bert_like(tmp_path / "tokenizer.json", CLASSES)
    path = tmp_path / "day.txt"
    path.write_text("".join(f"{number}\n" for number in range(2000)), encoding="utf-8")
    workload = own_workload(tokens, read_data(path, labelled=False), 2)
    sent = [int(text) for batch in workload.batches for text in batch.texts]
    assert (len(workload.batches), len(sent)) == (512, 1024)
    assert sent == sorted(set(sent))
    assert (sent[0], sent[-1] > 1990) == (0, True)


@pytest.mark.parametrize(
    ("task", "in_graph", "turns", "record", "message"),
    [
        (CLASSES, True, (None,), PAIRED, "pairs of texts, and the model reads single texts"),
        (TAGS, False, (None,), PAIRED, "pairs of texts, and the model reads single texts"),
        (PAIRS, True, (None,), SINGLE, "single texts, and the model reads pairs of texts"),
        (QuestionAnswering(), False, (None,), SINGLE, "single texts, and the model reads pairs of texts"),
        (BOTH, True, tuple(BOTH.tasks), SINGLE, "single texts, and task 'paired' reads pairs of texts"),
        (BOTH, True, tuple(BOTH.tasks), PAIRED, "pairs of texts, and task 'single' reads single texts"),
    ],
)
def test_texts_of_a_file_are_those_that_the_model_reads(
    tmp_path: Path,
    task: Task,
    in_graph: bool,
    turns: tuple[str | None, ...],
    record: dict[str, str],
    message: str,
) -> None:
    tokens = bert_like(tmp_path / "tokenizer.json", task, in_graph=in_graph)
    with pytest.raises(DataError, match=rf"rows\.jsonl has {message}: give other rows"):
        own_workload(tokens, rows_of(tmp_path, record), 2, turns)
