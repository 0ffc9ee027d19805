"""`sparse-serve export` and the root command, as a user meets them."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from command_line import outcome
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint, save_checkpoint
from sparse_export.cli import app
from sparse_export.cli.export import _summary
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.entry import ASKED_FOR, Exported
from sparse_export.parity.gate import Agreement, MaskFlips, ParityReport
from sparse_export.parity.quality import Fidelity, QualityReport
from sparse_serve.repository.entries import read_entry
from tiny_models import CLASSES, LABELS, POSITIONS, make_model, make_tokenizer


def assert_one_line_error(stderr: str, *parts: str) -> None:
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
    for part in parts:
        assert part in stderr


def test_json_figures_and_manifest(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = [
        "export",
        str(checkpoint),
        "--model-repository",
        str(tmp_path),
        "--name=x",
        "--triton=25.02",
        "--json",
    ]
    monkeypatch.setattr(sys, "argv", ["/somewhere/sparse-serve", *args])
    status, out, _ = outcome(capsys, app, *args)
    assert status == 0
    figures = json.loads(out)
    assert figures["attention"] == {"normalizer": "sparsegen", "lambd": -1.0, "pattern": None}
    assert figures["tasks"] == {
        "default": {"type": "single_label_classification", "labels": list(LABELS)},
    }
    assert figures["parity"]["library"]["max_abs_diff"] <= 1e-4
    manifest = read_entry(tmp_path / "x").manifest
    assert manifest.triton_release == "25.02"
    assert manifest.command == shlex.join(["sparse-serve", *args])


def test_gate_not_met_is_status_3(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("--model-repository", tmp_path / "r", "--name", "x", "--atol", "1e-15")
    status, out, err = outcome(capsys, app, "export", checkpoint, *args)
    assert (status, out) == (3, "")
    assert_one_line_error(err, "parity not met", "nothing was written")
    assert not (tmp_path / "r").exists()


def test_quality_not_met_is_status_3(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of next to no bits: most answers are others."""
    monkeypatch.setattr("sparse_export.graph.int8._LARGEST", {"vnni": 1, "any": 1})
    args = ("--model-repository", tmp_path / "r", "--name", "x", "--dtype", "int8", "--max-loss", "0")
    status, out, err = outcome(capsys, app, "export", checkpoint, *args)
    assert (status, out) == (3, "")
    assert_one_line_error(err, "quality not met: in int8 ONNX Runtime with the op library has agreement")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("args", "status", "parts"),
    [
        (["--attention", "sparsegen", "--lambda", "1"], 2, ["below 1", "1.0"]),
        (["--attention", "entmax"], 2, ["entmax", "softmax", "sparsegen", "localN"]),
        (["--attention", "local2+local3"], 2, ["local2+local3", "contradicts itself"]),
        (["--attention", "local2+random0"], 2, ["random0 allows nothing"]),
        (["--attention", "local-1"], 2, ["local-1", "localN"]),
        (["--attention", ""], 2, ["''", "localN"]),
        (["--attention", f"global1+local{POSITIONS}"], 2, ["local size 160", f"at most {POSITIONS - 1}"]),
        (["--attention", "local40", "--max-length", "40"], 2, ["local size 40", "at most 39"]),
        (["--attention", "local2", "--lambda", "nan"], 2, ["below 1", "nan"]),
        (["--attention", "axis"], 1, ["lacks 4 of the weights of the learned pattern", "finetune"]),
        (["--attention", "diagonal+global1"], 1, ["lacks 1 of the weights", "bert.diagonals"]),
        (["--triton", "1.0"], 2, ["1.0", "26.07"]),
        (["--max-batch-size", "0"], 2, ["--max-batch-size"]),
        (["--cores", "0"], 2, ["--cores"]),
        (["--cores", "2", "--instances", "3"], 2, ["3 instances on 2 cores", "a core for each"]),
        (["--instances", "2"], 2, ["2 instances share the cores", "--cores"]),
        (["--name", "../up"], 2, ["../up"]),
        (["--atol", "nan"], 2, ["--atol nan"]),
        (["--atol=-1"], 2, ["--atol -1"]),
        (["--dtype", "bf16"], 2, ["--dtype bf16", "GPU", "fp32, fp16, int8"]),
        (["--dtype", "int8", "--target-cpu", "pentium"], 2, ["--target-cpu", "pentium", "vnni", "any"]),
        (["--target-cpu", "any"], 2, ["--target-cpu is for --dtype int8"]),
        (["--eval", "absent.tsv"], 1, ["absent.tsv"]),
        (["--dtype", "int8", "--calibration", "absent.tsv"], 1, ["absent.tsv"]),
        (["--calibration", "absent.tsv"], 2, ["--calibration is for --dtype int8"]),
        (
            ["--dtype", "int8", "--calibration", "x.tsv", "--label-column", "y"],
            2,
            ["--label-column names a column of --eval, which was not given"],
        ),
        (["--model-version", "9223372036854775808"], 2, ["--model-version"]),
        (["--no-such-option"], 2, ["--no-such-option"]),
        (["--task", "mlm"], 2, ["--task mlm", "classification, multi-label, regression"]),
        (["--task", "question-answering"], 1, ["answers classification, not question-answering"]),
        (["--task", "embedding", "--layers", "top"], 2, ["layers is 'top'", "weighted-all"]),
        (["--task", "embedding", "--layers", "sum-last-four"], 2, ["reads 4 layers", "has 2"]),
        (["--task", "embedding", "--pooling", "max"], 2, ["pooling is 'max'", "first, mean"]),
        (["--pooling", "mean"], 2, ["--pooling is not for classification"]),
        (["--normalize"], 2, ["--normalize is not for classification"]),
        (["--stride", "8"], 2, ["--stride is not for classification"]),
        (["--stride=-1"], 2, ["--stride"]),
        (["--max-answer-tokens", "0"], 2, ["--max-answer-tokens"]),
        (["--target-cpu", "m1"], 2, ["'--target-cpu': 'm1' is not one of 'vnni', 'any'"]),
        (["--answers-only"], 2, ["--answers-only is not for classification"]),
    ],
)
def test_errors_are_one_line(
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    status: int,
    parts: list[str],
) -> None:
    code, out, err = outcome(capsys, app, "export", checkpoint, "--model-repository", tmp_path / "r", *args)
    assert (code, out) == (status, "")
    assert_one_line_error(err, *parts)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weight: None, "lacks 1 of the weights of the learned pattern"),
        (lambda weight: weight[:, :-1].clone(), "has shape (2, 63), the encoder needs (2, 64)"),
        (lambda weight: weight * torch.inf, "holds NaN or infinite values"),
    ],
    ids=["missing", "of another width", "infinite"],
)
def test_axis_layer_that_cannot_be_served(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[torch.Tensor], torch.Tensor | None],
    message: str,
) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    save_checkpoint(make_model(AttentionSpec.parse("axis", None)), make_tokenizer(folder), folder)
    weights = load_file(folder / "model.safetensors")
    name = "bert.encoder.layer.1.axis.weight"
    changed = change(weights.pop(name))
    save_file(
        weights | ({} if changed is None else {name: changed}), folder / "model.safetensors", {"format": "pt"}
    )
    args = ("--model-repository", tmp_path / "r", "--name", "x")
    status, out, err = outcome(capsys, app, "export", folder, *args)
    assert (status, out) == (1, "")
    assert_one_line_error(err, name, message)
    assert not (tmp_path / "r").exists()


