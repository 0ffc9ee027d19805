"""What an exported model is to answer: the checkpoint's own task, and what a command line says of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import _CACHED_NO_EXIST
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from transformers import AutoConfig, PreTrainedConfig

from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint, load_config
from sparse_export.encoders import stored_files
from sparse_export.encoders.sentence_transformers import embedding_settings, stored_max_length
from sparse_export.encoders.stored_files import StoredRecord, stored_record
from sparse_export.tasks.asked import TaskOptions, asked_tasks
from sparse_serve.errors import CheckpointError, OptionError
from sparse_serve.tasks import (
    Classification,
    Embedding,
    MultiLabel,
    QuestionAnswering,
    Regression,
    Task,
    TokenClassification,
)
from tiny_models import CLASSES, FAMILIES, LABELS, make_model

TAGS = ("O", "B-film", "I-film")
WORDS = {0: "x", 1: "y", 2: "z"}


def plain(architecture: str | None, **entries: Any) -> PreTrainedConfig:
    config = AutoConfig.for_model("bert", hidden_size=64, **entries)
    config.architectures = None if architecture is None else [architecture]
    return config


def the_task(folder: Path, **options: Any) -> Task:
    (task,) = asked_tasks(folder, load_config(folder), TaskOptions(**options)).values()
    return task


def asked(folder: Path, config: PreTrainedConfig, **options: Any) -> Task:
    config.save_pretrained(folder)
    return the_task(folder, **options)


_MEAN: dict[str, Any] = {"size": 64, "pooling": "mean"}


@pytest.mark.parametrize(
    ("architecture", "entries", "task"),
    [
        ("BertForQuestionAnswering", {}, QuestionAnswering()),
        ("BertForTokenClassification", {"id2label": dict(enumerate(TAGS))}, TokenClassification(TAGS)),
        ("BertForSequenceClassification", {"id2label": WORDS}, Classification(("x", "y", "z"))),
        ("BertForSequenceClassification", {"id2label": {0: "x"}}, Regression(("x",))),
        (
            "BertForSequenceClassification",
            {"id2label": WORDS, "problem_type": "multi_label_classification"},
            MultiLabel(("x", "y", "z")),
        ),
    ],
)
def test_a_plain_checkpoint_answers_what_its_architecture_says(
    tmp_path: Path, architecture: str, entries: dict[str, Any], task: Task
) -> None:
    assert asked(tmp_path, plain(architecture, **entries)) == task


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "task", [QuestionAnswering(), TokenClassification(TAGS), CLASSES], ids=["spans", "tags", "classes"]
)
def test_every_family_is_loaded_by_what_transformers_alone_wrote(
    tmp_path: Path, family: str, task: Task
) -> None:
    model = make_model(AttentionSpec(), family, task)
    del model.config.sparse_serve
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    shown = {"output_hidden_states": True, "output_attentions": True}
    (tmp_path / "config.json").write_text(json.dumps(config | shown))
    found = the_task(tmp_path)
    assert found == task
    loaded = load_checkpoint(tmp_path, task=found)
    assert type(loaded).__name__ == type(model).__name__
    assert not loaded.config.output_hidden_states


def test_settings_take_the_place_of_the_tasks_own(tmp_path: Path) -> None:
    task = asked(tmp_path, plain("BertForQuestionAnswering"), stride=9, max_answer_tokens=4, no_answer=True)
    assert task == QuestionAnswering(stride=9, max_answer_tokens=4, no_answer=True)


def test_classification_and_regression_share_a_head(tmp_path: Path) -> None:
    config = plain("BertForSequenceClassification", id2label=WORDS)
    assert asked(tmp_path, config, task="multi-label") == MultiLabel(("x", "y", "z"))
    assert asked(tmp_path, config, task="regression") == Regression(("x", "y", "z"))


@pytest.mark.parametrize(
    ("layers", "size"), [(None, 64), ("sum-last-four", 64), ("concat-last-four", 256), ("weighted-all", 64)]
)
@pytest.mark.parametrize("architecture", [None, "BertModel", "BertForMaskedLM", "BertForQuestionAnswering"])
def test_any_encoder_embeds(tmp_path: Path, architecture: str | None, layers: str | None, size: int) -> None:
    task = asked(tmp_path, plain(architecture), task="embedding", layers=layers)
    assert task == Embedding(size=size, layers=layers or "last", pooling="mean", normalize=False)


def sentence_transformer(folder: Path, pooling: dict[str, Any] | None, *kinds: str) -> Path:
    plain("BertModel").save_pretrained(folder)
    kinds = ("sentence_transformers.models.Transformer", *kinds)
    modules = [
        {"idx": index, "name": str(index), "path": f"{index}_it" if index else "", "type": kind}
        for index, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (folder / "1_it").mkdir()
        (folder / "1_it" / "config.json").write_text(json.dumps(pooling))
    return folder


POOLING, NORMALIZE = "sentence_transformers.models.Pooling", "sentence_transformers.models.Normalize"
MEAN = {"word_embedding_dimension": 64, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
FIRST = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "include_prompt": True}


@pytest.mark.parametrize(
    ("pooling", "kinds", "expected"),
    [
        (MEAN, (POOLING, NORMALIZE), {"pooling": "mean", "normalize": True}),
        (FIRST, (POOLING,), {"pooling": "first", "normalize": False}),
        ({"pooling_mode": "cls"}, (POOLING,), {"pooling": "first", "normalize": False}),
        (None, (), {"normalize": False}),
    ],
)
def test_a_sentence_transformers_folder_tells_the_defaults(
    tmp_path: Path, pooling: dict[str, Any] | None, kinds: tuple[str, ...], expected: dict[str, Any]
) -> None:
    folder = sentence_transformer(tmp_path, pooling, *kinds)
    assert embedding_settings(folder) == expected
    task = the_task(folder, task="embedding")
    assert task == Embedding(**_MEAN | expected)
    other = the_task(folder, task="embedding", normalize=False)
    assert other == Embedding(**_MEAN | expected | {"normalize": False})


@pytest.mark.parametrize(
    ("pooling", "kinds", "message"),
    [
        ({"pooling_mode_max_tokens": True}, (POOLING,), "1_it/config.json pools by max_tokens"),
        (MEAN | FIRST | {"pooling_mode_mean_tokens": True}, (POOLING,), "pools by cls_token, mean_tokens"),
        ({}, (POOLING,), "pools by nothing"),
        (None, (POOLING,), "1_it/config.json tells none"),
        (MEAN, (POOLING, "sentence_transformers.models.Dense"), "has a Dense behind the encoder"),
    ],
)
def test_what_is_not_exported_must_be_stated(
    tmp_path: Path, pooling: dict[str, Any] | None, kinds: tuple[str, ...], message: str
) -> None:
    folder = sentence_transformer(tmp_path, pooling, *kinds)
    with pytest.raises(CheckpointError, match=message):
        the_task(folder, task="embedding")
    stated = the_task(folder, task="embedding", pooling="first")
    assert stated == Embedding(size=64, pooling="first")


@pytest.mark.parametrize(
    ("failure", "cached", "is_known"),
    [
        (EntryNotFoundError("404"), None, True),
        (LocalEntryNotFoundError("offline"), _CACHED_NO_EXIST, True),
        (LocalEntryNotFoundError("offline"), None, False),
        (ConnectionError("503"), None, False),
    ],
)
def test_a_hub_that_cannot_be_asked_is_not_taken_for_a_plain_encoder(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, cached: object, is_known: bool
) -> None:
    def download(*_: str, **__: object) -> str:
        raise failure

    monkeypatch.setattr(stored_files, "hf_hub_download", download)
    monkeypatch.setattr(stored_files, "try_to_load_from_cache", lambda *_, **__: cached)
    assert stored_max_length("a/b") is None
    stated = TaskOptions(task="embedding", pooling="first", normalize=True)
    (task,) = asked_tasks("a/b", plain("BertModel"), stated).values()
    assert task == Embedding(size=64, pooling="first", normalize=True)
    if is_known:
        assert stored_record("a/b") is None
        assert embedding_settings("a/b") == {}
        return
    with pytest.raises(
        CheckpointError, match=r"a/b: the hub cannot be asked whether there is finetune\.json"
    ):
        stored_record("a/b")
    with pytest.raises(CheckpointError, match=r"hub cannot be asked whether there is modules\.json") as error:
        embedding_settings("a/b")
    assert "\n" not in str(error.value)


def test_the_record_of_a_model_on_the_hub_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At the revision that is asked for; a number that is none says nothing."""
    asked_for: list[object] = []

    def download(*wanted: str, revision: str | None) -> str:
        asked_for.append((*wanted, revision))
        return str(tmp_path / "finetune.json")

    monkeypatch.setattr(stored_files, "hf_hub_download", download)
    (tmp_path / "finetune.json").write_text('{"max_length": 40, "rho_target": 0.5, "rho": 0.75, "seed": 1}')
    assert stored_record("a/b", "v2") == StoredRecord(40, 0.5, 0.75)
    (tmp_path / "finetune.json").write_text('{"max_length": true, "rho_target": 2, "rho": "0.5"}')
    assert stored_record("a/b") == StoredRecord()
    assert asked_for == [("a/b", "finetune.json", "v2"), ("a/b", "finetune.json", None)]


