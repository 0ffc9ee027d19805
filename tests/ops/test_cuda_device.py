"""What a call asks of CUDA on the host, without CUDA: `cuda_device.cc`, compiled and run."""

import subprocess

from builds import TESTS, compiled


def test_shared_memory_and_scratch_are_asked_for_once() -> None:
    program = compiled("cuda_device.cc", f"-I{TESTS / 'no_cuda'}", "-pthread")
    answer = subprocess.run([program], check=False, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
