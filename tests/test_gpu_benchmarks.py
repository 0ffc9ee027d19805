"""What waits for a GPU, as far as it runs without one: no typo waits with it."""

import csv
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
GPU = ROOT / "benchmarks" / "gpu"
# All but model_speed, which tests/export/test_gpu_models.py runs beside the graphs that there are.
STEPS = ("unpack", "build", "correctness", "sanitizer", "op_speed", "profiles")
QUALITY = ("ssaf_bert_base_np", "ssaf_bert_base", "aaa_bert_base", "pal_bert_base")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of the folder."""
    monkeypatch.syspath_prepend(GPU)
    return import_module


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    own = ("DATA", "ENCODER", "ENCODER_CASED", "PARTS", "SETS")
    unset = {name: value for name, value in os.environ.items() if name not in own}
    return subprocess.run(
        [str(GPU / "run.sh"), *arguments],
        env={**unset, "PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def listed() -> list[str]:
    return [line.split()[0] for line in run("--list").stdout.splitlines()]


@pytest.mark.slow
def test_the_dry_run_takes_every_step(tmp_path: Path) -> None:
    done = run("--dry-run", *STEPS, *QUALITY, OUT=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    with (tmp_path / "steps.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["step"] for line in lines] == [each for each in listed() if each != "model_speed"]
    ended = {line["step"]: line["result"] for line in lines}
    tools = {"sanitizer": "compute-sanitizer", "profiles": "ncu"}
    for step in ("unpack", "build", "correctness", "op_speed"):
        assert ended[step] == "ended well"
    for step, tool in tools.items():
        told = "ended well" if shutil.which(tool) else f"waits: {tool} is not on PATH"
        assert ended[step].startswith(told)
    assert ended["ssaf_bert_base_np"] == "waits: DATA is not set: give the folder with sst1/ and sst2/"
    assert ended["aaa_bert_base"] == (
        "waits: ENCODER_CASED is not set: give the folder of bert-base-cased; "
        "DATA is not set: give the folder with sst2/, cola/, mrpc/ and rte/"
    )
    with (tmp_path / "correctness.csv").open() as file:
        judged = list(csv.DictReader(file))
    ops = {"SparsegenLin", "AxisMask"}
    ops |= {f"{name}{kind}Attention" for name in ("Sparsegen", "Softmax", "Axis") for kind in ("", "Cross")}
    assert {(line["op"], line["dtype"]) for line in judged} == {
        (op, dtype) for op in ops for dtype in ("float32", "float16", "bfloat16")
    }
    page = (tmp_path / "RESULTS.md").read_text()
    assert "| AxisCrossAttention | bfloat16 | 2 | 2 | – |" in page
    assert "None yet." not in page
    row = rf"^\| `ssaf_bert_base_np` \| \S+ \| 0 \| {re.escape(ended['ssaf_bert_base_np'])} \|$"
    assert re.search(row, page, re.MULTILINE)


def test_a_step_waits_for_what_is_not_in_its_folders(tmp_path: Path) -> None:
    """And is no longer said to, once it has been run with them."""
    data, encoder, out = (tmp_path / name for name in ("data", "encoder", "out"))
    (data / "sst1").mkdir(parents=True)
    (data / "sst1" / "train.tsv").touch()
    encoder.mkdir()
    given = {"DATA": str(data), "ENCODER": str(encoder), "OUT": str(out)}
    assert run("--dry-run", "ssaf_bert_base", **given).returncode == 0
    lacking = f"waits: ENCODER {encoder} has no config.json; DATA {data} has no sst2/train.tsv"
    assert lacking in (out / "RESULTS.md").read_text()
    assert not (out / "ssaf_bert_base.done").exists()
    (encoder / "config.json").touch()
    assert run("--dry-run", "ssaf_bert_base", SETS="sst1", **given).returncode == 0
    page = (out / "RESULTS.md").read_text()
    assert "has no" not in page
    assert re.search(r"^\| `ssaf_bert_base` \|.*\| ended well \|$", page, re.MULTILINE)


def test_what_waits_is_in_the_ledger_in_order() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\d+) \|", (GPU / "RESULTS.md").read_text(), re.MULTILINE)
    assert [f"{name} {minutes}" for name, minutes in rows] == run("--list").stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--frobnicate"], 2, "--frobnicate is not known"),
        (["no_step"], 2, "there is no step no_step"),
        (["correctness"], 1, "no NVIDIA GPU on this machine"),
    ],
)
def test_it_is_refused_in_one_line(tmp_path: Path, arguments: list[str], status: int, message: str) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    done = run(*arguments, OUT=str(tmp_path), PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (done.returncode, done.stderr.count("\n")) == (status, 1)
    assert message in done.stderr


def test_the_wheels_bring_the_compiler_that_is_pinned() -> None:
    """A newer part of it writes what the others do not read."""
    pinned = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["cuda"]
    packed = (GPU / "requirements.txt").read_text().splitlines()
    exact = [each for each in pinned if "==" in each]
    assert len(exact) >= 5
    assert [each for each in exact if each not in packed] == []
    names = {re.split("[<>=]", each)[0] for each in pinned}
    assert names <= {re.split("[<>=]", each)[0] for each in packed}


def test_parts_are_held_against_their_sums(tmp_path: Path, module: Any) -> None:
    wheels = module("wheels")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a-1-py3-none-any.whl").write_bytes(bytes(range(256)) * 9)
    wheels.pack(tmp_path / "parts", tmp_path / "own", 1000)
    wheels.unpack(tmp_path / "parts", tmp_path / "joined")
    joined = tmp_path / "joined" / "a-1-py3-none-any.whl"
    assert joined.read_bytes() == bytes(range(256)) * 9
    part = tmp_path / "parts" / "a-1-py3-none-any.whl.part001"
    part.write_bytes(b"other")
    with pytest.raises(SystemExit, match="part001 is another file: send it again"):
        wheels.unpack(tmp_path / "parts", tmp_path / "again")
    part.unlink()
    with pytest.raises(SystemExit, match="part001 is missing: send it again"):
        wheels.unpack(tmp_path / "parts", tmp_path / "again")
    with pytest.raises(SystemExit, match=r"sha256sums.* cannot be read"):
        wheels.unpack(tmp_path, tmp_path / "again")


def test_the_pages_roofline_is_what_the_script_computes(module: Any) -> None:
    """If not: benchmarks/gpu/roofline.py --write."""
    roofline = module("roofline")
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    for name, text in roofline.tables({}).items():
        assert roofline.replaced(page, name, text) == page


def test_the_ledger_tells_goals_that_are_met_from_others(tmp_path: Path, module: Any) -> None:
    ledger, speeds = module("ledger"), {"SparsegenAttention": 1.0, "sdpa_flash": 1.4, "adasplash_alpha2": 9.0}
    columns = "variant,length,dtype,best_ms,extra_bytes,eager_score_bytes,gpu,cpu,driver,cuda"
    lines = [
        f"{name},1024,bfloat16,{speed},{int(speed * 100)},10000,NVIDIA H200,,580,13.0"
        for name, speed in speeds.items()
    ]
    (tmp_path / "op_speed.csv").write_text("\n".join([columns, *lines]) + "\n")
    told = ledger.results(tmp_path)
    assert "On NVIDIA H200 580 13.0." in told
    assert "| SparsegenAttention | adasplash_alpha2 | 1,024 | 10x | 9.00x | no |" in told
    assert "| 1,024 | 1.3x | 1.40x | yes |" in told
    assert "| SparsegenAttention | bfloat16 | 1,024 | 100 | 1.00% | yes |" in told