@pytest.mark.parametrize("content", ["{", '{"0": 1}', '["x"]', "7"])
def test_modules_that_cannot_be_read(tmp_path: Path, content: str) -> None:
    plain("BertModel").save_pretrained(tmp_path)
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"modules\.json") as error:
        embedding_settings(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("architecture", "options", "message"),
    [
        ("BertForQuestionAnswering", {"task": "summarization"}, "--task summarization is not known: choose"),
        ("BertForQuestionAnswering", {"layers": "last"}, "--layers is not for question-answering"),
        ("BertForQuestionAnswering", {"normalize": False}, "--no-normalize is not for question-answering"),
        ("BertForQuestionAnswering", {"stride": -1}, "stride is -1; a whole number of at least 0"),
        ("BertForTokenClassification", {"stride": 3}, "--stride is not for token-classification"),
        ("BertForTokenClassification", {"no_answer": False}, "--answers-only is not for"),
        ("BertModel", {"task": "embedding", "layers": "first"}, "layers is 'first'; choose one of last,"),
        ("BertModel", {"task": "embedding", "pooling": "max"}, "pooling is 'max'; choose one of first, mean"),
        ("BertModel", {"task": "embedding", "max_answer_tokens": 3}, "--max-answer-tokens is not for"),
        ("BertForSequenceClassification", {"pooling": "mean"}, "--pooling is not for classification"),
    ],
)
def test_options_that_do_not_fit(
    tmp_path: Path, architecture: str, options: dict[str, Any], message: str
) -> None:
    config = plain(architecture, id2label=dict(enumerate(TAGS[:2])))
    with pytest.raises(OptionError, match=message) as error:
        asked(tmp_path, config, **options)
    assert "\n" not in str(error.value)


