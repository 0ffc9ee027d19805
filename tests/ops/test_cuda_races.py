"""No warp of an attention kernel reads what another still writes: ThreadSanitizer, a thread a warp."""

import os
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FLAGS = ("-std=gnu++17", "-O1", "-g1", "-DSPARSE_OPS_WARP_THREADS", "-pthread", "-fsanitize=thread")


def test_warps_wait_for_each_other(tmp_path: Path) -> None:
    compiler = os.environ.get("CXX") or "g++"
    asked = [compiler, "-print-file-name=libtsan.so"]
    runtime = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    if not Path(runtime).is_absolute():
        pytest.skip(f"{compiler} has no libtsan.so")
    program = tmp_path / "cuda_races"
    source = TESTS / "cuda_races.cc"
    command = [compiler, *FLAGS, f"-I{TESTS.parents[1] / 'ops'}", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    answer = subprocess.run([program], check=False, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr[-10_000:]
