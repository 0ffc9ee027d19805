"""Data sets by name, from local folders: what `datasets` reads there, it reads from the hub alike."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest

from sparse_export.pretraining import PretrainOptions
from sparse_export.pretraining.text import reading_of
from sparse_export.training import finetune
from sparse_export.training.hub_data import DatasetSplit, read_split
from sparse_export.training.sources import read_test_rows
from sparse_serve.data import Columns
from sparse_serve.errors import DataError
from sparse_serve.rows import Span, Tag
from sparse_serve.tasks import TASKS, Classification
from tiny_training import FAST, make_encoder

COLUMNS = Columns("sentence")
OPTIONS = replace(FAST, columns=COLUMNS)


ColumnsOfRows = dict[str, list[Any]]


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def make_folder(folder: Path, suffix: str, **splits: ColumnsOfRows) -> Path:
    folder.mkdir()
    for name, columns in splits.items():
        rows = datasets.Dataset.from_dict(columns)
        path = folder / f"{name}.{suffix}"
        {"csv": rows.to_csv, "jsonl": rows.to_json, "parquet": rows.to_parquet}[suffix](path)
    return folder


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_folder_of_files_is_read(tmp_path: Path, suffix: str) -> None:
    columns: ColumnsOfRows = {"sentence": ["gut", "schlecht, très", ""], "label": [1, 0, 1], "idx": [7, 8, 9]}
    folder = make_folder(tmp_path / "data", suffix, train=columns, test=columns)
    if suffix == "csv":  # an empty cell is none, as for every reader of that library
        with pytest.raises(DataError, match="line 3: column 'sentence' holds None"):
            read_split(DatasetSplit(str(folder)), COLUMNS, "single_label_classification")
        return
    rows = read_split(DatasetSplit(str(folder)), COLUMNS, "single_label_classification")
    assert [(row.text, row.label) for row in rows.data.rows] == [
        ("gut", "1"),
        ("schlecht, très", "0"),
        ("", "1"),
    ]
    assert (rows.data.labels, rows.data.total_rows) == (("0", "1"), 3)
    assert rows.data.source == f"{folder}, split train"


def test_texts_are_read_without_labels(tmp_path: Path) -> None:
    columns = {"sentence": ["one", "two", "", " ", "three", "four"]}
    folder = make_folder(tmp_path / "data", "parquet", train=columns)
    for options, expected in (
        (PretrainOptions(columns=COLUMNS), ["one", "two", "three", "four"]),
        (PretrainOptions(columns=COLUMNS, nsp=True), ["one\ntwo", "three\nfour"]),
    ):
        reading = reading_of(options)
        rows = read_split(
            DatasetSplit(str(folder)), COLUMNS, reading.task, arrange=reading.arrange, labelled=False
        )
        assert [row.text for row in rows.data.rows] == expected
        assert (rows.data.labels, rows.data.total_rows) == ((), len(expected))
    missing = Columns("text")
    with pytest.raises(DataError, match="has no column 'text'; its columns are sentence: name yours with"):
        read_split(DatasetSplit(str(folder)), missing, "single_label_classification", labelled=False)


def test_class_labels_keep_their_order(tmp_path: Path) -> None:
    """Of GLUE's pairs `not_equivalent` is 0: F1 is of the others, and a file with 0 and 1 means the same."""
    names = ["not_equivalent", "equivalent", "never seen"]
    features = datasets.Features(
        {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=names)}
    )
    folder = tmp_path / "data"
    folder.mkdir()
    rows = {"sentence": ["a", "b", "c"], "label": [1, 0, 1]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / "train.parquet")
    read = read_split(DatasetSplit(str(folder)), COLUMNS, "single_label_classification").data
    assert read.labels == ("not_equivalent", "equivalent")
    task = Classification.of(read)
    assert task.targets(read).tolist() == [1, 0, 1]


