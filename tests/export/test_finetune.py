"""Fine-tuning on a tiny random BERT: what is written, what is kept, and what is left after a failure."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForSequenceClassification, TrainerCallback, TrainingArguments

import sparse_export.training.batches as batches_module
import sparse_export.training.run as run_module
import sparse_export.training.task as task_module
import sparse_export.training.trainer as trainer_module
import tiny_models
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint, save_checkpoint
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.training import RECORD_NAME, FinetuneRecord, finetune
from sparse_export.training.callbacks import Steering
from sparse_export.training.encoding import EncodedData, encode
from sparse_serve.data import Columns
from sparse_serve.digests import file_digest
from sparse_serve.errors import CheckpointError, DataError, DeviceError, OptionError
from tiny_training import (
    BAD,
    FAST,
    GOOD,
    LAYERS,
    expect_equal_figures,
    make_encoder,
    told,
    weights,
    write_rows,
)

LEARNS = replace(FAST, epochs=4)


pytestmark = pytest.mark.usefixtures("single_threaded")


@pytest.fixture(scope="module")
def encoder_without_dropout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("encoder"), dropout=0)


@pytest.fixture
def train(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "train.tsv", 96)


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "eval.tsv", 20)


def test_checkpoint_is_a_transformers_folder_that_remembers_its_attention(
    encoder: Path, train: Path, evaluation: Path, tmp_path: Path
) -> None:
    output = tmp_path / "made" / "checkpoint"
    record = finetune(encoder, train, output, LEARNS, evaluation=evaluation)

    config = json.loads((output / "config.json").read_text(encoding="utf-8"))
    assert config["sparse_serve"]["attention"] == {"normalizer": "sparsegen", "lambd": -4.0, "pattern": None}
    assert config["sparse_serve"]["tasks"] == {
        "default": {"type": "single_label_classification", "labels": ["negative", "positive"]}
    }
    assert config["id2label"] == {"0": "negative", "1": "positive"}
    assert config["label2id"] == {"negative": 0, "positive": 1}
    assert config["problem_type"] == "single_label_classification"
    names = {path.name for path in output.iterdir()}
    assert names >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        RECORD_NAME,
    }
    assert not [name for name in names if name.endswith((".bin", ".pt"))]
    assert [path.name for path in output.parent.iterdir()] == ["checkpoint"]
    assert record.metrics["accuracy"] > 0.8  # the words decide, so training must find them


def test_checkpoint_answers_as_in_training(
    encoder: Path, train: Path, evaluation: Path, tmp_path: Path
) -> None:
    record = finetune(encoder, train, tmp_path / "out", FAST, evaluation=evaluation)
    model, tokenizer = load_checkpoint(tmp_path / "out"), load_tokenizer(tmp_path / "out")
    lines = evaluation.read_text(encoding="utf-8").splitlines()[1:]
    texts, labels = zip(*(line.split("\t") for line in lines), strict=True)
    with torch.no_grad():
        inputs = tokenizer(list(texts), padding=True, return_tensors="pt")
        answer = model(**inputs, output_attentions=True)
    expected = torch.tensor([model.config.label2id[label] for label in labels])
    assert (answer.logits.argmax(1) == expected).double().mean().item() == record.metrics["accuracy"]
    loss = torch.nn.functional.cross_entropy(answer.logits, expected).item()
    assert loss == pytest.approx(record.epochs[int(record.best_epoch) - 1].eval_loss, abs=1e-5)
    assert (answer.attentions[0] == 0).any()  # sparsegen's exact zeros: it was not loaded as softmax
    softmax = load_checkpoint(tmp_path / "out", AttentionSpec())
    with torch.no_grad():
        assert (softmax(**inputs).logits - answer.logits).abs().max() > 1e-4


def test_softmax_checkpoint_loads_in_stock_transformers(
    encoder: Path, train: Path, evaluation: Path, tmp_path: Path
) -> None:
    options = replace(FAST, attention=AttentionSpec())
    finetune(encoder, train, tmp_path / "out", options, evaluation=evaluation)
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    inputs = load_tokenizer(tmp_path / "out")(["the film is good", "bad"], padding=True, return_tensors="pt")
    with torch.no_grad():
        ours = load_checkpoint(tmp_path / "out")(**inputs).logits
        assert torch.allclose(stock(**inputs).logits, ours, atol=1e-6)


def test_record_tells_how_the_checkpoint_was_made(
    encoder: Path, train: Path, evaluation: Path, tmp_path: Path
) -> None:
    options = replace(FAST, max_train_rows=40)
    record = finetune(encoder, train, tmp_path / "out", options, evaluation=evaluation)
    stored = json.loads((tmp_path / "out" / RECORD_NAME).read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(asdict(record)))
    assert stored["schema_version"] == 5
    assert stored["options"]["attention"] == {"lambd": -4.0, "pattern": None}
    assert stored["train"] == {
        "source": str(train),
        "sha256": file_digest(train),
        "rows": 40,
        "total_rows": 96,
        "revision": None,
    }
    assert stored["processes"] == 1
    assert len(stored["layers"]) == LAYERS
    assert all(0 < layer["rho"] < 1 and layer["support"] > 1 for layer in stored["layers"])
    assert stored["max_length"] == 24
    assert [epoch["epoch"] for epoch in stored["epochs"]] == [1, 2]
    assert all(math.isfinite(epoch["train_loss"]) for epoch in stored["epochs"])
    assert stored["versions"]["torch"] == torch.__version__


def test_equal_seeds_give_equal_weights_to_the_bit(encoder: Path, train: Path, tmp_path: Path) -> None:
    options = replace(FAST, epochs=1)
    for name, seed in (("first", 1), ("again", 1), ("other", 2)):
        finetune(encoder, train, tmp_path / name, replace(options, seed=seed))
    first, again, other = (weights(tmp_path / name) for name in ("first", "again", "other"))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])


def script_figures(monkeypatch: pytest.MonkeyPatch, figures: list[dict[str, float]]) -> None:
    """Make the evaluations after each epoch answer `figures`, whatever the model says."""
    answers = iter(figures)
    monkeypatch.setattr(task_module, "figures_of", lambda *_: lambda _: next(answers))


def figures_of(metric: str, values: list[float]) -> list[dict[str, float]]:
    others = {"loss": 1.0, "accuracy": 0.5, "f1": 0.5, "matthews": 0.0}
    return [{**others, metric: value} for value in values]


@pytest.mark.parametrize(
    ("metric", "values", "best"),
    [
        (None, [0.9, 0.5, 0.7], 1),
        (None, [0.5, 0.9, 0.7], 2),
        (None, [0.5, 0.7, 0.7], 2),
        ("matthews", [-0.5, -0.2, 0.1], 3),
        ("loss", [0.9, 0.5, 0.7], 2),
    ],
)
def test_best_epoch_is_kept(
    encoder: Path,
    train: Path,
    evaluation: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    metric: str | None,
    values: list[float],
    best: int,
) -> None:
    seen: list[dict[str, torch.Tensor]] = []

    class Recorder(Steering):
        def on_evaluate(self, *args: Any, **rest: Any) -> None:
            state = rest["model"].state_dict()
            seen.append({name: weight.detach().clone() for name, weight in state.items()})
            super().on_evaluate(*args, **rest)

    monkeypatch.setattr(trainer_module, "Steering", Recorder)
    script_figures(monkeypatch, figures_of(metric or "accuracy", values))
    options = replace(FAST, epochs=3, metric=metric)
    record = finetune(encoder, train, tmp_path / "out", options, evaluation=evaluation)
    assert record.best_epoch == best
    if metric != "loss":
        assert record.metrics[metric or "accuracy"] == max(values)
    kept = weights(tmp_path / "out")
    matches = [all(torch.equal(kept[name], state[name]) for name in kept) for state in seen]
    assert matches == [epoch == best for epoch in (1, 2, 3)]


@pytest.mark.parametrize(
    ("patience", "values", "epochs"),
    [
        (1, [0.5, 0.7, 0.6, 0.8, 0.9], 3),
        (2, [0.5, 0.7, 0.6, 0.8, 0.8, 0.8, 0.9], 6),  # an equal is no better one
        (3, [0.5, 0.7, 0.6, 0.8, 0.9, 0.9, 0.9], 7),
        (None, [0.5, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1], 7),
    ],
)
def test_a_run_without_progress_ends_early(
    encoder: Path,
    train: Path,
    evaluation: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    patience: int | None,
    values: list[float],
    epochs: int,
) -> None:
    script_figures(monkeypatch, figures_of("accuracy", values))
    options = replace(FAST, epochs=7, early_stopping_patience=patience)
    record = finetune(encoder, train, tmp_path / "out", options, evaluation=evaluation)
    assert len(record.epochs) == epochs
    assert record.best_epoch == values.index(max(values[:epochs])) + 1


def test_without_evaluation_rows_a_tenth_is_held_out(encoder: Path, train: Path, tmp_path: Path) -> None:
    record = finetune(encoder, train, tmp_path / "out", replace(FAST, epochs=1))
    assert record.held_out
    assert (record.train.rows, record.evaluation.rows) == (86, 10)
    assert record.evaluation.source == str(train)


def test_long_rows_are_cut_and_the_tokenizer_is_stored_uncut(encoder: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "train.tsv", 32)
    path.write_text(path.read_text(encoding="utf-8") + f"{'very ' * 500}good\tpositive\n", encoding="utf-8")
    record = finetune(encoder, path, tmp_path / "out", replace(FAST, epochs=1, max_length=8))
    assert record.max_length == 8
    assert json.loads((tmp_path / "out" / "tokenizer.json").read_text(encoding="utf-8"))["truncation"] is None


def test_pairs_are_encoded_as_pairs(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pairs.tsv"
    rows = "".join(f"the film\tis {('bad', 'good')[n % 2]}\t{n % 2}\n" for n in range(24))
    path.write_text("one\ttwo\ty\n" + rows, encoding="utf-8")
    encoded: list[EncodedData] = []

    def spy(*args: Any, **more: Any) -> EncodedData:
        encoded.append(encode(*args, **more))
        return encoded[-1]

    monkeypatch.setattr(task_module, "encode", spy)
    options = replace(FAST, epochs=1, columns=Columns("one", "two", "y"))
    record = finetune(encoder, path, tmp_path / "out", options)
    assert list(record.labels) == ["0", "1"]
    # [CLS] the film [SEP] is good [SEP]
    assert encoded[0].rows[0]["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_every_family_trains_to_the_length_it_has_positions_for(tmp_path: Path, family: str) -> None:
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    tokenizer = tiny_models.make_tokenizer(encoder, family)
    save_checkpoint(tiny_models.make_model(AttentionSpec(), family), tokenizer, encoder)
    path = tmp_path / "train.tsv"
    texts = ("a" * 5, "b" * 20, "c" * 400, "")
    path.write_text(
        "text_a\tlabel\n" + "".join(f"{text}\tx\n{text}\ty\n" for text in texts), encoding="utf-8"
    )
    record = finetune(encoder, path, tmp_path / "out", replace(FAST, epochs=1), evaluation=path)
    assert record.max_length == tiny_models.POSITIONS
    assert len(record.layers) == tiny_models.LAYERS
    assert load_checkpoint(tmp_path / "out").config.model_type == family


def test_evaluation_labels_may_be_indices(encoder: Path, train: Path, tmp_path: Path) -> None:
    numbered = write_rows(tmp_path / "eval.tsv", 20, names=("0", "1"))
    record = finetune(encoder, train, tmp_path / "out", LEARNS, evaluation=numbered)
    assert list(record.labels) == ["negative", "positive"]
    assert record.metrics["accuracy"] > 0.8


def write_task(path: Path, label_of: Callable[[int], str], count: int = 48) -> Path:
    """Texts of good and bad words by turns; `label_of` tells the label by how many are good, 0 to 3."""
    lines = ["text_a\tlabel"]
    for number in range(count):
        good = number % 4
        words = [*GOOD[:good], *BAD[: 3 - good]]
        lines.append(f"{' '.join(words)}\t{label_of(good)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_multi_label_trains_each_label_by_itself(encoder: Path, tmp_path: Path) -> None:
    names = ("[]", '["warm"]', '["warm", "long"]', '["long"]')
    path = write_task(tmp_path / "train.tsv", lambda good: names[good])
    options = replace(FAST, epochs=6, task="multi_label_classification")
    record = finetune(encoder, path, tmp_path / "out", options, evaluation=path)
    model = load_checkpoint(tmp_path / "out")
    assert model.config.problem_type == "multi_label_classification"
    assert list(record.labels) == ["long", "warm"]
    assert set(record.metrics) == {"f1", "f1_macro", "accuracy"}
    assert record.metrics["f1"] > 0.8
    logits, texts = answers(tmp_path / "out", path)
    targets = torch.tensor([[name in text for name in ("long", "warm")] for text in texts["label"]]).float()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets).item()
    assert loss == pytest.approx(record.epochs[int(record.best_epoch) - 1].eval_loss, abs=1e-5)


def test_regression_trains_the_value_itself(encoder: Path, tmp_path: Path) -> None:
    path = write_task(tmp_path / "train.tsv", lambda good: str(good * 1.5 - 100))
    options = replace(FAST, epochs=2, task="regression", metric="mse")
    record = finetune(encoder, path, tmp_path / "out", options, evaluation=path)
    assert load_checkpoint(tmp_path / "out").config.problem_type == "regression"
    assert set(record.metrics) == {"pearson", "spearman", "mse"}
    logits, texts = answers(tmp_path / "out", path)
    targets = torch.tensor([float(text) for text in texts["label"]])
    error = ((logits[:, 0] - targets) ** 2).mean().item()
    best = record.epochs[int(record.best_epoch) - 1]
    assert [best.eval_loss, best.metrics["mse"]] == pytest.approx([error, error], rel=1e-5)
    assert best.eval_loss == min(epoch.eval_loss for epoch in record.epochs)


def answers(checkpoint: Path, path: Path) -> tuple[torch.Tensor, dict[str, list[str]]]:
    """A checkpoint's logits for the rows of a TSV file, and its columns."""
    header, *lines = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
    columns = dict(zip(header, map(list, zip(*lines, strict=True)), strict=True))
    inputs = load_tokenizer(checkpoint)(columns["text_a"], padding=True, return_tensors="pt")
    with torch.no_grad():
        return load_checkpoint(checkpoint)(**inputs).logits, columns