def test_layers_that_the_encoder_has_not(tmp_path: Path) -> None:
    for layers, depth in (("sum-last-four", 3), ("second-to-last", 1)):
        with pytest.raises(OptionError, match=rf"--layers {layers} reads \d layers, .* has {depth}"):
            asked(tmp_path, plain("BertModel", num_hidden_layers=depth), task="embedding", layers=layers)


@pytest.mark.parametrize("architecture", [None, "BertModel", "BertForMaskedLM"])
def test_an_encoder_answers_nothing_by_itself(tmp_path: Path, architecture: str | None) -> None:
    with pytest.raises(CheckpointError, match=r"has no head .*fine-tune it first .*or export it with --task"):
        asked(tmp_path, plain(architecture))


def test_another_head_needs_training(tmp_path: Path) -> None:
    config = plain("BertForSequenceClassification", id2label=dict(enumerate(LABELS)))
    with pytest.raises(CheckpointError, match="answers classification, not question-answering: fine-tune it"):
        asked(tmp_path, config, task="question-answering")
    with pytest.raises(CheckpointError, match="answers question-answering, not classification"):
        asked(tmp_path, plain("BertForQuestionAnswering"), task="classification")


def test_heads_that_cannot_be_served(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has a start and an end logit, this one has 3 labels"):
        asked(tmp_path, plain("BertForQuestionAnswering", id2label=WORDS))
    with pytest.raises(CheckpointError, match=r"config\.json: tag 'X-film' "):
        asked(tmp_path, plain("BertForTokenClassification", id2label={0: "O", 1: "X-film"}))
