"""The command `finetune`: its output, its exit statuses, and what a killed run leaves behind."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from test_finetune import make_encoder, write_rows

import sparse_export.finetune as module
from sparse_export.checkpoint import AttentionSpec, load_classifier
from sparse_export.cli_finetune import finetune_command
from sparse_export.finetune import FinetuneOptions
from sparse_serve.cli_options import CONTEXT, run
from sparse_serve.data import Columns

FAST = ("--epochs", "1", "--batch-size", "8")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture
def train(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "train.tsv", 32)


@pytest.fixture(autouse=True)
def handlers() -> Any:
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGTERM) is before


def command(*args: object) -> int:
    """Run the command in this process; the exit status."""
    app = typer.Typer()
    app.command("finetune", context_settings=CONTEXT)(finetune_command)
    with pytest.raises(SystemExit) as ended:
        run(app, [str(argument) for argument in args])
    return int(ended.value.code or 0)


class CalledError(Exception):
    """Ends a command in place of training."""


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `finetune` was called with; nothing is trained."""
    seen: dict[str, Any] = {}

    def record_call(*args: Any, **named: Any) -> None:
        seen.update(zip(("encoder", "train", "output", "options"), args, strict=True), **named)
        raise CalledError

    monkeypatch.setattr(module, "finetune", record_call)
    return seen


def test_one_line_tells_the_result(
    encoder: Path, train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(encoder, "--train", train, "--output", tmp_path / "out", "--lambda", "-2", *FAST) == 0
    out, err = capsys.readouterr()
    assert re.fullmatch(rf"{tmp_path}/out: accuracy [01]\.\d{{4}} on 3 rows \(epoch 1 of 1\)\n", out)
    assert "3 of 32 training rows (seed 0) are held out" in err
    assert "epoch 1 of 1: evaluation loss" in err
    spec = AttentionSpec.from_config(load_classifier(tmp_path / "out").config)
    assert spec == AttentionSpec("sparsegen", -2.0)


def test_json_is_the_record_and_nothing_else(
    encoder: Path, train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert command(encoder, "--train", train, "--eval", train, "--output", output, "--json", *FAST) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((output / "finetune.json").read_text(encoding="utf-8"))
    assert printed["evaluation"]["rows"] == 32


def test_defaults_are_the_options_own(call: dict[str, Any]) -> None:
    command("encoder", "--train", "a.tsv", "--output", "out")
    assert call["options"] == FinetuneOptions()
    assert call["columns"] == Columns()
    assert (call["encoder"], call["train"], call["output"]) == ("encoder", Path("a.tsv"), Path("out"))
    assert (call["evaluation"], call["force"]) == (None, False)


def test_every_option_arrives(call: dict[str, Any]) -> None:
    command(
        *("encoder", "--train", "a.csv", "--eval", "b.csv", "--output", "out", "--attention", "sparsegen"),
        *("--lambda", "-7", "--epochs", "2", "--learning-rate", "1e-4", "-b", "4", "--weight-decay", "0"),
        *("--warmup-ratio", "0.2", "--max-length", "64", "--max-train-rows", "9", "--seed", "5"),
        *("--text-column", "t", "--text-pair-column", "u", "--label-column", "y", "--force"),
    )
    assert call["options"] == FinetuneOptions(
        attention=AttentionSpec("sparsegen", -7.0),
        epochs=2,
        learning_rate=1e-4,
        batch_size=4,
        weight_decay=0.0,
        warmup_ratio=0.2,
        max_length=64,
        seed=5,
        max_train_rows=9,
    )
    assert call["columns"] == Columns("t", "u", "y")
    assert (call["evaluation"], call["force"]) == (Path("b.csv"), True)


def test_options_are_read_from_the_environment(call: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"TRAIN": "a.tsv", "OUTPUT": "out", "LAMBDA": "-3", "EPOCHS": "2", "EVAL": "b.tsv"}
    for name, value in settings.items():
        monkeypatch.setenv(f"SPARSE_SERVE_{name}", value)
    command("encoder")
    assert call["options"] == FinetuneOptions(attention=AttentionSpec("sparsegen", -3.0), epochs=2)
    assert (call["train"], call["evaluation"]) == (Path("a.tsv"), Path("b.tsv"))


def test_softmax_needs_no_lambda(call: dict[str, Any]) -> None:
    command("encoder", "--train", "a.tsv", "--output", "out", "--attention", "softmax")
    assert call["options"].attention == AttentionSpec("softmax")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--lambda", "1"), "below 1"),
        (("--lambda", "nan"), "below 1"),
        (("--attention", "softmax", "--lambda", "-4"), "softmax attention takes no lambda"),
        (("--attention", "sparse"), "'sparse' is not one of"),
        (("--epochs", "0"), "--epochs is 0; it must be at least 1"),
        (("--epochs", "many"), "valid int"),
        (("--learning-rate", "-1"), "--learning-rate is -1.0; it must be above 0 and finite"),
        (("--max-length", "25"), "--max-length is 25; the encoder has positions for 24 tokens"),
    ],
)
def test_options_out_of_range_are_status_2(
    encoder: Path,
    train: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    message: str,
) -> None:
    assert command(encoder, "--train", train, "--output", tmp_path / "out", *FAST, *args) == 2
    expect_one_error(capsys, message)
    assert not (tmp_path / "out").exists()


def expect_one_error(capsys: pytest.CaptureFixture[str], message: str) -> None:
    out, err = capsys.readouterr()
    assert not out
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        ("", "is empty"),
        ("text\tlabel\nx\t1\n", "there is no column 'text_a'; the columns are text, label"),
        ("text_a\ty\nx\t1\n", "there is no column 'label'; the columns are text_a, y"),
        ("text_a\tlabel\nx\t\n", "line 2: the label is missing"),
    ],
)
def test_bad_data_is_status_1(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    path = tmp_path / "bad.tsv"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    assert command(encoder, "--train", path, "--output", tmp_path / "out", *FAST) == 1
    expect_one_error(capsys, message)


def test_bad_encoder_is_status_1(train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    assert command(tmp_path / "other", "--train", train, "--output", tmp_path / "out") == 1
    expect_one_error(capsys, "is a gpt2 model; supported families: bert")


def test_occupied_output_is_status_1(
    encoder: Path, train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(encoder, "--train", train, "--output", tmp_path, *FAST) == 1
    expect_one_error(capsys, "is not empty; choose another --output or replace it with --force")


def test_missing_options_are_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("encoder", "--output", "out") == 2
    expect_one_error(capsys, "Missing option '--train'")


def test_the_module_loads_without_torch() -> None:
    code = "import sys, sparse_export.cli_finetune; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


PROGRAM = """
import typer
from sparse_export.cli_finetune import finetune_command
from sparse_serve.cli_options import CONTEXT, run
app = typer.Typer()
app.command("finetune", context_settings=CONTEXT)(finetune_command)
run(app)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_killed_run_leaves_no_checkpoint(
    encoder: Path, train: Path, tmp_path: Path, number: signal.Signals
) -> None:
    output = tmp_path / "out"
    args = (encoder, "--train", train, "--output", output, "--epochs", "100000")
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, args)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    with process:
        for line in process.stderr:
            if line.startswith("epoch 2 "):
                break
        assert process.poll() is None
        process.send_signal(number)
        process.communicate(timeout=60)
    assert not output.exists()
    if number is signal.SIGKILL:
        # Nobody could tidy up, but what is left is hidden and is no checkpoint.
        assert all(path.name.startswith(".out.") for path in set(tmp_path.iterdir()) - {train})
    else:
        assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
        assert set(tmp_path.iterdir()) == {train}