@pytest.mark.parametrize("parts", [2, 8])
def test_accumulated_parts_are_the_whole_batch(
    encoder_without_dropout: Path, tmp_path: Path, parts: int
) -> None:
    """The steps are the same, also that of an epoch's last batch, for which rows are short."""
    train = write_rows(tmp_path / "train.tsv", 61)
    records = [
        finetune(
            encoder_without_dropout,
            train,
            tmp_path / f"in {count}",
            replace(FAST, gradient_accumulation_steps=count),
            evaluation=train,
        )
        for count in (1, parts)
    ]
    expect_equal_figures(*records)


def test_a_batch_that_cannot_be_divided_is_refused(encoder: Path, train: Path, tmp_path: Path) -> None:
    options = replace(FAST, gradient_accumulation_steps=3)
    message = "--batch-size is 8; .* must be a multiple of 3: processes .1. times --gradient-accum"
    with pytest.raises(OptionError, match=message):
        finetune(encoder, train, tmp_path / "out", options)
    expect_nothing_written(tmp_path, {train})


@pytest.mark.parametrize("layers", [0, 1, LAYERS])
def test_frozen_layers_stay_as_they_were(encoder: Path, train: Path, tmp_path: Path, layers: int) -> None:
    finetune(encoder, train, tmp_path / "out", replace(FAST, epochs=1, freeze_layers=layers))
    before, after = weights(encoder), weights(tmp_path / "out")
    for name, weight in before.items():
        frozen = name.startswith(("embeddings.", *(f"encoder.layer.{number}." for number in range(layers))))
        assert torch.equal(weight, after[f"bert.{name}"]) == frozen, name


