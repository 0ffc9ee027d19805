"""The NEON kernels answer as the generic ones do: both compiled for aarch64, elsewhere run by an emulator."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
OPS = TESTS.parents[1] / "ops"
CROSS_COMPILER = "aarch64-linux-gnu-g++"
EMULATORS = ("qemu-aarch64", "qemu-aarch64-static")
TABLES = {
    "generic": ["-DSPARSE_OPS_TARGET=generic", "-DSPARSE_OPS_TABLE=kKernelsGeneric"],
    "neon": ["-DSPARSE_OPS_TARGET=neon", "-DSPARSE_OPS_TABLE=kKernelsNeon", "-DSPARSE_OPS_USE_NEON"],
}


@pytest.fixture(scope="module")
def compiler() -> list[str]:
    """What compiles for aarch64, with flags that take seconds."""
    flags = ["-std=gnu++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{OPS}", "-DSPARSE_OPS_AARCH64"]
    if platform.machine() == "aarch64":
        return [os.environ.get("CXX") or "g++", *flags]
    if shutil.which(CROSS_COMPILER) is None:
        pytest.skip(f"{CROSS_COMPILER} is not installed")
    return [CROSS_COMPILER, "-static", *flags]


@pytest.fixture(scope="module")
def emulator() -> list[str]:
    """What a program for aarch64 is run by: nothing where the processor is one."""
    if platform.machine() == "aarch64":
        return []
    found = next(filter(None, map(shutil.which, EMULATORS)), None)
    if found is None:
        pytest.skip(f"no emulator is installed: {' or '.join(EMULATORS)}")
    return [found]


def test_neon_answers_as_generic_kernels_do(compiler: list[str], emulator: list[str], tmp_path: Path) -> None:
    objects = [tmp_path / f"{name}.o" for name in TABLES]
    for table, compiled in zip(TABLES.values(), objects, strict=True):
        source = OPS / "cpu" / "kernels.cc"
        subprocess.run([*compiler, *table, "-c", source, "-o", compiled], check=True)
    program = tmp_path / "neon_equality"
    sources = [TESTS / "neon_equality.cc", OPS / "axis_attention" / "axis_plan.cc"]
    subprocess.run([*compiler, *sources, *objects, "-o", program], check=True)
    answer = subprocess.run([*emulator, program], check=False, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout[-10_000:] + answer.stderr
