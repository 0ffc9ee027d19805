"""What becomes of a process that answers requests when the wall clock is set."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys, time
from sparse_serve.text_backend.clock import no_stale_answer
real, ahead = time.time, 0.0
time.time = lambda: real() + ahead
with no_stale_answer():
    ahead = float(sys.argv[1])
    if sys.argv[2:]:
        raise ValueError(sys.argv[2])
print("answered")
"""


@pytest.mark.parametrize(
    ("ahead", "is_answered"), [(0.0, True), (-3600.0, True), (0.2, True), (0.3, False), (3600.0, False)]
)
def test_nothing_is_answered_once_the_clock_was_set_forward(ahead: float, is_answered: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(ahead)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == ((0, "answered\n") if is_answered else (1, ""))


def test_nor_is_an_error_told() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "1", "malformed"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
