"""The command `finetune`: its output, its exit statuses, and what a killed run leaves behind."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from forked_processes import Forked, sparse_serve
from transformers import BertConfig

import sparse_export.cli.multitask as multitask_module
import sparse_export.cli.patterns as patterns_module
import sparse_export.cli.training as training_module
import sparse_export.training as module
import sparse_export.training.attentions as attentions_module
import sparse_export.training.options as options_module
from command_line import exit_status
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint
from sparse_export.cli import app
from sparse_export.cli.options import load_model_side
from sparse_export.encoders.spec import ModelSpec, Positions
from sparse_export.multitask.options import SimcseForm
from sparse_export.multitask.plan import Sampling
from sparse_export.training import FinetuneOptions
from sparse_export.training.hub_data import DatasetSplit
from sparse_serve.data import Columns
from sparse_serve.errors import SparseServeError
from sparse_serve.tasks import TASKS
from tiny_training import weights, write_rows

FAST = ("--epochs", "1", "--batch-size", "8")


@pytest.fixture
def train(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "train.tsv", 32)


@pytest.fixture(scope="module", autouse=True)
def single_threaded() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def handlers() -> Any:
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGTERM) is before


def command(*args: object) -> int:
    """Run the command in this process; the exit status."""
    return exit_status(app, "finetune", *args)


class CalledError(Exception):
    """Ends a command in place of training."""


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `finetune` was called with; nothing is trained, and the encoder has no sparse attention."""
    seen: dict[str, Any] = {}

    def record_call(*args: Any, **named: Any) -> None:
        seen.update(zip(("encoder", "train", "output", "options"), args, strict=True), **named)
        raise CalledError

    monkeypatch.setattr(module, "finetune", record_call)
    monkeypatch.setattr(attentions_module, "load_config", lambda *_: BertConfig())
    return seen


