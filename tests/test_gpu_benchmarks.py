"""What waits for a GPU, as far as it runs without one: no typo waits with it."""

import csv
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from sparse_serve.errors import DeviceError

ROOT = Path(__file__).parents[1]
GPU = ROOT / "benchmarks" / "gpu"
# All but model_speed, which tests/export/test_gpu_models.py runs beside the graphs that there are.
STEPS = ("unpack", "build", "correctness", "entries", "sanitizer", "op_speed", "profiles")
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
    for step in ("unpack", "build", "correctness", "entries", "op_speed"):
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
    assert "| AxisCrossAttention | bfloat16 | 4 | 4 | – |" in page
    assert re.search(r"^\| cpu \| fp32 \| \S+ \| 0.0e\+00 \| 0 of 3 \|$", page, re.MULTILINE)
    assert "None yet." not in page
    row = rf"^\| `ssaf_bert_base_np` \| \S+ \| 0 \| {re.escape(ended['ssaf_bert_base_np'])} \|$"
    assert re.search(row, page, re.MULTILINE)


@pytest.mark.slow
def test_every_problem_has_an_answer_within_its_budget(tmp_path: Path) -> None:
    """That of a processor, nearer to float64 than a GPU's; the longest problems would take long."""
    output = tmp_path / "correctness.csv"
    asked = [str(GPU / "correctness.py"), "--device", "cpu", "--max-tokens", "900", "--output", str(output)]
    done = subprocess.run([sys.executable, *asked], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
    with output.open() as file:
        cases = {(line["op"], line["dtype"], line["case"]) for line in csv.DictReader(file)}
    assert len(cases) > 1000
    for case in ("listed_600_128_equal", "hostile_550", "no_tokens", "borders_0_50_40_70"):
        for dtype in ("float32", "float16", "bfloat16"):
            assert ("SparsegenAttention", dtype, case) in cases
    assert ("AxisCrossAttention", "float16", "aaa_512_sparsegen") in cases
    large = {(op, dtype) for op, dtype, case in cases if case.startswith("query_times_scale")}
    assert {dtype for _, dtype in large} == {"float32"}


def test_each_kernel_is_profiled_at_each_length(tmp_path: Path) -> None:
    """Whole calls of it, by a profiler that writes down what it is asked for."""
    ncu = tmp_path / "ncu"
    ncu.write_text(f'#!/bin/sh\necho "$*" >>"{tmp_path}/asked"\n')
    ncu.chmod(0o755)
    done = run("--dry-run", "profiles", OUT=str(tmp_path / "out"), PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stdout + done.stderr
    wanted = r"regex:\^\((\w+)\|PlanBorders\|PlanSequences\)Kernel\$ "
    wanted += r"--launch-skip (\d+) --launch-count (\d+) "
    found = [
        re.search(wanted + r".*--only (\w+) --length (\d+) ", line)
        for line in (tmp_path / "asked").read_text().splitlines()
    ]
    assert [each and each.groups() for each in found] == [
        (op, str(3 * launches), str(launches), op, length)
        for op, launches in (("SparsegenAttention", 3), ("AxisAttention", 3), ("SoftmaxAttention", 1))
        for length in ("16", "32")
    ]


def test_what_a_function_computes_is_not_taken_for_our_kernel(module: Any) -> None:
    sessions = module("sessions")
    feeds = {"scores": sessions.torch.zeros(2, 3)}
    graph = sessions.op_model("SparsegenLin", feeds, has_function=True, lambd=-4.0)
    sessions.Session(graph, "cpu", ours=["SparsegenLin"])
    message = "SparsegenLin is computed by its function where CPUExecutionProvider was asked for"
    with pytest.raises(DeviceError, match=message):
        sessions.Session(graph, "cpu", has_library=False, ours=["SparsegenLin"])


def test_runs_are_timed_behind_a_queue_that_is_full(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what the host takes for a launch is no part of it."""
    sessions = module("sessions")
    told: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            told.append("event")

        def synchronize(self) -> None:
            told.append("wait")

        def elapsed_time(self, _end: "Event") -> float:
            return 30.0

    monkeypatch.setattr(sessions.torch.cuda, "Event", Event)
    monkeypatch.setattr(sessions.torch.cuda, "_sleep", lambda _cycles: told.append("sleep"))
    assert sessions._event_seconds(lambda: told.append("run"), 3, 1e-5) == pytest.approx(0.01)
    assert told == ["sleep", "event", "run", "run", "run", "event", "wait"]


def test_lines_are_written_as_they_come(tmp_path: Path, module: Any) -> None:
    path = tmp_path / "out" / "lines.csv"

    def lines() -> Iterator[dict[str, int]]:
        yield {"a": 1}
        assert path.read_text() == "a\n1\n"
        yield {"a": 2}

    assert module("sessions").write_csv(path, lines()) == [{"a": 1}, {"a": 2}]


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
    waiting, _ = (GPU / "RESULTS.md").read_text().split("## Results")
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\d+) \|", waiting, re.MULTILINE)
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


def test_two_runs_do_not_time_each_other(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock"):
        done = run("--dry-run", "unpack", OUT=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: another run.sh is at work in {tmp_path}")
    assert run("--dry-run", "unpack", OUT=str(tmp_path)).returncode == 0


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
    """If not: benchmarks/gpu/roofline.py --measured benchmarks/gpu/results/op_speed.csv --write."""
    roofline = module("roofline")
    page = roofline.PAGE.read_text(encoding="utf-8")
    measured = roofline.read_measured(GPU / "results" / "op_speed.csv")
    for name, text in roofline.tables(measured).items():
        assert roofline.replaced(page, name, text) == page


def test_the_roofline_counts_full_rows_and_chunks_as_the_kernels_do(module: Any) -> None:
    roofline = module("roofline")
    headers = "".join(path.read_text() for path in (ROOT / "ops").rglob("*_cuda.h"))
    headers += (ROOT / "ops" / "cuda" / "execution.h").read_text()
    chunk, shared = roofline.CHUNK, roofline.SHARED_ROWS
    named = {"kChunkKeys": chunk, "kWarpQueries": chunk, "kSharedRows": shared}
    for name, counted in named.items():
        assert re.findall(rf"constexpr \w+ {name} = (\d+);", headers) == [str(counted)]
    few, many = (roofline.axis(1000, rows=rows, columns=0) for rows in (0.064, 0.065))
    read = roofline.BATCH * roofline.HEADS * 2 * roofline.HEAD_SIZE * roofline.ELEMENT_BYTES
    assert (few.l2 - many.l2) / read == 4 * 1000 - 2 * 1000  # blocks of 16 rows, of 64


def test_the_page_has_what_was_measured(tmp_path: Path, module: Any) -> None:
    """If not: benchmarks/gpu/ledger.py benchmarks/gpu/results."""
    shutil.copy(GPU / "RESULTS.md", tmp_path)
    module("ledger").main(GPU / "results", tmp_path / "RESULTS.md")
    assert (tmp_path / "RESULTS.md").read_text() == (GPU / "RESULTS.md").read_text()


def test_the_ledger_tells_goals_that_are_met_from_others(tmp_path: Path, module: Any) -> None:
    ledger, speeds = module("ledger"), {"SparsegenAttention": 1.0, "sdpa_flash": 1.4, "adasplash_alpha2": 9.0}
    columns = "variant,length,dtype,best_ms,extra_bytes,eager_score_bytes,gpu,cpu,driver,cuda"
    lines = [
        f"{name},1024,bfloat16,{speed},{int(speed * 100)},10000,NVIDIA H200,,580,13.0"
        for name, speed in speeds.items()
    ]
    lines.append("SparsegenAttention,128,bfloat16,1.0,9000,10000,NVIDIA H200,,580,13.0")
    (tmp_path / "op_speed.csv").write_text("\n".join([columns, *lines]) + "\n")
    told = ledger.results(tmp_path)
    assert "On NVIDIA H200 580 13.0." in told
    assert "| SparsegenAttention | adasplash_alpha2 | 1,024 | 10x | 9.00x | no |" in told
    assert "| 1,024 | 1.3x | 1.40x | yes |" in told
    assert "| SparsegenAttention | bfloat16 | 1,024 | 100 | 1.00% | yes |" in told
    assert "| SparsegenAttention | bfloat16 | 128 | 9000 | 90.00% | – |" in told
