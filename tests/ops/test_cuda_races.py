"""No warp of an attention kernel reads what another still writes: ThreadSanitizer, a thread a warp."""

import subprocess
from pathlib import Path

import pytest
from builds import compiled, cxx

FLAGS = ("-O1", "-g1", "-DSPARSE_OPS_WARP_THREADS", "-pthread", "-fsanitize=thread")


def test_warps_wait_for_each_other() -> None:
    asked = [cxx(), "-print-file-name=libtsan.so"]
    runtime = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    if not Path(runtime).is_absolute():
        pytest.skip(f"{cxx()} has no libtsan.so")
    answer = subprocess.run([compiled("cuda_races.cc", *FLAGS)], check=False, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr[-10_000:]