def test_more_frozen_layers_than_there_are_is_refused(encoder: Path, train: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--freeze-layers is 3; the encoder has 2 layers"):
        finetune(encoder, train, tmp_path / "out", replace(FAST, freeze_layers=3))
    expect_nothing_written(tmp_path, {train})


def test_from_scratch_forgets_the_encoders_weights(encoder: Path, train: Path, tmp_path: Path) -> None:
    options = replace(FAST, epochs=1, learning_rate=1e-9)
    finetune(encoder, train, tmp_path / "pretrained", options)
    finetune(encoder, train, tmp_path / "scratch", replace(options, from_scratch=True))
    word = "embeddings.word_embeddings.weight"
    original = weights(encoder)[word]
    assert torch.allclose(weights(tmp_path / "pretrained")[f"bert.{word}"], original, atol=1e-6)
    scratch = weights(tmp_path / "scratch")[f"bert.{word}"]
    assert scratch.shape == original.shape
    assert not torch.allclose(scratch, original, atol=1e-2)


def test_frozen_random_weights_are_refused() -> None:
    with pytest.raises(OptionError, match="--freeze-layers 1 with --from-scratch would keep random weights"):
        replace(FAST, freeze_layers=1, from_scratch=True)


def expect_nothing_written(tmp_path: Path, before: set[Path]) -> None:
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text_a\tlabel\na\tx\nb\tx\n", "has the one label 'x'"),
        ("text_a\ty\na\tx\n", "no column 'label'"),
        ("text_a\tlabel\na\t0.5\n", "line 2: the label is '0.5'"),
    ],
)
def test_bad_training_data_is_refused(encoder: Path, tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "train.tsv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        finetune(encoder, path, tmp_path / "out", FAST)
    expect_nothing_written(tmp_path, {path})


def test_unknown_evaluation_label_is_refused(encoder: Path, train: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "eval.tsv", 20, names=("negative", "neutral"))
    with pytest.raises(DataError, match="line 3: label 'neutral'"):
        finetune(encoder, train, tmp_path / "out", FAST, evaluation=path)
    expect_nothing_written(tmp_path, {train, path})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("learning_rate", math.inf),
        ("batch_size", 0),
        ("weight_decay", -0.1),
        ("warmup_ratio", 1.0),
        ("metric", "pearson"),
        ("freeze_layers", -1),
        ("gradient_accumulation_steps", 0),
        ("early_stopping_patience", 0),
        ("save_steps", 0),
        ("seed", -1),
        ("seed", 2**32),
        ("max_train_rows", 1),
    ],
)
def test_options_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"--{name.replace('_', '-')} is {value}; it must be "):
        replace(FAST, **{name: value})


