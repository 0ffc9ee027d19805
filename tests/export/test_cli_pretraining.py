"""`finetune --task mlm` on the command line, and what comes after it: the encoder is fine-tuned."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import sparse_export.pretraining as module
from command_line import exit_status
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint
from sparse_export.cli import app
from sparse_export.encoders.spec import ModelSpec
from sparse_export.pretraining import PretrainOptions
from sparse_export.training.hub_data import DatasetSplit
from sparse_serve.data import Columns
from tiny_training import write_rows

FAST = ("--epochs", "1", "--batch-size", "8")

pytestmark = pytest.mark.usefixtures("single_threaded")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"the film is {'very ' * (n % 3)}good\na story\n\n" for n in range(12)))
    return path


def command(*args: object) -> int:
    """Run the command in this process; the exit status."""
    return exit_status(app, "finetune", "--task", "mlm", *args)


class CalledError(Exception):
    """Ends a command in place of training."""


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `pretrain` was called with; nothing is trained."""
    seen: dict[str, Any] = {}

    def record_call(*args: Any, **named: Any) -> None:
        seen.update(zip(("encoder", "train", "output", "options"), args, strict=True), **named)
        raise CalledError

    monkeypatch.setattr(module, "pretrain", record_call)
    return seen


def test_pre_trained_with_a_pattern_and_fine_tuned_with_it(
    encoder: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, tuned = tmp_path / "made", tmp_path / "tuned"
    args = (encoder, "--train", text, "--output", made, "--attention", "local1+global1", "--nsp", *FAST)
    assert command(*args) == 0
    out, err = capsys.readouterr()
    figures = r"accuracy [01]\.\d{4}, perplexity \d+\.\d{4}, nsp_accuracy [01]\.\d{4}"
    assert re.search(rf"^{made}: {figures} on 2 rows \(epoch 1 of 1\)", out)
    assert "2 of 12 training rows (seed 0) are held out" in err
    assert re.search(r"^epoch 1 of 1: evaluation loss \d\.\d{4}, accuracy [01]\.\d{4}", err, re.MULTILINE)

    # A last --task counts; --attention is what the encoder was trained with.
    train = write_rows(tmp_path / "train.tsv", 16)
    assert (
        command(made, "--train", train, "--output", tuned, "--task", "classification", "--json", *FAST) == 0
    )
    record = json.loads(capsys.readouterr().out)
    expected = AttentionSpec.parse("local1+global1", None)
    assert ModelSpec.of(load_checkpoint(tuned).config).attention == expected
    assert record["options"]["attention"]["pattern"]["global_size"] == 1


def test_every_option_arrives(call: dict[str, Any], encoder: Path) -> None:
    command(
        *(encoder, "--train", "a.txt", "--eval", "b.txt", "--output", "out", "--attention", "sparsegen"),
        *("--lambda", "-7", "--nsp", "--positions", "sinusoidal", "--from-scratch", "--text-column", "t"),
        *("--metric", "perplexity", "--max-train-rows", "9", "--resume"),
    )
    assert call["options"] == PretrainOptions(
        attention=AttentionSpec(-7.0),
        nsp=True,
        positions="sinusoidal",
        from_scratch=True,
        metric="perplexity",
        max_train_rows=9,
        columns=Columns("t"),
    )
    assert (call["train"], call["evaluation"]) == (Path("a.txt"), Path("b.txt"))
    assert (call["force"], call["resume"]) == (False, True)


def test_options_are_read_from_the_environment(
    call: dict[str, Any], encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TRAIN": "wikitext", "OUTPUT": "out", "NSP": "1", "POSITIONS": "learned"}.items():
        monkeypatch.setenv(f"SPARSE_SERVE_{name}", value)
    command(encoder)
    assert (call["options"].nsp, call["options"].positions) == (True, "learned")
    assert call["train"] == DatasetSplit("wikitext")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--positions", "rotary"), "'rotary' is not one of"),
        (("--positions", "sinusoidal"), "--positions sinusoidal would replace those that"),
        (("--label-column", "y"), "--label-column y is for labelled rows, and --task mlm reads no labels"),
        (("--nsp", "--text-pair-column", "b"), "--text-pair-column b with --nsp: it pairs rows that follow"),
        (("--metric", "f1"), "--metric is f1; it must be one of accuracy, perplexity, loss"),
        (("--attention", "softmax", "--lambda", "-4"), "softmax attention takes no lambda"),
        (("--attention", "local1+local2"), "attention 'local1+local2' contradicts itself"),
        (("--nsp", "--task", "regression"), "--nsp is for --task mlm, and this is --task regression; leave"),
        (("--positions", "learned", "--task", "multi-label"), "--positions learned is for --task mlm, and"),
    ],
)
def test_options_out_of_range_are_status_2(
    encoder: Path,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    message: str,
) -> None:
    assert command(encoder, "--train", text, "--output", tmp_path / "out", *FAST, *args) == 2
    out, err = capsys.readouterr()
    (error,) = (line for line in err.splitlines() if line.startswith("error: "))
    assert message in error
    assert not out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.txt", "cannot be read: No such file or directory"),
        ("text.rtf", "has suffix '.rtf'; accepted are .tsv, .csv, .jsonl, .txt"),
    ],
)
def test_bad_text_is_status_1(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    (tmp_path / "text.rtf").touch()
    assert command(encoder, "--train", tmp_path / name, "--output", tmp_path / "out", *FAST) == 1
    assert message in capsys.readouterr().err