def test_pattern_and_metrics_from_the_environment(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is fixed cannot flip, so nothing is said of it."""
    repository = tmp_path / "r"
    monkeypatch.setenv("SPARSE_SERVE_EXPORT_ATTENTION", "local2+global1")
    monkeypatch.setenv("SPARSE_SERVE_EXPORT_LAMBDA", "-4")
    monkeypatch.setenv("SPARSE_SERVE_METRICS", "1")
    args = ("--model-repository", repository, "--name", "x")
    status, out, _ = outcome(capsys, app, "export", checkpoint, *args)
    assert status == 0
    assert "mask flips" not in out
    attention = read_entry(repository / "x").manifest.attention
    assert (attention.pattern, attention.lambd) == ("local2+global1", -4)
    assert 'key: "metrics"' in (repository / "x" / "config.pbtxt").read_text()


def test_embedding_of_a_classifiers_encoder(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a folder that sentence-transformers cuts texts of elsewhere, which is told."""
    repository = tmp_path / "r"
    folder = shutil.copytree(checkpoint, tmp_path / "sentences")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 40}', encoding="utf-8")
    args = ("--model-repository", repository, "--name", "x", "--task", "embedding", "--normalize", "--json")
    status, out, err = outcome(capsys, app, "export", folder, *args)
    assert status == 0
    assert err.count("\n") == 1
    assert err.startswith("warning: sentence-transformers embeds the first 40 tokens of a text with ")
    figures = json.loads(out)
    task = {"type": "embedding", "size": 64, "layers": "last", "pooling": "mean", "normalize": True}
    assert figures["tasks"] == {"default": task}
    assert (figures["parity"]["output"], figures["parity"]["library"]["label_agreement"]) == (
        "embedding",
        None,
    )
    assert read_entry(repository / "x").manifest.task.to_json() == task