def test_max_length_beyond_the_positions_is_refused(encoder: Path, train: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--max-length 25 is out of range"):
        finetune(encoder, train, tmp_path / "out", replace(FAST, max_length=25))
    expect_nothing_written(tmp_path, {train})


def test_missing_encoder_is_refused(train: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="it has no config"):
        finetune(tmp_path / "none", train, tmp_path / "out", FAST)
    expect_nothing_written(tmp_path, {train})


def test_a_folder_with_files_is_kept_unless_forced(encoder: Path, train: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    options = replace(FAST, epochs=1)
    output.mkdir()
    finetune(encoder, train, output, options)  # an empty folder is no obstacle
    before = (output / "model.safetensors").read_bytes()
    with pytest.raises(
        CheckpointError, match="is not empty; choose another --output or replace it with --force"
    ):
        finetune(encoder, train, output, options)
    assert (output / "model.safetensors").read_bytes() == before
    (output / "stale").touch()
    finetune(encoder, train, output, replace(options, seed=9), force=True)
    assert (output / "model.safetensors").read_bytes() != before
    assert not (output / "stale").exists()


def test_force_replaces_nothing_but_a_checkpoint(encoder: Path, train: Path, tmp_path: Path) -> None:
    precious = tmp_path / "home"
    precious.mkdir()
    (precious / "thesis.tex").touch()
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        finetune(encoder, train, precious, FAST, force=True)
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        finetune(encoder, train, train, FAST, force=True)
    assert (precious / "thesis.tex").exists()


def failing_save(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_failure_while_saving_leaves_the_old_checkpoint_and_what_was_trained(
    encoder: Path, train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    options = replace(FAST, epochs=1)
    finetune(encoder, train, output, options)
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    changed = replace(options, seed=5)
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "save_checkpoint", failing_save)
        with pytest.raises(CheckpointError, match="was not written: No space left on device"):
            finetune(encoder, train, output, changed, force=True)
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before
    expect_nothing_written(tmp_path, {train, output, tmp_path / "out.partial"})

    monkeypatch.setattr(trainer_module.RunTrainer, "train", None)  # nothing is left to train
    assert finetune(encoder, train, output, changed, force=True, resume=True).options == changed
    assert (output / "model.safetensors").read_bytes() != before["model.safetensors"]
    expect_nothing_written(tmp_path, {train, output})


class Interrupting(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    def on_step_end(self, *_: Any, **__: Any) -> None:
        raise KeyboardInterrupt


def test_interruption_before_the_first_epochs_end_leaves_nothing(
    encoder: Path, train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "Steering", lambda *_: Interrupting())
    with pytest.raises(KeyboardInterrupt):
        finetune(encoder, train, tmp_path / "out", FAST)
    expect_nothing_written(tmp_path, {train})


class Breaking(Steering):
    """Breaks the model as an epoch begins, the first or another."""

    first = False

    def on_epoch_begin(self, *args: Any, **rest: Any) -> None:
        super().on_epoch_begin(*args, **rest)
        if self.first or args[1].global_step:
            torch.nn.init.constant_(rest["model"].classifier.weight, math.nan)


def test_diverged_training_is_refused(
    encoder: Path, train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "Steering", Breaking)
    monkeypatch.setattr(Breaking, "first", True)
    with pytest.raises(CheckpointError, match="training diverged: the evaluation loss is nan after epoch 1"):
        finetune(encoder, train, tmp_path / "out", FAST)
    expect_nothing_written(tmp_path, {train})


def test_the_best_epoch_before_training_diverged_is_kept(
    encoder: Path, train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = finetune(encoder, train, tmp_path / "one", replace(FAST, epochs=3))
    monkeypatch.setattr(trainer_module, "Steering", Breaking)
    console = Console(file=StringIO(), soft_wrap=True)
    record = finetune(encoder, train, tmp_path / "out", replace(FAST, epochs=3), console=console)
    assert (record.best_epoch, record.epochs) == (1, one.epochs[:1])
    assert (
        "warning: training diverged: the evaluation loss is nan after epoch 2; lower --learning-rate; "
        "the best epoch before, 1, is kept"
    ) in told(console)
    load_checkpoint(tmp_path / "out")  # which refuses weights that are no numbers
    assert not (tmp_path / "out.partial").exists()


def out_of_memory(*_: Any, **__: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


@pytest.mark.parametrize(
    ("module", "name"),
    [(trainer_module.RunTrainer, "train"), (run_module, "make_trainer"), (run_module, "save_checkpoint")],
    ids=["training", "model", "result"],
)
def test_a_full_device_is_told_with_what_takes_less(
    encoder: Path, train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    monkeypatch.setattr(module, name, out_of_memory)
    message = (
        r"does not fit into the device's memory: CUDA out of memory\. .*--gradient-accumulation-steps "
        r"\(now 1\) or --gradient-checkpointing, .*--max-length or a smaller --batch-size \(now 8\)$"
    )
    with pytest.raises(DeviceError, match=message):
        finetune(encoder, train, tmp_path / "out", replace(FAST, epochs=1))


def test_output_that_cannot_be_made_is_refused_before_training(encoder: Path, train: Path) -> None:
    with pytest.raises(CheckpointError, match="was not written: "):
        finetune(encoder, train, train / "out", FAST)


def test_a_mount_point_is_refused_before_training(encoder: Path, train: Path) -> None:
    for mounted in ("/", "/proc"):
        with pytest.raises(CheckpointError, match=f"^{mounted} is a mount point, .* a folder in it as --out"):
            finetune(encoder, train, Path(mounted), FAST, force=True)


class SeveralGpus(TrainingArguments):  # type: ignore[misc]  # Transformers is untyped
    @property
    def n_gpu(self) -> int:
        return self._n_gpu or 4  # as a machine with four has it, unless told otherwise


def test_several_visible_gpus_train_as_one(
    encoder: Path, train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = finetune(encoder, train, tmp_path / "alone", FAST)
    monkeypatch.setattr(trainer_module, "TrainingArguments", SeveralGpus)
    several = finetune(encoder, train, tmp_path / "several", FAST)
    assert replace(several, seconds=0) == replace(alone, seconds=0)


def test_evaluation_rows_are_taken_longest_first(
    encoder: Path, train: Path, evaluation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []

    class Listening(trainer_module.RunTrainer):
        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            loader = super().get_eval_dataloader(eval_dataset)
            lengths.extend(length for batch in loader for length in batch["attention_mask"].sum(1).tolist())
            return loader

    monkeypatch.setattr(trainer_module, "RunTrainer", Listening)
    finetune(encoder, train, tmp_path / "out", replace(FAST, epochs=1), evaluation=evaluation)
    assert len(lengths) == 20
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]


def test_the_longest_evaluation_row_decides_how_many_are_taken_at_once(
    encoder: Path, train: Path, evaluation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: set[int] = set()

    class Listening(trainer_module.RunTrainer):
        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            loader = super().get_eval_dataloader(eval_dataset)
            batches = [batch["attention_mask"] for batch in loader]
            longest = max(batch.shape[1] for batch in batches)
            sizes.update(len(batch) * longest**2 for batch in batches)
            return loader

    monkeypatch.setattr(trainer_module, "RunTrainer", Listening)
    whole = finetune(encoder, train, tmp_path / "whole", replace(FAST, epochs=1), evaluation=evaluation)
    (together,) = sizes
    sizes.clear()
    monkeypatch.setattr(batches_module, "_PAIRS_AT_ONCE", together // 3)
    parts = finetune(encoder, train, tmp_path / "parts", replace(FAST, epochs=1), evaluation=evaluation)
    assert 0 < max(sizes) <= together // 3
    assert parts.metrics == whole.metrics
    assert [layer.rho for layer in parts.layers] == pytest.approx([layer.rho for layer in whole.layers])


@pytest.mark.parametrize(
    ("most", "longest", "rows"),
    [(64, 24, 64), (64, 256, 64), (64, 257, 63), (64, 512, 16), (8, 512, 8), (64, 2048, 1), (64, 8192, 1)],
)
def test_fewer_of_long_rows_are_evaluated_at_once(most: int, longest: int, rows: int) -> None:
    assert batches_module.rows_within(most, longest) == rows


def test_record_property_is_the_best_epochs(encoder: Path, train: Path, tmp_path: Path) -> None:
    record = finetune(encoder, train, tmp_path / "out", FAST)
    assert isinstance(record, FinetuneRecord)
    assert record.metrics == record.epochs[int(record.best_epoch) - 1].metrics


def test_a_tokenizer_that_names_no_token_for_padding_pads_as_the_encoder_does(
    encoder: Path, train: Path, evaluation: Path, tmp_path: Path
) -> None:
    plain = Path(shutil.copytree(encoder, tmp_path / "plain"))
    file = plain / "tokenizer_config.json"
    stored = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(stored | {"pad_token": None}), encoding="utf-8")
    records = [
        finetune(start, train, tmp_path / name, replace(FAST, epochs=1), evaluation=evaluation)
        for name, start in (("own", encoder), ("other", plain))
    ]
    assert records[0].epochs == records[1].epochs
