"""Fine-tuning on a tiny random BERT: what is written, what is kept, and what is left after a failure."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, BertConfig, BertModel, BertTokenizerFast
from transformers import logging as transformers_logging

import sparse_export.finetune as module
from sparse_export.checkpoint import AttentionSpec, load_classifier, load_tokenizer, new_classifier
from sparse_export.finetune import RECORD_NAME, FinetuneOptions, FinetuneRecord, finetune
from sparse_serve.data import Columns
from sparse_serve.digests import file_digest
from sparse_serve.errors import CheckpointError, DataError, OptionError

GOOD = ("good", "fine", "lovely", "great")
BAD = ("bad", "poor", "dull", "awful")
NEUTRAL = ("the", "film", "is", "a", "very", "story")

FAST = FinetuneOptions(epochs=2, learning_rate=5e-3, batch_size=8, warmup_ratio=0, seed=1)
LEARNS = replace(FAST, epochs=4)


@pytest.fixture(scope="module", autouse=True)
def quiet_and_single_threaded() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    yield
    transformers_logging.enable_progress_bar()
    torch.set_num_threads(threads)


def make_encoder(folder: Path) -> Path:
    """A two-layer BERT with random weights and a WordPiece vocabulary of whole words."""
    words = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *NEUTRAL, *GOOD, *BAD)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=24,
        initializer_range=0.1,  # large enough for few steps to matter
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("encoder"))


def write_rows(path: Path, count: int, names: tuple[str, str] = ("negative", "positive")) -> Path:
    lines = ["text_a\tlabel"]
    for number in range(count):
        words = (BAD, GOOD)[number % 2]
        # The text grows with the number, so that batches of mixed lengths occur.
        text = f"the film is {'very ' * (number % 5)}{words[number // 2 % 4]}"
        lines.append(f"{text}\t{names[number % 2]}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def train(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "train.tsv", 96)


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "eval.tsv", 20)


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / "model.safetensors")


def test_checkpoint_is_a_transformers_folder_that_remembers_its_attention(
    encoder: Path, train: Path, evaluation: Path, tmp_path: Path
) -> None:
    output = tmp_path / "made" / "checkpoint"
    record = finetune(encoder, train, output, LEARNS, evaluation=evaluation)

    config = json.loads((output / "config.json").read_text(encoding="utf-8"))
    assert config["sparse_attention"] == {"kind": "sparsegen", "lambd": -4.0}
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
    model, tokenizer = load_classifier(tmp_path / "out"), load_tokenizer(tmp_path / "out")
    lines = evaluation.read_text(encoding="utf-8").splitlines()[1:]
    texts, labels = zip(*(line.split("\t") for line in lines), strict=True)
    with torch.no_grad():
        inputs = tokenizer(list(texts), padding=True, return_tensors="pt")
        answer = model(**inputs, output_attentions=True)
    expected = torch.tensor([model.config.label2id[label] for label in labels])
    assert (answer.logits.argmax(1) == expected).double().mean().item() == record.metrics["accuracy"]
    loss = torch.nn.functional.cross_entropy(answer.logits, expected).item()
    assert loss == pytest.approx(record.epochs[record.best_epoch - 1].eval_loss, abs=1e-5)
    assert (answer.attentions[0] == 0).any()  # sparsegen's exact zeros: it was not loaded as softmax
    softmax = load_classifier(tmp_path / "out", AttentionSpec())
    with torch.no_grad():
        assert (softmax(**inputs).logits - answer.logits).abs().max() > 1e-4


def test_softmax_checkpoint_loads_in_stock_transformers(
    encoder: Path, train: Path, evaluation: Path, tmp_path: Path
) -> None:
    options = replace(FAST, attention=AttentionSpec("softmax"))
    finetune(encoder, train, tmp_path / "out", options, evaluation=evaluation)
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    inputs = load_tokenizer(tmp_path / "out")(["the film is good", "bad"], padding=True, return_tensors="pt")
    with torch.no_grad():
        ours = load_classifier(tmp_path / "out")(**inputs).logits
        assert torch.allclose(stock(**inputs).logits, ours, atol=1e-6)


def test_record_tells_how_the_checkpoint_was_made(
    encoder: Path, train: Path, evaluation: Path, tmp_path: Path
) -> None:
    options = replace(FAST, max_train_rows=40)
    record = finetune(encoder, train, tmp_path / "out", options, evaluation=evaluation)
    stored = json.loads((tmp_path / "out" / RECORD_NAME).read_text(encoding="utf-8"))
    assert stored == json.loads(record.to_json())
    assert stored["schema_version"] == 1
    assert stored["options"]["attention"] == {"kind": "sparsegen", "lambd": -4.0}
    assert stored["train"] == {
        "path": str(train),
        "sha256": file_digest(train),
        "rows": 40,
        "total_rows": 96,
    }
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


def script_metrics(monkeypatch: pytest.MonkeyPatch, values: list[float]) -> None:
    """Make the evaluations after each epoch answer `values`, whatever the model says."""
    answers = iter(values)
    monkeypatch.setattr(module, "_compute_metrics", lambda _: {"accuracy": next(answers)})


@pytest.mark.parametrize(
    ("values", "best"), [([0.9, 0.5, 0.7], 1), ([0.5, 0.9, 0.7], 2), ([0.5, 0.7, 0.7], 2)]
)
def test_best_epoch_is_kept(
    encoder: Path,
    train: Path,
    evaluation: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    values: list[float],
    best: int,
) -> None:
    seen: list[dict[str, torch.Tensor]] = []

    class Recorder(module._Report):
        def on_evaluate(self, *args: Any, **rest: Any) -> None:
            state = rest["model"].state_dict()
            seen.append({name: weight.detach().clone() for name, weight in state.items()})
            super().on_evaluate(*args, **rest)

    monkeypatch.setattr(module, "_Report", Recorder)
    script_metrics(monkeypatch, values)
    record = finetune(encoder, train, tmp_path / "out", replace(FAST, epochs=3), evaluation=evaluation)
    assert record.best_epoch == best
    assert record.metrics == {"accuracy": max(values)}
    kept = weights(tmp_path / "out")
    matches = [all(torch.equal(kept[name], state[name]) for name in kept) for state in seen]
    assert matches == [epoch == best for epoch in (1, 2, 3)]


def test_without_evaluation_rows_a_tenth_is_held_out(encoder: Path, train: Path, tmp_path: Path) -> None:
    record = finetune(encoder, train, tmp_path / "out", replace(FAST, epochs=1))
    assert record.held_out
    assert (record.train.rows, record.evaluation.rows) == (86, 10)
    assert record.evaluation.path == str(train)


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
    encoded: list[list[dict[str, Any]]] = []
    encode = module._encode

    def spy(*args: Any) -> list[dict[str, Any]]:
        encoded.append(encode(*args))
        return encoded[-1]

    monkeypatch.setattr(module, "_encode", spy)
    columns = Columns("one", "two", "y")
    record = finetune(encoder, path, tmp_path / "out", replace(FAST, epochs=1), columns=columns)
    assert list(record.labels) == ["0", "1"]
    # [CLS] the film [SEP] is good [SEP]
    assert encoded[0][0]["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]


def test_evaluation_labels_may_be_indices(encoder: Path, train: Path, tmp_path: Path) -> None:
    numbered = write_rows(tmp_path / "eval.tsv", 20, names=("0", "1"))
    record = finetune(encoder, train, tmp_path / "out", LEARNS, evaluation=numbered)
    assert list(record.labels) == ["negative", "positive"]
    assert record.metrics["accuracy"] > 0.8


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
        ("max_length", 2),
        ("seed", -1),
        ("seed", 2**32),
        ("max_train_rows", 1),
    ],
)
def test_options_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"--{name.replace('_', '-')} is {value}; it must be "):
        replace(FAST, **{name: value})


def test_max_length_beyond_the_positions_is_refused(encoder: Path, train: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--max-length is 25; the encoder has positions for 24"):
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


def test_failure_while_saving_leaves_the_old_checkpoint(
    encoder: Path, train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    finetune(encoder, train, output, replace(FAST, epochs=1))
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    monkeypatch.setattr(module, "save_classifier", failing_save)
    with pytest.raises(CheckpointError, match="was not written: No space left on device"):
        finetune(encoder, train, output, replace(FAST, epochs=1, seed=5), force=True)
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before
    expect_nothing_written(tmp_path, {train, output})


def test_interruption_in_training_leaves_nothing(
    encoder: Path, train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        assert any(path.name.startswith(".out.") for path in tmp_path.iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr(module._Report, "on_step_end", interrupt)
    with pytest.raises(KeyboardInterrupt):
        finetune(encoder, train, tmp_path / "out", FAST)
    expect_nothing_written(tmp_path, {train})


def test_diverged_training_is_refused(
    encoder: Path, train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def broken(*args: Any) -> Any:
        model = new_classifier(*args)
        torch.nn.init.constant_(model.classifier.weight, math.nan)
        return model

    monkeypatch.setattr(module, "new_classifier", broken)
    with pytest.raises(CheckpointError, match="training diverged: the evaluation loss is nan after epoch 1"):
        finetune(encoder, train, tmp_path / "out", FAST)
    expect_nothing_written(tmp_path, {train})


def test_output_that_cannot_be_made_is_refused_before_training(encoder: Path, train: Path) -> None:
    with pytest.raises(CheckpointError, match="was not written: "):
        finetune(encoder, train, train / "out", FAST)


def test_record_property_is_the_best_epochs(encoder: Path, train: Path, tmp_path: Path) -> None:
    record = finetune(encoder, train, tmp_path / "out", FAST)
    assert isinstance(record, FinetuneRecord)
    assert record.metrics == record.epochs[record.best_epoch - 1].metrics
