"""Entries whose graph takes text: what they hold, what is refused, and the same file without a server."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from transformers import PreTrainedModel

from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import save_checkpoint
from sparse_export.cli.export import _summary
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.entry import Exported, export_checkpoint
from sparse_export.export_options import ExportOptions
from sparse_export.tasks.asked import TaskOptions
from sparse_serve import Classifier
from sparse_serve.errors import (
    DataError,
    OpLibraryError,
    OptionError,
    RefusedTextError,
    RepositoryError,
    RequestError,
)
from sparse_serve.repository.agreement import entry_faults
from sparse_serve.repository.check import Level, check_entry
from sparse_serve.repository.entries import Entry, find_models, read_entry
from sparse_serve.tasks import QuestionAnswering
from sparse_serve.tasks.encoding import Truncation
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.server import ServerOptions
from tiny_models import LABELS, LAMBD, POSITIONS, make_model, make_tokenizer

TEXTS = ["a film", "", "it isn't 100 % good?", "x9 " * 300, "naïve café", "\x00"]


@pytest.fixture
def options(checkpoint: Path, tmp_path: Path) -> ExportOptions:
    return ExportOptions(checkpoint=str(checkpoint), repository=tmp_path / "repository", name="tiny")


def models(entry: Entry) -> list[str]:
    return [path.name for path in find_models(entry.path.parent)]


def test_the_entry_is_one_model_of_one_file(text_entry: Exported) -> None:
    entry = read_entry(text_entry.path)
    assert models(entry) == entry.models == ["tiny"]
    assert entry.takes_text
    assert entry.token_path is None
    assert entry.graph_path == entry.path.resolve()
    assert [finding.check for finding in check_entry(entry.path) if finding.level is not Level.ok] == []
    assert list(entry_faults(entry)) == []
    assert text_entry.server_side is None
    assert text_entry.texts is not None
    assert text_entry.texts.tokenized > 2600
    assert text_entry.texts.max_abs_diff < 1e-6
    weights = list(entry.path.glob("*/model.onnx*"))
    assert [path.name for path in weights] == ["model.onnx"]
    graph = onnx.load(weights[0]).graph
    assert [value.name for value in graph.input] == ["TEXT"]
    labels = (entry.path / "labels.txt").read_text().split()
    assert labels == list(LABELS)


def test_beside_it_the_graph_of_token_ids_where_asked_for(options: ExportOptions) -> None:
    entry = read_entry(export_checkpoint(replace(options, token_model=True)).path)
    assert models(entry) == entry.models == ["tiny", "tiny_model"]
    assert not [finding for finding in check_entry(entry.path) if finding.level is not Level.ok]
    done: list[str] = []
    with pytest.raises(RepositoryError, match="the other versions of the entry have tiny_model"):
        export_checkpoint(replace(options, model_version=2), done.append)
    assert done[-1] == "reading the tokenizer"  # before what takes long
    export_checkpoint(replace(options, force=True))
    assert models(entry) == ["tiny"]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('name: "TEXT"', 'name: "TEXTS"', "takes what another model"),
        ("dims: 1", "dims: 2", "BYTES|another"),
        ('backend: "onnxruntime"', 'backend: "sparse_serve_text"', "another backend"),
        ("libsparse_ops.so", "/tmp/other.so", "names the op library '/tmp/other.so'"),
        ('string_value: "160"', 'string_value: "16"', "for the parameter 'max_length'"),
    ],
)
def test_a_configuration_of_another_hand_is_refused(
    text_entry: Exported, tmp_path: Path, before: str, after: str, message: str
) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    for path in text_entry.path.iterdir():
        if path.name != "config.pbtxt":
            (folder / path.name).symlink_to(path)
    config = (text_entry.path / "config.pbtxt").read_text()
    assert before in config
    (folder / "config.pbtxt").write_text(config.replace(before, after, 1))
    faults = list(entry_faults(read_entry(folder)))
    assert faults
    assert any(part in " ".join(faults) for part in message.split("|"))


def test_nothing_takes_the_tokenizers_place(text_entry: Exported) -> None:
    server = TritonServer(ServerOptions(text_entry.path.parent, portable=True))
    with pytest.raises(OptionError, match=r"--portable cannot serve 'tiny': .* --tokenizer server"):
        server.launch_line()


def test_a_tokenizer_without_an_op_stays_in_the_server(options: ExportOptions, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    model = make_model(AttentionSpec(LAMBD), "xlm-roberta")
    save_checkpoint(model, make_tokenizer(folder, "xlm-roberta"), folder)
    options = replace(options, checkpoint=str(folder))
    with pytest.raises(
        OptionError, match=r"--tokenizer graph is not possible: the graph cannot tokenize .* or say"
    ):
        export_checkpoint(replace(options, tokenizer="graph"))
    exported = export_checkpoint(options)
    assert exported.server_side is not None
    assert "Unigram" in exported.server_side
    assert exported.texts is None
    assert not read_entry(exported.path).takes_text


def test_the_command_line_says_where_the_tokenizer_is(text_entry: Exported) -> None:
    lines = _summary(text_entry).splitlines()
    assert re.match(r"tokenizer in the graph: 26\d\d texts and random strings read as by the", lines[1])
    elsewhere = replace(text_entry, texts=None, server_side="of a reason")
    assert _summary(elsewhere).splitlines()[1] == "tokenizer in the server: of a reason"


def test_metrics_are_the_servers(options: ExportOptions) -> None:
    with pytest.raises(
        OptionError, match=r"--tokenizer graph is not possible: --metrics are published by the serv"
    ):
        export_checkpoint(replace(options, tokenizer="graph", metrics=True))


def test_labelled_pairs_say_that_the_graph_reads_pairs(options: ExportOptions, tmp_path: Path) -> None:
    file = tmp_path / "eval.tsv"
    file.write_text("text_a\ttext_b\tlabel\na b\tc d e\tneutral\n")
    with pytest.raises(OptionError, match=r"eval\.tsv has pairs of texts: leave out --single-text"):
        export_checkpoint(replace(options, eval_file=file, task=TaskOptions(paired=False)))
    exported = export_checkpoint(replace(options, eval_file=file))
    assert exported.quality is not None
    assert exported.quality.longest == 8  # [CLS] a b [SEP] c d e [SEP]
    classifier = Classifier(exported.path)
    (pair,) = classifier(["a b"], ["c d e"])
    assert pair.token_count == 8
    with pytest.raises(RequestError, match="the model was trained on pairs: give each text its second one"):
        classifier(["a b"])


@pytest.fixture(scope="module")
def classifier(text_entry: Exported) -> Classifier:
    return Classifier(text_entry.path, threads=1)


def test_the_classifier_answers_as_torch(
    classifier: Classifier, checkpoint: Path, model: PreTrainedModel
) -> None:
    tokenizer = load_tokenizer(checkpoint)
    answered: list[int] = []
    predictions = classifier(TEXTS, progress=answered.append)
    assert sum(answered) == len(TEXTS)
    for text, prediction in zip(TEXTS, predictions, strict=True):
        batch = tokenizer(text, truncation=True, max_length=POSITIONS, return_tensors="pt")
        with torch.no_grad():
            expected = model(**batch).logits[0].numpy()
        np.testing.assert_allclose(prediction.logits, expected, rtol=0, atol=1e-4)
        assert prediction.label == classifier.labels[expected.argmax()]
        assert prediction.token_count == batch["input_ids"].shape[1]
        assert prediction.truncated == (len(text) > 300)
    assert classifier([]) == []


def test_runs_hold_about_so_many_tokens(text_entry: Exported) -> None:
    """Whatever texts are like: each is answered as alone, and no run is much longer than it may be."""
    texts = [text for text in TEXTS for _ in range(20)]
    sizes: list[int] = []
    small = Classifier(text_entry.path, threads=1, run_tokens=64)
    replies = small(texts, progress=sizes.append)
    counts = iter(replies)
    tokens = [sum(next(counts).token_count for _ in range(size)) for size in sizes]
    assert max(tokens[2:]) <= 64 + POSITIONS
    assert len(sizes) > 10
    alone = [reply.logits for reply in small(TEXTS)]
    for number, reply in enumerate(replies):
        np.testing.assert_allclose(reply.logits, alone[number // 20], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda c: c(["a", "\ud800"]), RequestError, "text 2 has half a character at 0"),
        (lambda c: c(["a"], ["b"]), RequestError, "trained on single texts: leave out text_pairs"),
        (lambda c: c(["a"], task="mood"), RequestError, "the model has one task: leave out task"),
        (lambda c: c(["a"], ["b", "c"]), ValueError, "text_pairs has 2 for 1 texts"),
        (lambda c: Classifier(c.entry.path, threads=0), OptionError, "threads is 0, at least 1"),
        (lambda c: Classifier(c.entry.path, version=7), RepositoryError, r"no version 7, but \[1\]"),
        (
            lambda c: Classifier(c.entry.path / "baselines"),
            RepositoryError,
            "is no entry of a model repository",
        ),
    ],
)
def test_what_the_classifier_refuses(
    classifier: Classifier,
    call: Callable[[Classifier], object],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        call(classifier)


def test_a_text_that_is_too_long_is_refused_with_its_number(options: ExportOptions) -> None:
    strict = Classifier(export_checkpoint(replace(options, truncation="error")).path, threads=1)
    texts = ["a film"] * 30 + ["x9 " * 300, "a"]
    with pytest.raises(
        RefusedTextError, match=rf"tiny refuses a text of more than {POSITIONS} tokens; it is text 31, 'x9 x9"
    ) as raised:
        strict(texts)
    assert raised.value.row == 30
    replies = strict.replies(texts)
    assert [reply is None for reply in replies] == [False] * 30 + [True, False]
    assert read_entry(strict.entry.path).manifest.truncation == "error"
    assert list(entry_faults(strict.entry)) == []


def test_questions_are_not_cut_from_the_left(options: ExportOptions, tmp_path: Path) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    save_checkpoint(make_model(AttentionSpec(), "bert", QuestionAnswering()), make_tokenizer(folder), folder)
    with pytest.raises(OptionError, match="--truncation left is for texts that are cut: question-answering"):
        export_checkpoint(replace(options, checkpoint=str(folder), truncation="left"))


def test_a_tokenizer_that_cuts_from_the_left_is_warned_of(
    options: ExportOptions, checkpoint: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    file = copy / "tokenizer_config.json"
    stored = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**stored, "truncation_side": "left"}), encoding="utf-8")
    warned: list[str] = []
    cases: list[tuple[Truncation | None, bool]] = [(None, True), ("left", False), ("right", False)]
    for truncation, is_warned in cases:
        warned.clear()
        asked = replace(options, checkpoint=str(copy), truncation=truncation, force=True)
        exported = export_checkpoint(asked, warn=warned.append)
        assert read_entry(exported.path).manifest.truncation == (truncation or "right")
        assert len(warned) == is_warned
    assert not warned


def test_labelled_rows_that_would_be_refused_are_named(options: ExportOptions, tmp_path: Path) -> None:
    file = tmp_path / "eval.tsv"
    file.write_text(f"text_a\tlabel\na b\tneutral\n{'x9 ' * 300}\tneutral\n")
    with pytest.raises(DataError, match=rf"eval\.tsv: 'x9 .* has \d+ tokens, at most {POSITIONS} are"):
        export_checkpoint(replace(options, eval_file=file, truncation="error"))


def test_tables_of_another_version_are_refused(
    classifier: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparse_serve.classifier.library_version", lambda path: 2)
    with pytest.raises(OpLibraryError, match=r"was made for version 1 .* version 2: export it again$"):
        Classifier(classifier.entry.path)


def test_the_classifier_needs_a_graph_that_takes_text(options: ExportOptions) -> None:
    exported = export_checkpoint(replace(options, tokenizer="server"))
    with pytest.raises(
        RepositoryError, match=r"has its tokenizer in the server: export it with --tokenizer gr"
    ):
        Classifier(exported.path)
    manifest = json.loads((exported.path / "manifest.json").read_text())
    assert manifest["tokenizer"] == "server"
