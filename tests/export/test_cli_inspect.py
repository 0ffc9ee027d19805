"""The command `inspect`: what it prints and writes, and its exit statuses."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from inspecting import make_checkpoint
from PIL import Image
from safetensors.torch import load_file, save_file

from command_line import exit_status
from sparse_export.attention.spec import AttentionSpec
from sparse_export.cli import app
from sparse_export.inspection.inspecting import InspectOptions, Inspector
from tiny_models import LABELS, LAYERS


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def command(*args: object) -> int:
    """Run the command in this process; the exit status."""
    return exit_status(app, "inspect", *args)


def pipe(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_one_text(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(checkpoint, "a warm film") == 0
    out, err = capsys.readouterr()
    assert sorted(path.name for path in Path("inspection").iterdir()) == ["inspection.html", "inspection.png"]
    assert err.splitlines()[-2:] == ["wrote inspection/inspection.png", "wrote inspection/inspection.html"]
    lines = out.splitlines()
    assert lines[0] == "a warm film (11 tokens)"
    names = ["softmax", "SSAF, λ = −7", "SSAF, λ = −4", "SSAF, λ = −1", "SSAF, λ = 0"]
    assert all(name in f"{lines[1]}{lines[2]}" for name in names)
    assert [line.split()[0] for line in lines[-LAYERS:]] == ["1", "2"]
    own = Inspector(InspectOptions(str(checkpoint))).inspect("a warm film").maps[0]
    assert f"{own.rho[1]:.1%} {own.support[1].mean():6.1f}" in lines[-1]
    assert f"{own.prediction.label} {own.prediction.scores[own.prediction.label]:.4f}" in out


def test_json(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--lambda", "0", "--text-pair", "not at all", "--output-dir", "deep/down", "--json")
    assert command(checkpoint, "a warm film", *options) == 0
    (text,) = json.loads(capsys.readouterr().out)
    assert (text["text"], text["text_pair"], text["truncated"]) == ("a warm film", "not at all", False)
    assert text["tokens"][0] == "[CLS]"
    assert [variant["attention"] for variant in text["variants"]] == [
        {"normalizer": "softmax", "lambd": None, "pattern": None},
        {"normalizer": "sparsegen", "lambd": -1.0, "pattern": None},
        {"normalizer": "sparsegen", "lambd": 0.0, "pattern": None},
    ]
    assert [variant["pattern"] for variant in text["variants"]] == [None] * 3
    assert [variant["as_trained"] for variant in text["variants"]] == [False, True, False]
    for variant in text["variants"]:
        assert variant["label"] in LABELS
        assert sum(variant["scores"].values()) == pytest.approx(1, abs=1e-5)
        for name in ("read_by_head", "received"):
            assert len(variant[name]) == len(text["tokens"])
            assert sum(variant[name]) == pytest.approx(1, abs=1e-5)
        for rho, support in zip(variant["rho"], variant["support"], strict=True):
            assert (1 - rho) * len(text["tokens"]) == pytest.approx(support, abs=1e-4)
    assert Path("deep/down/inspection.html").is_file()


def test_several_texts_from_stdin_and_a_file(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, b"one\n\nthree\n")
    assert command(checkpoint, "--lambda", "0", "--json") == 0
    assert [text["text"] for text in json.loads(capsys.readouterr().out)] == ["one", "", "three"]
    assert {path.name for path in Path("inspection").glob("*.png")} == {
        f"inspection-{number}.png" for number in (1, 2, 3)
    }
    Path("inspection/inspection-1-annotated.png").touch()
    rows = ({"said": "one", "text_b": "two"}, {"said": "three"})
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    columns = ("--file", "rows.jsonl", "--text-column", "said")
    assert command(checkpoint, *columns, "--lambda", "0", "--json") == 0
    texts = json.loads(capsys.readouterr().out)
    assert [(text["text"], text["text_pair"]) for text in texts] == [("one", "two"), ("three", "")]
    left = {path.name for path in Path("inspection").glob("*.png")}
    assert left == {"inspection-1.png", "inspection-2.png", "inspection-1-annotated.png"}


def test_beside_shows_checkpoints_as_they_were_trained(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dense = make_checkpoint(tmp_path / "dense", AttentionSpec())
    assert command(checkpoint, "a", "--beside", dense, "--json") == 0
    (text,) = json.loads(capsys.readouterr().out)
    assert [variant["name"] for variant in text["variants"]] == ["checkpoint: SSAF, λ = −1", "dense: softmax"]


def test_a_learned_pattern_is_told_layer_by_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_checkpoint(tmp_path / "aaa", AttentionSpec.parse("axis+diagonal", None))
    assert command(folder, "a warm film", "--json") == 0
    ((full, own),) = (text["variants"] for text in json.loads(capsys.readouterr().out))
    assert (full["name"], full["pattern"]) == ("softmax", None)
    assert own["attention"]["pattern"]["axis"] is True
    assert own["rho"] == pytest.approx(own["pattern"]["rho"], abs=1e-6)
    assert command(folder, "a warm film") == 0
    out = capsys.readouterr().out
    lines = out[out.index("Learned by AAA (axis+diagonal)") :].splitlines()
    heads = ("layer", "not allowed", "without the band", "rows on", "columns on", "diagonals")
    assert all(head in lines[1] for head in heads)
    pattern = own["pattern"]
    for layer, line in enumerate(lines[2:]):
        words = line.split()
        assert words[:3] == [
            f"{layer + 1}",
            f"{pattern['rho'][layer]:.1%}",
            f"{pattern['rho_without_band'][layer]:.1%}",
        ]
        for name in ("rows", "columns"):
            on = pattern[name][layer]
            shown = f"{len(on)}: {' '.join(each['token'] for each in on)}" if on else " 0 "
            assert shown in line
    assert len(lines) == 2 + LAYERS


def test_a_fixed_pattern_needs_no_telling(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_checkpoint(tmp_path / "fixed", AttentionSpec.parse("local2+global2", None))
    assert command(folder, "a warm film", "--lambda", "-4") == 0
    out = capsys.readouterr().out
    assert "local2+global2, λ = −4" in out
    assert "softmax" not in out
    assert "Learned" not in out


@pytest.mark.parametrize(
    ("weight", "part"),
    [(None, "lacks 1 of the weights"), (torch.zeros(2, 32), "has shape (2, 32), the encoder needs (2, 64)")],
    ids=["missing", "another width"],
)
def test_axis_layers_that_cannot_be_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], weight: torch.Tensor | None, part: str
) -> None:
    folder = make_checkpoint(tmp_path / "aaa", AttentionSpec.parse("axis", None))
    path = Path(folder) / "model.safetensors"
    weights = load_file(path)
    name = "bert.encoder.layer.1.axis.weight"
    del weights[name]
    save_file(weights if weight is None else {**weights, name: weight}, path, {"format": "pt"})
    assert command(folder, "a") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {folder}")
    assert err.count("\n") == 1
    assert name in err
    assert part in err


def test_layer_and_head_choose_the_picture(checkpoint: Path) -> None:
    sizes = set()
    for options in ((), ("--layer", "1", "--head", "3")):
        assert command(checkpoint, "a warm film", *options) == 0
        with Image.open("inspection/inspection.png") as picture:
            sizes.add(picture.tobytes())
    assert len(sizes) == 2


def test_labels_and_texts_cannot_write_on_the_terminal(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(checkpoint, "[red]a\x1b[2Jb", "--lambda", "0") == 0
    assert capsys.readouterr().out.startswith("[red]a [2Jb (")


@pytest.mark.parametrize(
    ("args", "status", "parts"),
    [
        (["--lambda", "-4,x"], 2, ["--lambda '-4,x'", "-7,-4,0"]),
        (["--lambda", "1"], 2, ["below 1"]),
        (["--layer", "3"], 2, ["--layer 3", "1 to 2"]),
        (["--head", "0"], 2, ["--head"]),
        (["--max-length", "9999"], 2, ["--max-length 9999", "4 to 160"]),
        (["--text-pair", "b", "--text-pair", "c"], 2, ["2 --text-pair for 1 texts"]),
        (["--file", "absent.tsv"], 2, ["not both"]),
        (["--beside", "absent/"], 1, ["absent/"]),
        (["--output-dir", "file/below"], 1, ["--output-dir file/below cannot be written"]),
        (["b"] * 16, 1, ["more than 16 texts"]),
    ],
)
def test_errors_are_one_line(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], args: list[str], status: int, parts: list[str]
) -> None:
    Path("file").touch()
    assert command(checkpoint, "a", *args) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err


@pytest.mark.parametrize(
    ("content", "part"), [(b"", "no text to inspect"), (b"caf\xe9\n", "line 1 of stdin is not UTF-8")]
)
def test_stdin_that_holds_no_text(
    checkpoint: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    part: str,
) -> None:
    pipe(monkeypatch, content)
    assert command(checkpoint) == 1
    assert part in capsys.readouterr().err


def test_a_picture_that_cannot_be_replaced(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("inspection/inspection.png").mkdir(parents=True)
    assert command(checkpoint, "a", "--lambda", "0") == 1
    assert "inspection.png cannot be written: Is a directory" in capsys.readouterr().err


def test_the_command_loads_nothing_heavy() -> None:
    """Nothing that the commands of the serving side have not loaded beside it."""
    heavy = ("torch", "transformers", "matplotlib", "plotly")
    code = (
        "import sys, sparse_serve.cli; loaded = set(sys.modules); import sparse_export.cli.inspect; "
        f"print(sorted(set({heavy}) & (set(sys.modules) - loaded)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