def test_one_line_tells_the_result(
    encoder: Path, train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(encoder, "--train", train, "--output", tmp_path / "out", "--lambda", "-2", *FAST) == 0
    out, err = capsys.readouterr()
    figures = r"accuracy [01]\.\d{4}, f1 [01]\.\d{4}, matthews -?[01]\.\d{4}"
    assert re.fullmatch(rf"{tmp_path}/out: {figures} on 3 rows \(epoch 1 of 1\)\n", out)
    assert "3 of 32 training rows (seed 0) are held out" in err
    assert "epoch 1 of 1: evaluation loss" in err
    spec = ModelSpec.of(load_checkpoint(tmp_path / "out").config).attention
    assert spec == AttentionSpec(-2.0)


def test_of_a_learned_pattern_the_line_tells_its_rho(
    encoder: Path, train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    args = ("--attention", "axis", "--rho-target", "0.3", "--epochs", "2", "--batch-size", "8")
    assert command(encoder, "--train", train, "--output", output, *args) == 0
    record = json.loads((output / "finetune.json").read_text(encoding="utf-8"))
    rho, without = record["rho"], record["rho_without_band"]
    expected = f"; rho {rho:.4f}, target 0.3000, {without:.4f} without the fixed part\n"
    assert capsys.readouterr().out.endswith(expected)


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
    assert (call["encoder"], call["train"], call["output"]) == ("encoder", Path("a.tsv"), Path("out"))
    assert (call["evaluation"], call["force"], call["resume"]) == (None, False, False)


def test_every_option_arrives(call: dict[str, Any]) -> None:
    command(
        *("encoder", "--train", "a.csv", "--eval", "b.csv", "--output", "out", "--attention", "sparsegen"),
        *("--lambda", "-7", "--epochs", "2", "--learning-rate", "1e-4", "-b", "4", "--weight-decay", "0"),
        *("--warmup-ratio", "0.2", "--max-length", "64", "--max-train-rows", "9", "--seed", "5"),
        *("--text-column", "t", "--text-pair-column", "u", "--label-column", "y", "--force", "--resume"),
        *("--task", "multi-label", "--metric", "f1_macro", "--freeze-layers", "3", "--save-steps", "50"),
        *("--gradient-accumulation-steps", "2", "--early-stopping-patience", "3"),
    )
    assert call["options"] == FinetuneOptions(
        attention=AttentionSpec(-7.0),
        task="multi_label_classification",
        metric="f1_macro",
        freeze_layers=3,
        epochs=2,
        learning_rate=1e-4,
        batch_size=4,
        gradient_accumulation_steps=2,
        weight_decay=0.0,
        warmup_ratio=0.2,
        max_length=64,
        early_stopping_patience=3,
        save_steps=50,
        seed=5,
        max_train_rows=9,
        columns=Columns("t", "u", "y"),
    )
    assert (call["evaluation"], call["force"], call["resume"]) == (Path("b.csv"), True, True)


def test_every_option_of_trainer_arrives(call: dict[str, Any]) -> None:
    command(
        *("encoder", "--train", "a.csv", "--test", "c.csv", "--output", "out", "--max-eval-rows", "7"),
        *("--max-steps", "30", "--eval-steps", "10", "--lr-scheduler-type", "cosine", "--bf16", "--tf32"),
        *("--max-grad-norm", "0.5", "--label-smoothing", "0.1", "--dropout", "0.3", "--revision", "v2"),
        *("--gradient-checkpointing", "--report-to", "tensorboard"),
    )
    assert call["options"] == FinetuneOptions(
        max_eval_rows=7,
        max_steps=30,
        eval_steps=10,
        lr_scheduler_type="cosine",
        bf16=True,
        tf32=True,
        max_grad_norm=0.5,
        label_smoothing=0.1,
        dropout=0.3,
        revision="v2",
        gradient_checkpointing=True,
        report_to="tensorboard",
    )
    assert call["test"] == Path("c.csv")


def test_options_come_from_a_file_where_the_command_line_says_nothing(
    call: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "encoder: folder/encoder\ntrain: a.tsv\noutput: out\neval: b.tsv\nlambda: -3\nlearning-rate: 1.0e-4\n"
        "label_column: y\nforce: true\nepochs: 7\nbatch-size: 4\nseed: 5\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("SPARSE_SERVE_SEED", "9")
    command("--config", path, "--epochs", "2")
    assert call["options"] == FinetuneOptions(
        attention=AttentionSpec(-3.0),
        learning_rate=1e-4,
        epochs=2,
        batch_size=4,
        seed=9,
        columns=Columns(label="y"),
    )
    assert (call["encoder"], call["train"], call["evaluation"]) == (
        "folder/encoder",
        Path("a.tsv"),
        Path("b.tsv"),
    )
    assert call["force"]


def test_a_list_in_a_file_is_one_of_a_command_line(call: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("train: a.tsv\noutput: out\nlambda: [-7, -4]\n", encoding="utf-8")
    command("encoder", "--config", path)
    assert call["options"] == FinetuneOptions(attention=AttentionSpec(-7.0))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("epoch: 3\n", "there is no option 'epoch'; there are adapter-heads, adapter-learning-rate, "),
        ("config: x.yaml\n", "there is no option 'config'"),
        ("3: 4\n", "there is no option 3;"),
        ("epochs: {a: 1}\n", "epochs is {'a': 1}; a number, a text, true or false is needed"),
        ("epochs: many\n", "valid int"),
        ("epochs: 0\n", "--epochs is 0; it must be at least 1"),
        ("- epochs\n", "holds a list; give options by name: epochs: 3"),
        ("epochs: [\n", "is not YAML: "),
        ("a: !!python/object:os.system x\n", "is not YAML: "),
        ("epochs: 3\nepochs: 4\n", "is not YAML: 'epochs' stands there twice"),
    ],
)
def test_a_bad_file_of_options_is_status_2(
    encoder: Path,
    train: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str,
    message: str,
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(content, encoding="utf-8")
    assert command(encoder, "--train", train, "--output", tmp_path / "out", "--config", path) == 2
    expect_one_error(capsys, message)


@pytest.mark.parametrize("option", ["--config", "--tasks"])
def test_a_file_that_is_not_there_is_status_1(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert command(encoder, "--output", tmp_path / "out", option, "none.yaml") == 1
    expect_one_error(capsys, f"{option} none.yaml cannot be read: No such file or directory; give a YAML f")


@pytest.mark.parametrize(
    ("shown", "accepted"),
    [
        (training_module.Schedule, options_module.Schedule),
        (training_module.Positions, Positions),
        (patterns_module.AlphaSchedule, options_module.AlphaSchedule),
        (multitask_module.Sampling, Sampling),
        (multitask_module.Simcse, SimcseForm),
    ],
)
def test_the_command_line_has_the_librarys_choices(shown: Any, accepted: Any) -> None:
    """It names them anew: the library's are behind torch, which no help waits for."""
    assert get_args(shown) == get_args(accepted)


def test_the_command_line_has_the_tasks_that_there_are() -> None:
    options = (kind.option for kind in TASKS.values())
    assert get_args(training_module.TaskName) == (*options, training_module.MLM)


def test_help_puts_options_into_panels(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--help") == 0
    shown = capsys.readouterr().out
    for panel in ("Rows", "Task", "Attention", "Learned attention patterns", "Optimisation", "Evaluation"):
        assert re.search(rf"─ {panel} ─", shown)
    loose = shown.split("─ Options ─")[1].split("╭─")[0]
    assert re.findall(r"--(\w+)", loose)[:3] == ["output", "json", "verbose"]  # and typer's own


def test_from_scratch_arrives(call: dict[str, Any]) -> None:
    command("encoder", "--train", "a.tsv", "--output", "out", "--from-scratch", "--task", "regression")
    assert call["options"] == FinetuneOptions(from_scratch=True, task="regression")


def test_options_are_read_from_the_environment(call: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"TRAIN": "a.tsv", "OUTPUT": "out", "LAMBDA": "-3", "EPOCHS": "2", "EVAL": "b.tsv"}
    for name, value in settings.items():
        monkeypatch.setenv(f"SPARSE_SERVE_{name}", value)
    command("encoder")
    assert call["options"] == FinetuneOptions(attention=AttentionSpec(-3.0), epochs=2)
    assert (call["train"], call["evaluation"]) == (Path("a.tsv"), Path("b.tsv"))


@pytest.mark.parametrize(
    ("args", "train", "evaluation"),
    [
        (("--train", "nyu-mll/glue", "--dataset-config", "sst2"), ("nyu-mll/glue", "sst2", "train"), None),
        (("--train", "imdb", "--eval-split", "test"), ("imdb", None, "train"), ("imdb", None, "test")),
        (("--train", "imdb", "--train-split", "x", "--eval", "b.tsv"), ("imdb", None, "x"), Path("b.tsv")),
        (("--train", "a.jsonl", "--eval", "imdb"), Path("a.jsonl"), ("imdb", None, "validation")),
        (("--train", "data/no/such"), Path("data/no/such"), None),
        (("--train", "./none"), Path("none"), None),
    ],
)
def test_what_is_no_file_is_a_data_set(
    call: dict[str, Any], args: tuple[str, ...], train: object, evaluation: object
) -> None:
    command("encoder", "--output", "out", *args)
    named = [DatasetSplit(*each) if isinstance(each, tuple) else each for each in (train, evaluation)]
    assert [call["train"], call["evaluation"]] == named


def test_an_existing_folder_is_a_data_set(call: dict[str, Any], tmp_path: Path) -> None:
    command("encoder", "--train", tmp_path, "--output", "out")
    assert call["train"] == DatasetSplit(str(tmp_path))


def test_several_lambdas_make_one_checkpoint_each(
    encoder: Path, train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "sweep"
    args = (encoder, "--train", train, "--eval", train, "--output", output, *FAST)
    assert command(*args, "--lambda", "-7,0.5") == 0
    names = ("lambda_-7", "lambda_0.5")
    assert {path.name for path in output.iterdir()} == {*names, "sweep.json", "sweep.png"}
    specs = [ModelSpec.of(load_checkpoint(output / name).config).attention for name in names]
    assert specs == [AttentionSpec(-7.0), AttentionSpec(0.5)]
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert table[0][:5] == ["attention", "accuracy", "f1", "matthews", "loss"]
    assert [row[:2] for row in table[1:3]] == [["lambda", "-7"], ["lambda", "0.5"]]
    assert [row[0] for row in table[-2:]] == ["1", "2"]  # ρ and support of the encoder's two layers
    rho = [float(share) for share in table[-1][1::2]]
    assert 0 <= rho[0] < rho[1] < 1

    # Again, with one more, goes on from there.
    before = (output / "lambda_-7" / "finetune.json").stat().st_mtime_ns
    assert command(*args, "--lambda", "-7,0.5,-1", "--resume", "--json") == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["options"]["attention"]["lambd"] for record in records] == [-7.0, 0.5, -1.0]
    assert (output / "lambda_-7" / "finetune.json").stat().st_mtime_ns == before


def test_a_sweep_is_refused_before_it_trains(
    encoder: Path, train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "sweep"
    (output / "lambda_0").mkdir(parents=True)
    (output / "lambda_0" / "thesis.tex").touch()
    assert command(encoder, "--train", train, "--output", output, *FAST, "--lambda", "-7,0") == 1
    expect_one_error(capsys, "lambda_0 exists and is not empty")
    assert [path.name for path in output.iterdir()] == ["lambda_0"]


def test_softmax_needs_no_lambda(call: dict[str, Any]) -> None:
    command("encoder", "--train", "a.tsv", "--output", "out", "--attention", "softmax")
    assert call["options"].attention == AttentionSpec()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--lambda", "1"), "below 1"),
        (("--lambda", "nan"), "below 1"),
        (("--lambda", "-4,"), "--lambda is '-4,'; it must be a number below 1, or several with commas"),
        (("--lambda", "-4,1"), "below 1"),
        (("--lambda", "-4,-4.0"), "--lambda is -4,-4; give each λ once"),
        (("--attention", "softmax", "--lambda", "-4,0"), "softmax attention takes no lambda"),
        (("--task", "ranking"), "'ranking' is not one of"),
        (("--metric", "pearson"), "--metric is pearson; it must be one of accuracy, f1, matthews, loss"),
        (("--freeze-layers", "9"), "--freeze-layers is 9; the encoder has 2 layers"),
        (("--gradient-accumulation-steps", "3"), "--batch-size is 8; it is the rows of one step"),
        (("--dataset-config", "sst2"), "--dataset-config sst2 is for data sets, and "),
        (("--train-split", "train"), "--train-split train is for data sets, and "),
        (("--attention", "softmax", "--lambda", "-4"), "softmax attention takes no lambda"),
        (("--attention", "sparse"), "attention 'sparse' has no meaning"),
        (("--epochs", "0"), "--epochs is 0; it must be at least 1"),
        (("--epochs", "many"), "valid int"),
        (("--learning-rate", "-1"), "--learning-rate is -1.0; it must be above 0 and finite"),
        (("--max-length", "25"), "--max-length 25 is out of range"),
        (("--max-steps", "0"), "--max-steps is 0; it must be at least 1"),
        (("--eval-steps", "0"), "--eval-steps is 0; it must be at least 1"),
        (("--max-eval-rows", "0"), "--max-eval-rows is 0; it must be at least 1"),
        (("--max-grad-norm", "-1"), "--max-grad-norm is -1.0; it must be at least 0 and finite"),
        (("--dropout", "1"), "--dropout is 1.0; it must be at least 0 and below 1"),
        (("--label-smoothing", "1"), "--label-smoothing is 1.0; it must be at least 0 and below 1"),
        (("--lr-scheduler-type", "steep"), "'steep' is not one of 'linear', 'cosine'"),
        (("--tf32",), "--tf32: the CPU does not compute in TF32, which NVIDIA GPUs since Ampere do; leave"),
        (("--report-to", "nowhere"), "--report-to nowhere is not here; known and installed: "),
        (("--stride", "3"), "--stride 3 is for --task question-answering, and this is --task classification"),
        (("--task", "question-answering", "--stride", "-1"), "--stride is -1; it must be at least 0"),
        (("--task", "question-answering", "--max-answer-tokens", "0"), "--max-answer-tokens is 0; it must"),
        (("--task", "embedding"), "--task embedding is not trained; an encoder is exported for it as it is"),
        (("--add-task",), "--add-task is for several tasks, which --tasks names; leave it out"),
        (("--no-adapters",), "--no-adapters is for several tasks, which --tasks names; leave it out"),
        (("--simcse", "infonce"), "--simcse infonce is for several tasks, which --tasks names; leave it out"),
        (("--tasks", "none.yaml"), "is said in the file of --tasks; leave it out"),
        (("--nsp",), "--nsp is for --task mlm, and this is --task classification; leave it out"),
        (
            ("--task", "mlm", "--label-column", "y"),
            "--label-column y is for labelled rows, and --task mlm",
        ),
        (("--task", "mlm", "--test", "a.txt"), "--test a.txt is for labelled rows, and --task mlm reads"),
        (("--task", "multi-label", "--label-smoothing", ".1"), "--label-smoothing 0.1 is for tasks with one"),
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
    expect_one_error(capsys, "is a gpt2 model; supported families: bert, ")


def test_occupied_output_is_status_1(
    encoder: Path, train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(encoder, "--train", train, "--output", tmp_path, *FAST) == 1
    expect_one_error(capsys, "is not empty; choose another --output or replace it with --force")


def test_missing_options_are_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("encoder", "--output", "out") == 2
    expect_one_error(capsys, "--train is missing: name the training rows, or with --tasks a file of tasks")


def test_only_training_needs_what_only_training_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if its import failed
    load_model_side(verbose=False)
    with pytest.raises(
        SparseServeError, match="needs torch, transformers, accelerate and datasets, which do"
    ):
        load_model_side(verbose=False, training=True)


def test_the_module_loads_without_torch() -> None:
    code = "import sys, sparse_export.cli.finetune; sys.exit(bool({'torch', 'datasets'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def interrupted_in_third_epoch(number: signal.Signals, *args: object) -> tuple[int | None, str]:
    """Send a signal to a run of the command; its exit status, and what it says from there on."""
    with Forked(sparse_serve, "finetune", *map(str, args)) as process:
        for line in process.stderr:
            if line.startswith("epoch 2 "):
                break
        assert process.returncode is None
        os.kill(process.pid, number)
        _, said = process.communicate(timeout=60)
        return process.returncode, said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_an_interrupted_run_ends_cleanly_and_says_how_to_go_on(
    encoder: Path, train: Path, tmp_path: Path, number: signal.Signals
) -> None:
    output = tmp_path / "out"
    args = (encoder, "--train", train, "--output", output, "--epochs", "100000")
    status, said = interrupted_in_third_epoch(number, *args)
    assert status == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
    last = said.splitlines()[-1]
    assert last == f"{output}.partial holds the run so far: the same command with --resume continues it"
    assert {path.name for path in set(tmp_path.iterdir()) - {train}} == {"out.partial"}


def test_a_killed_run_resumes_to_the_same_end(
    encoder: Path, train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = (encoder, "--train", train, "--epochs", "40", "--json")
    killed = ("--output", tmp_path / "killed")
    interrupted_in_third_epoch(signal.SIGKILL, *args, *killed)
    assert {path.name for path in set(tmp_path.iterdir()) - {train}} == {"killed.partial"}
    assert command(*args, *killed) == 1
    expect_one_error(capsys, "holds an interrupted run; continue it with --resume or discard it with --force")
    records = []
    for more in ((*killed, "--resume"), ("--output", tmp_path / "whole")):
        assert command(*args, *more) == 0
        records.append(json.loads(capsys.readouterr().out))
    resumed, whole = records
    assert resumed.pop("seconds") > 0 < whole.pop("seconds")
    assert resumed == whole
    found, expected = weights(tmp_path / "killed"), weights(tmp_path / "whole")
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_several_tasks(
    encoder: Path, train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = tmp_path / "tasks.yaml"
    tasks.write_text(f"tasks:\n  a: {{train: {train}}}\n  b: {{train: {train}}}\n", encoding="utf-8")
    output = tmp_path / "out"
    given = ("--tasks", tasks, "--output", output, "--adapter-size", "6", "--adapter-heads", "3", *FAST)
    assert command(encoder, *given, "--simcse", "infonce", "--simcse-tasks", "a, b", "--json") == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert {"score", "a.accuracy", "b.f1"} <= record["epochs"][0]["metrics"].keys()
    assert record["options"]["simcse_tasks"] == ["a", "b"]
    assert "\na   " in err
    assert dict(ModelSpec.of(load_checkpoint(output).config).extensions) == {
        "projected_attention": {"size": 6, "heads": 3, "share_projections": False}
    }


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "--train is missing: name the training rows, or with --tasks a file of tasks"),
        (("--tasks", "none.yaml", "--eval", "x.tsv"), "--eval x.tsv is said in the file of --tasks"),
        (
            ("--tasks", "none.yaml", "--task", "mlm"),
            "--task mlm is said in the file of --tasks; leave it out",
        ),
        (
            ("--tasks", "none.yaml", "--stride", "0"),
            "--stride 0 is said in the file of --tasks",
        ),
    ],
)
def test_rows_and_tasks_that_do_not_go_together(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], message: str
) -> None:
    assert command(encoder, "--output", tmp_path / "out", *args) == 2
    expect_one_error(capsys, message)
