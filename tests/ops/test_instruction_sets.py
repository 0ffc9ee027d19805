"""Kernels that this processor may have no instructions for answer as the generic ones do.

NEON's are compiled for aarch64 and elsewhere run by an emulator; those of AVX-512 with VNNI, which has more
of them, where the processor has none with the header in `emulated_avx512`, which computes its instructions
lane by lane.
"""

import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from builds import cxx

TESTS = Path(__file__).parent
OPS = TESTS.parents[1] / "ops"
FLAGS = ("-std=gnu++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{OPS}")
GENERIC = ("-DSPARSE_OPS_TARGET=generic", "-DSPARSE_OPS_TABLE=kKernelsGeneric")
NEON = ("-DSPARSE_OPS_TARGET=neon", "-DSPARSE_OPS_TABLE=kKernelsNeon", "-DSPARSE_OPS_USE_NEON")
AVX512 = (
    "-DSPARSE_OPS_TARGET=avx512vnni",
    "-DSPARSE_OPS_TABLE=kKernelsAvx512Vnni",
    "-DSPARSE_OPS_USE_AVX512",
    "-DSPARSE_OPS_USE_VNNI",
)
# Without AVX-512, GCC says that vectors of 512 bits are not handed over as they would be with it.
NATIVE_AVX512 = (
    *("-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mavx512vnni", "-mfma"),
    *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),  # of registers in GCC's own header
)
EMULATED_AVX512 = (f"-I{TESTS / 'emulated_avx512'}", "-mavx2", "-mfma", "-mf16c", "-Wno-psabi")
CROSS_COMPILER = "aarch64-linux-gnu-g++"
EMULATORS = ("qemu-aarch64", "qemu-aarch64-static")


def hold_to_generic(
    compiler: Sequence[str],
    table: Sequence[str],
    own_flags: Sequence[str],
    runner: Sequence[str],
    folder: Path,
) -> None:
    """Compile a table's kernels with flags of their own, and have the program that compares answer 0."""
    kernels = OPS / "cpu" / "kernels.cc"
    own, generic, program = folder / "own.o", folder / "generic.o", folder / "kernel_equality"
    subprocess.run([*compiler, *GENERIC, "-c", kernels, "-o", generic], check=True)
    subprocess.run([*compiler, *own_flags, *table, "-c", kernels, "-o", own], check=True)
    sources = [TESTS / "kernel_equality.cc", OPS / "axis_attention" / "axis_plan.cc"]
    compared = [define for define in table if "TARGET" not in define]
    subprocess.run([*compiler, *own_flags, *compared, *sources, own, generic, "-o", program], check=True)
    answer = subprocess.run([*runner, program], check=False, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout[-10_000:] + answer.stderr


@pytest.fixture
def aarch64_compiler() -> list[str]:
    """What compiles for aarch64."""
    flags = [*FLAGS, "-DSPARSE_OPS_AARCH64"]
    if platform.machine() == "aarch64":
        return [cxx(), *flags]
    if shutil.which(CROSS_COMPILER) is None:
        pytest.skip(f"{CROSS_COMPILER} is not installed")
    return [CROSS_COMPILER, "-static", *flags]


@pytest.fixture
def aarch64_runner() -> list[str]:
    """What a program for aarch64 is run by: nothing where the processor is one."""
    if platform.machine() == "aarch64":
        return []
    found = next(filter(None, map(shutil.which, EMULATORS)), None)
    if found is None:
        pytest.skip(f"no emulator is installed: {' or '.join(EMULATORS)}")
    return [found]


def test_neon(aarch64_compiler: list[str], aarch64_runner: list[str], tmp_path: Path) -> None:
    hold_to_generic(aarch64_compiler, NEON, (), aarch64_runner, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs a processor with AVX2")
def test_avx512(tmp_path: Path) -> None:
    flags = NATIVE_AVX512 if " avx512_vnni " in Path("/proc/cpuinfo").read_text() else EMULATED_AVX512
    hold_to_generic([cxx(), *FLAGS, "-DSPARSE_OPS_X86"], AVX512, flags, (), tmp_path)
