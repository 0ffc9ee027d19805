"""The reviews that `make demo` trains on: well-formed, balanced, and no review in both files."""

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[1] / "demo"
TRAIN, EVAL = DEMO / "reviews_train.tsv", DEMO / "reviews_eval.tsv"

both = pytest.mark.parametrize("path", [TRAIN, EVAL], ids=["train", "eval"])


def reviews(path: Path) -> list[tuple[str, str]]:
    header, *lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert header == "text_a\tlabel"
    rows = [tuple(line.split("\t")) for line in lines]
    assert {len(row) for row in rows} == {2}
    return [(text, label) for text, label in rows]


def words(text: str) -> str:
    """The text as its words alone: reviews that differ in case or punctuation are the same review."""
    return " ".join(re.findall(r"[^\W_]+", text.casefold()))


@both
def test_labels_are_balanced(path: Path) -> None:
    counts = Counter(label for _, label in reviews(path))
    assert counts.keys() == {"negative", "positive"}
    assert counts["negative"] == counts["positive"]


@both
def test_texts_are_clean_lines_of_2_to_45_words(path: Path) -> None:
    for text, _ in reviews(path):
        assert text.isprintable(), text
        assert text == " ".join(text.split()), text
        assert 2 <= len(text.split()) <= 45, text


@both
def test_a_quoting_reader_sees_the_same_rows(path: Path) -> None:
    with path.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file, delimiter="\t")
    assert [tuple(row) for row in rows] == reviews(path)


def test_the_files_have_enough_rows_to_learn_and_to_judge_from() -> None:
    assert len(reviews(TRAIN)) >= 500
    assert len(reviews(EVAL)) >= 100


def test_no_review_occurs_twice_in_or_across_the_files() -> None:
    counts = Counter(words(text) for text, _ in reviews(TRAIN) + reviews(EVAL))
    assert [text for text, count in counts.items() if count > 1] == []