@pytest.mark.slow
def test_a_longer_cut_than_the_trained_one_warns(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "checkpoint"
    model = load_checkpoint(checkpoint, AttentionSpec.parse("local1+global1", None))
    save_checkpoint(model, load_tokenizer(checkpoint), folder)
    (folder / "finetune.json").write_text('{"max_length": 40}')
    args = ("--model-repository", tmp_path / "r", "--name=x", "--max-length=50", "--tokenizer=server")
    status, _, err = outcome(capsys, app, "export", folder, *args)
    assert status == 0
    assert err.count("\n") == 1
    assert err.startswith("warning: --max-length 50 is more than the 40 tokens")


def test_summary_tells_of_mask_flips(tmp_path: Path) -> None:
    agreement = Agreement(1e-6, 1.0, None, MaskFlips(3, 500, 2e-5, 0.25))
    sides = {"library": agreement, "portable": agreement}
    parity = ParityReport(9, 30, 1e-4, "logits", "accuracy", None, sides, [], [], {}, {})
    exported = Exported(
        tmp_path, AttentionSpec(), {"default": CLASSES}, parity, None, ASKED_FOR, None, None, {}
    )
    _, line = _summary(exported).splitlines()
    for part in ("mask flips", "3 of 500", "2.0e-05", "2.5e-01"):
        assert part in line


def test_summary_tells_what_int8_keeps(tmp_path: Path) -> None:
    sides = {name: Agreement(1e-6, 1.0, None) for name in ("library", "portable")}
    parity = ParityReport(9, 30, 1e-4, "logits", "accuracy", None, sides, [], [], {}, {})
    kept = {name: Fidelity(0.3, 0.95, 0.99, {"accuracy": 0.81}) for name in sides}
    quantized = QualityReport(200, "logits", "accuracy", 0.005, {"accuracy": 0.8125}, kept)
    exported = Exported(
        tmp_path, AttentionSpec(), {"default": CLASSES}, parity, None, ASKED_FOR, None, quantized, {}
    )
    assert _summary(exported).splitlines()[1:] == [
        "in int8, all of the above was before it:",
        "accuracy on 200 rows: torch 0.8125, library 0.8100, portable 0.8100",
        "judged by accuracy on 200 texts: torch 0.8125, library 0.8100, portable 0.8100; accepted is a loss "
        "of 0.005",
    ]


def test_second_texts_are_read_from_the_column_that_is_named(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "eval.tsv"
    file.write_text("text_a\tother\tlabel\na\tb\tneutral\nc\t\tneutral\n")
    for column, reason in (("other", "line 3: the second text ('other') is missing"), ("x", "column 'x'")):
        status, _, err = outcome(
            capsys, app, "export", checkpoint, "--eval", file, "--text-pair-column", column, "--name", "x"
        )
        assert status == 1
        assert_one_line_error(err, reason)


def test_lambda_from_the_environment(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSE_SERVE_EXPORT_LAMBDA", "1.5")
    monkeypatch.setenv("SPARSE_SERVE_EXPORT_ATTENTION", "sparsegen")
    monkeypatch.setenv("SPARSE_SERVE_MODEL_REPOSITORY", str(tmp_path / "r"))
    status, _, err = outcome(capsys, app, "export", checkpoint)
    assert status == 2
    assert_one_line_error(err, "1.5")


def test_repository_that_cannot_be_written(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    status, _, err = outcome(capsys, app, "export", checkpoint, "--model-repository", tmp_path / "file" / "r")
    assert status == 1
    assert_one_line_error(err, "cannot be written")


def test_root_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = outcome(capsys, app, "--help")
    assert status == 0
    for command in ("finetune", "export", "inspect", "serve", "classify", "profile", "check", "info"):
        assert command in out


@pytest.mark.parametrize("module", ["sparse_serve.cli", "sparse_export.cli"])
def test_command_line_loads_nothing_heavy(module: str) -> None:
    heavy = {"torch", "transformers", "sklearn", "scipy", "datasets", "matplotlib"}
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
