"""What a language model is trained on: texts read, sentences paired, tokens masked."""

import gc
import random
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import torch
from rich.console import Console
from transformers import BertTokenizerFast

from sparse_export.checkpoint import load_config
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.pretraining import PretrainOptions
from sparse_export.pretraining.corpus import TokenRows, tokenize
from sparse_export.pretraining.job import set_rows_aside
from sparse_export.pretraining.masking import MaskedRows, Masking
from sparse_export.pretraining.sentences import NEXT, RANDOM, encode_pairs, pairs_of
from sparse_export.pretraining.text import reading_of
from sparse_export.tasks.trained import IGNORED
from sparse_export.training.calibration import set_aside
from sparse_export.training.sources import Source, read_rows
from sparse_serve.data import Columns, Row, TextData
from sparse_serve.errors import CheckpointError, DataError
from tiny_models import make_tokenizer

OPTIONS = PretrainOptions(max_train_rows=None)
NSP = PretrainOptions(nsp=True)
BUDGET = 40


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def rows_of(count: int, length: int) -> list[dict[str, Any]]:
    """Rows of tokens that are no special ones, between [CLS] and [SEP]."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 80, (count, length), generator=generator)
    return [{"input_ids": [2, *row, 3], "token_type_ids": [0] * (length + 2)} for row in ids.tolist()]


def test_fifteen_percent_are_to_be_told_of_which_80_are_masked_10_random_and_10_as_they_were(
    tokenizer: Any,
) -> None:
    masking = Masking(tokenizer, seed=0)
    counts: Counter[str] = Counter()
    for number, row in enumerate(rows_of(1000, 100)):
        masked = masking.training(row, 0, number)
        assert masked["token_type_ids"] == row["token_type_ids"]
        for before, after, label in zip(row["input_ids"], masked["input_ids"], masked["labels"], strict=True):
            if label == IGNORED:
                assert after == before
                counts["left"] += 1
                continue
            assert label == before  # what is to be told is what stood there
            is_mask = after == tokenizer.mask_token_id
            counts["mask" if is_mask else "same" if after == before else "random"] += 1
    told = counts["mask"] + counts["random"] + counts["same"]
    # Three standard errors; of a random token one in 83 is the one that it replaces, or the mask.
    assert told / 100_000 == pytest.approx(0.15, abs=0.0035)
    assert counts["mask"] / told == pytest.approx(0.8, abs=0.011)
    assert counts["random"] / told == pytest.approx(0.1, abs=0.009)
    assert counts["same"] / told == pytest.approx(0.1, abs=0.009)


def test_special_tokens_are_never_told(tokenizer: Any) -> None:
    """Nor what the tokenizer does not know, nor special tokens that the text itself holds."""
    special = tokenizer.all_special_ids
    assert len(special) == 5
    row = {"input_ids": [*special, 9] * 200}
    masked = Masking(tokenizer, seed=3).evaluation(row, 0)
    labels = torch.tensor(masked["labels"]).view(200, 6)
    assert (labels[:, :5] == IGNORED).all()
    assert (labels[:, 5] != IGNORED).any()
    assert torch.equal(torch.tensor(masked["input_ids"]).view(200, 6)[:, :5], torch.tensor([special] * 200))


def test_a_mask_depends_on_seed_epoch_and_row_alone(tokenizer: Any) -> None:
    rows = rows_of(4, 60)
    batches: Any = SimpleNamespace(epoch=0)
    masked = MaskedRows(rows, batches, Masking(tokenizer, seed=5))
    first = [masked[number] for number in range(4)]
    torch.manual_seed(1)
    assert [masked[number] for number in (3, 1)] == [first[3], first[1]]
    batches.epoch = 1
    assert all(masked[number]["labels"] != first[number]["labels"] for number in range(4))
    other = Masking(tokenizer, seed=6)
    assert other.training(rows[0], 0, 0) != first[0]
    assert Masking(tokenizer, seed=5).training(rows[0], 0, 0) == first[0]
    # Evaluation rows are masked by other numbers, the same in every epoch.
    assert Masking(tokenizer, seed=5).evaluation(rows[0], 0)["labels"] != first[0]["labels"]


def test_a_tokenizer_without_a_mask_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    other = make_tokenizer(tmp_path)
    other.mask_token = None
    with pytest.raises(CheckpointError, match="the encoder's tokenizer has no mask token"):
        Masking(other, seed=0)


def documents(count: int, seed: int = 0) -> list[list[list[int]]]:
    """Documents of 1 to 12 sentences of 1 to 15 tokens, each token the only one of its number."""
    rng = random.Random(seed)
    numbers = iter(range(10**6))
    return [
        [[next(numbers) for _ in range(rng.randint(1, 15))] for _ in range(rng.randint(1, 12))]
        for _ in range(count)
    ]


def test_half_of_the_second_segments_follow() -> None:
    pairs = list(pairs_of(documents(1500), BUDGET, random.Random(1)))
    assert len(pairs) > 2500
    assert sum(pair.label == NEXT for pair in pairs) / len(pairs) == pytest.approx(0.5, abs=0.03)


def test_segments_are_where_they_claim_to_be() -> None:
    found = documents(200)
    place = {
        token: (number, position)
        for number, document in enumerate(found)
        for position, token in enumerate(token for sentence in document for token in sentence)
    }
    starts = {sentence[0] for document in found for sentence in document}
    pairs = list(pairs_of(found, BUDGET, random.Random(2)))
    untouched = [pair for pair in pairs if len(pair.first) + len(pair.second) < BUDGET]
    assert len(untouched) > 100
    for first, second, label in pairs:
        assert first
        assert second
        assert len(first) + len(second) <= BUDGET
        for segment in (first, second):  # one piece of one document
            assert [place[token] for token in segment] == [
                (place[segment[0]][0], place[segment[0]][1] + offset) for offset in range(len(segment))
            ]
        assert (place[first[0]][0] == place[second[0]][0]) == (label == NEXT)
    for first, second, label in untouched:
        assert first[0] in starts
        assert second[0] in starts
        if label == NEXT:
            assert place[second[0]][1] == place[first[-1]][1] + 1


def test_no_sentence_is_left_out_but_a_last_one_that_remains_alone() -> None:
    found = documents(60)
    firsts = {token for pair in pairs_of(found, 1000, random.Random(3)) for token in pair.first}
    seconds = {
        token
        for pair in pairs_of(found, 1000, random.Random(3))
        if pair.label == NEXT
        for token in pair.second
    }
    for document in found:
        missing = [sentence for sentence in document if sentence[0] not in firsts | seconds]
        assert missing in ([], [document[-1]])


def test_short_rows_occur_and_long_sentences_are_cut_at_both_ends() -> None:
    long = [[list(range(start, start + 100)) for start in (0, 100, 200, 300)] for _ in range(200)]
    pairs = list(pairs_of(long, BUDGET, random.Random(4)))
    assert {len(pair.first) + len(pair.second) for pair in pairs} == {BUDGET}
    fronts = {pair.first[0] % 100 for pair in pairs}
    assert len(fronts) > 10
    short = [[[token] for token in range(200)] for _ in range(50)]
    lengths = [len(pair.first) + len(pair.second) for pair in pairs_of(short, BUDGET, random.Random(4))]
    assert sum(length < BUDGET - 3 for length in lengths) / len(lengths) > 0.05


def data(*texts: str) -> TextData:
    return TextData(
        "text", tuple(Row(n, text, "", "") for n, text in enumerate(texts, start=1)), (), len(texts)
    )


def test_pairs_are_encoded_as_the_tokenizer_encodes_pairs(tokenizer: BertTokenizerFast) -> None:
    texts = data("ab\nc d", "x\ny")
    for row in encode_pairs(tokenizer, texts, 64, seed=0):
        ids = row["input_ids"]
        first, second = tokenizer.decode(ids).removeprefix("[CLS]").removesuffix("[SEP]").split("[SEP]")
        expected = tokenizer(first.strip(), second.strip())
        assert row["input_ids"] == expected["input_ids"]
        assert row["token_type_ids"] == expected["token_type_ids"]
        assert row["next_sentence_label"] in (NEXT, RANDOM)
        end = ids.index(tokenizer.sep_token_id)
        assert row["token_type_ids"] == [0] * (end + 1) + [1] * (len(ids) - end - 1)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("a\nb",), "text has 1 document of the 2 or more that --nsp needs: separate documents by blank"),
        (("a\nb", "\u200b"), "text has 1 document of the 2 or more"),  # nothing is left of the second
        (("a", "b"), "no document of text has two sentences"),
    ],
)
def test_documents_that_make_no_pairs_are_refused(
    tokenizer: Any, texts: tuple[str, ...], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        encode_pairs(tokenizer, data(*texts), 32, seed=0)


def read(source: Source, options: PretrainOptions) -> list[str]:
    """The texts that are trained on, with some others to evaluate on."""
    rows, _, held_out = read_rows(source, source, options, reading_of(options), Console(quiet=True))
    assert not held_out
    assert rows.record.rows == len(rows.data.rows)
    return [row.text for row in rows.data.rows]


PLAIN = "﻿one two\r\n\r\nthree\n   \n four\tand  five \nsix\n\n\nseven"


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("corpus.txt", PLAIN, Columns()),
        ("corpus.TXT", PLAIN, Columns("t")),
        (
            "corpus.jsonl",
            '{"t": "one two"}\n{"t": ""}\n{"t": "three"}\n{"t": " "}\n{"t": " four\\tand  five "}\n'
            '{"t": "six"}\n{"t": ""}\n{"t": "seven", "label": 3}\n',
            Columns("t"),
        ),
        (
            "corpus.csv",
            'text_a,n\n"one two",1\n"",1\nthree,1\n" ",1\n" four\tand  five ",1\nsix,1\n"",1\n"seven",1\n',
            Columns(),
        ),
    ],
)
def test_rows_are_texts_and_with_nsp_documents(
    tmp_path: Path, name: str, content: str, columns: Columns
) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    assert read(path, replace(OPTIONS, columns=columns)) == [
        "one two",
        "three",
        " four\tand  five ",
        "six",
        "seven",
    ]
    assert read(path, replace(NSP, columns=columns)) == ["one two", "three", "four and five\nsix", "seven"]


def test_sentences_of_several_lines_stay_one(tmp_path: Path) -> None:
    path = tmp_path / "corpus.csv"
    path.write_text('text_a\n"one\ntwo"\nthree\n', encoding="utf-8")
    assert read(path, NSP) == ["one two\nthree"]


def test_whole_documents_are_held_out_and_sampled(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{n} a\n{n} b\n\n" for n in range(40)), encoding="utf-8")
    rows, held, held_out = read_rows(path, None, NSP, reading_of(NSP), Console(quiet=True))
    assert held_out
    assert (len(rows.data.rows), len(held.data.rows)) == (36, 4)
    assert {row.text for row in (*rows.data.rows, *held.data.rows)} == {f"{n} a\n{n} b" for n in range(40)}
    some = replace(NSP, max_train_rows=5)
    rows, held, _ = read_rows(path, None, some, reading_of(some), Console(quiet=True))
    assert (len(rows.data.rows), len(held.data.rows)) == (3, 2)  # random seconds need two
    assert (held.record.rows, held.record.total_rows) == (2, 40)


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.txt", "", OPTIONS, "a.txt is empty; it needs one record or more"),
        ("a.txt", " \n\n", OPTIONS, "a.txt has no rows; it needs one text or more"),
        ("a.txt", "a\nb\xff".encode("latin-1"), OPTIONS, r"a.txt, line 2: not UTF-8 \(byte 0xff"),
        ("a.txt", "a\n", replace(OPTIONS, columns=Columns(text_pair="b")), "which has no column 'b'; leave"),
        ("a.md", "a\n", OPTIONS, r"a.md has suffix '.md'; accepted are .tsv, .csv, .jsonl, .txt"),
        ("a.tsv", "text_a\ttext_b\na\tb\n", NSP, r"line 2: there is a second text \('text_b'\), but --nsp"),
        ("a.tsv", "t\na\n", OPTIONS, "there is no column 'text_a'; the columns are t"),
        ("a.jsonl", '{"text_a": 3}\n', OPTIONS, "line 1: column 'text_a' holds 3; a text is needed"),
        ("a.jsonl", '{"text_a": null}\n', NSP, "line 1: column 'text_a' holds None; a text is needed"),
    ],
)
def test_bad_text_is_refused(
    tmp_path: Path, name: str, content: str | bytes, options: PretrainOptions, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message):
        read(path, options)


def corpus(rows: int) -> TextData:
    words = ("the", "film", "is", "very", "good")
    texts = [" ".join(words[number % 3 :] * (number % 4)) for number in range(rows)]
    return TextData("corpus", tuple(Row(n, text, "", "") for n, text in enumerate(texts)), (), rows)


def test_tokens_on_disk_are_the_tokenizers(encoder: Path) -> None:
    tokenizer, config, data = load_tokenizer(encoder), load_config(encoder), corpus(1200)
    rows = tokenize(tokenizer, config, data, 9)
    assert len(rows) == 1200
    for number in (0, 7, 999, 1000, 1199):
        expected = tokenizer(data.rows[number].text, truncation=True, max_length=9)
        assert rows[number] == {name: expected[name] for name in ("input_ids", "token_type_ids")}
        assert rows.lengths[number] == len(expected["input_ids"])
    assert rows[1198:] == [rows[1198], rows[1199]]


def test_the_memory_of_tokens_does_not_grow_with_the_corpus(encoder: Path) -> None:
    """But for a number for each row, its length; as lists its tokens would take some hundred bytes."""
    tokenizer, config = load_tokenizer(encoder), load_config(encoder)
    tokenize(tokenizer, config, corpus(1000), 24)  # what is made once
    kept = []
    for size in (2000, 12_000):
        data = corpus(size)
        gc.collect()
        tracemalloc.start()
        rows = tokenize(tokenizer, config, data, 24)
        kept.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert len(rows) == size
    assert kept[1] - kept[0] < 10_000 * 24


def test_rows_set_aside_leave_the_others_on_disk(encoder: Path) -> None:
    rows = tokenize(load_tokenizer(encoder), load_config(encoder), corpus(300), 24)
    listed, judged = list(rows), rows[:20]
    kept, aside = set_rows_aside(rows, judged, 3)
    assert isinstance(kept, TokenRows)
    assert (list(kept), aside) == set_aside(listed, judged, 3)
    assert kept.lengths == [len(row["input_ids"]) for row in kept]
    assert set_rows_aside(listed, judged, 3) == (list(kept), aside)


def test_tokens_go_with_the_run(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = tokenize(load_tokenizer(encoder), load_config(encoder), corpus(5), 24)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    del rows
    gc.collect()
    assert not list((tmp_path / "cache").iterdir())