def test_class_labels_are_names(tmp_path: Path) -> None:
    features = datasets.Features(
        {
            "sentence": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["bad", "good"]),
            "tags": datasets.List(datasets.ClassLabel(names=["x", "y", "z"])),
        }
    )
    rows = {"sentence": ["a", "b"], "label": [1, 0], "tags": [[0, 2], []]}
    folder = tmp_path / "data"
    folder.mkdir()
    datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / "train.parquet")
    split = DatasetSplit(str(folder))
    read = read_split(split, COLUMNS, "single_label_classification").data
    assert [row.label for row in read.rows] == ["good", "bad"]
    tagged = read_split(split, Columns("sentence", label="tags"), "multi_label_classification").data
    assert [row.label for row in tagged.rows] == [("x", "z"), ()]

    hidden = tmp_path / "hidden"
    hidden.mkdir()
    unlabelled = {**rows, "label": [1, -1]}
    datasets.Dataset.from_dict(unlabelled, features=features).to_parquet(hidden / "test.parquet")
    with pytest.raises(DataError, match="split test, line 2: the label is missing"):
        read_test_rows(DatasetSplit(str(hidden), None, "test"), OPTIONS, "single_label_classification")


@pytest.mark.parametrize(
    ("labels", "kind", "task"),
    [
        ([-1, -1], datasets.ClassLabel(names=["bad", "good"]), "single_label_classification"),
        ([-1.0, -1.0], datasets.Value("float32"), "regression"),
        ([None, None], datasets.Value("string"), "single_label_classification"),
        (None, None, "multi_label_classification"),
    ],
    ids=["class labels", "numbers", "names", "no column"],
)
def test_a_split_to_be_tried_on_may_have_no_labels(
    tmp_path: Path, labels: list[Any] | None, kind: Any, task: str
) -> None:
    """As the test splits of GLUE are."""
    columns: ColumnsOfRows = {"sentence": ["a", "b"]} | ({} if labels is None else {"label": labels})
    features = {"sentence": datasets.Value("string")} | ({} if labels is None else {"label": kind})
    rows = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    folder = tmp_path / "data"
    folder.mkdir()
    rows.to_parquet(folder / "test.parquet")
    read = read_test_rows(DatasetSplit(str(folder), None, "test"), OPTIONS, task)
    assert not read.is_labelled
    assert [(row.text, row.label) for row in read.data.rows] == [("a", ""), ("b", "")]
    assert (read.record.rows, len(read.record.sha256)) == (2, 64)


def test_regression_and_pairs(tmp_path: Path) -> None:
    columns: ColumnsOfRows = {"sentence": ["a", "b"], "text_b": ["c", "d"], "label": [0.25, 5]}
    folder = make_folder(tmp_path / "data", "parquet", train=columns)
    read = read_split(DatasetSplit(str(folder)), COLUMNS, "regression").data
    assert [(row.text, row.text_pair, row.label) for row in read.rows] == [("a", "c", 0.25), ("b", "d", 5.0)]


def test_a_sample_is_the_files_own(tmp_path: Path) -> None:
    columns: ColumnsOfRows = {
        "sentence": [f"text {n}" for n in range(100)],
        "label": [n % 2 for n in range(100)],
    }
    folder = make_folder(tmp_path / "data", "jsonl", train=columns)
    split = DatasetSplit(str(folder))
    first, again, other = (
        read_split(split, COLUMNS, "single_label_classification", max_rows=10, seed=seed)
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first.data.rows != other.data.rows
    assert first.sha256 == other.sha256  # of all rows
    assert (len(first.data.rows), first.data.total_rows) == (10, 100)


@pytest.mark.parametrize(
    ("split", "columns", "message"),
    [
        (
            {},
            Columns(),
            "has no column 'text_a'; its columns are sentence, label: name yours with --te",
        ),
        ({}, Columns("sentence", label="y"), "no column 'y'; .* name yours with --label-column"),
        ({}, Columns("sentence", "two"), "no column 'two'; .* name yours with --text-pair-column"),
        ({"split": "dev"}, COLUMNS, 'split dev cannot be loaded: Unknown split "dev"'),
        (
            {"config": "sst2"},
            COLUMNS,
            "/sst2, split train cannot be loaded: BuilderConfig 'sst2' not",
        ),
        ({"name": "no/such"}, COLUMNS, "data set no/such, split train cannot be loaded: Couldn't reach"),
    ],
)
def test_what_cannot_be_read_is_refused(
    tmp_path: Path, split: dict[str, str], columns: Columns, message: str
) -> None:
    folder = make_folder(tmp_path / "data", "csv", train={"sentence": ["a"], "label": [1]})
    with pytest.raises(DataError, match=message) as caught:
        read_split(replace(DatasetSplit(str(folder)), **split), columns, "single_label_classification")
    assert "\n" not in str(caught.value)


def test_code_of_a_data_set_is_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "data.py").write_text("raise SystemExit('ran')", encoding="utf-8")
    with pytest.raises(DataError, match="cannot be loaded"):
        read_split(DatasetSplit(str(folder)), COLUMNS, "single_label_classification")


def test_training_takes_the_validation_split(tmp_path: Path) -> None:
    words = {"good": 1, "bad": 0, "fine": 1, "dull": 0}
    columns: ColumnsOfRows = {"sentence": [*words] * 8, "label": [*words.values()] * 8}
    few = {name: values[:6] for name, values in columns.items()}
    folder = make_folder(tmp_path / "data", "jsonl", train=columns, validation=few)
    encoder = make_encoder(tmp_path / "encoder")
    options = replace(FAST, epochs=1, columns=COLUMNS)
    record = finetune(encoder, DatasetSplit(str(folder)), tmp_path / "out", options)
    assert not record.held_out
    assert (record.train.source, record.train.rows) == (f"{folder}, split train", 32)
    assert (record.evaluation.source, record.evaluation.rows) == (f"{folder}, split validation", 6)
    stored = json.loads((tmp_path / "out" / "finetune.json").read_text(encoding="utf-8"))
    assert stored["train"]["revision"]
    assert len(stored["train"]["sha256"]) == 64

    # Rows that are trained on must not choose the epoch.
    for number, split in enumerate(("train+validation", "validation[:50%]", "all")):
        record = finetune(encoder, DatasetSplit(str(folder), None, split), tmp_path / str(number), options)
        assert record.held_out
        assert record.evaluation.source == f"{folder}, split {split}"

    only = make_folder(tmp_path / "only", "jsonl", train=columns)
    assert finetune(encoder, DatasetSplit(str(only)), tmp_path / "held", options).held_out


def test_questions_are_read_as_the_hub_has_them(tmp_path: Path) -> None:
    columns: ColumnsOfRows = {
        "id": ["a", "b"],
        "question": ["Who?", "When?"],
        "context": ["It was Ada.", "It was Ada."],
        "answers": [{"text": ["Ada", "Ada."], "answer_start": [7, 7]}, {"text": [], "answer_start": []}],
    }
    folder = make_folder(tmp_path / "data", "parquet", train=columns)
    rows = read_split(DatasetSplit(str(folder)), None, "question_answering").data
    assert [(row.text, row.text_pair) for row in rows.rows] == [
        ("Who?", "It was Ada."),
        ("When?", "It was Ada."),
    ]
    assert [row.label for row in rows.rows] == [(Span(7, "Ada"), Span(7, "Ada.")), ()]
    assert rows.whole_contexts
    without = make_folder(tmp_path / "without", "parquet", train={"question": ["q"], "context": ["c"]})
    with pytest.raises(DataError, match="has no column 'answer'; its columns are "):
        read_split(DatasetSplit(str(without)), None, "question_answering")


def test_tags_are_read_as_the_hub_has_them(tmp_path: Path) -> None:
    features = datasets.Features(
        {
            "tokens": datasets.List(datasets.Value("string")),
            "ner_tags": datasets.List(datasets.ClassLabel(names=["O", "B-PER", "I-PER"])),
        }
    )
    folder = tmp_path / "data"
    folder.mkdir()
    rows = {"tokens": [["Ada", "Lovelace", "wrote"]], "ner_tags": [[1, 2, 0]]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / "train.parquet")
    columns = TASKS["token_classification"].rows.named(label="ner_tags")
    (row,) = read_split(DatasetSplit(str(folder)), columns, "token_classification").data.rows
    assert row.text == "Ada Lovelace wrote"
    assert row.label == (Tag(0, 3, "B-PER"), Tag(4, 12, "I-PER"), Tag(13, 18, "O"))
