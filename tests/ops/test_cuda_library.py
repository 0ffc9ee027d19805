"""The library with kernels for CPUs and GPUs, without a GPU: it loads, and answers as the other one does.

It is built for every target, as `builds.py` says. Any test of the ops runs on it with
`SPARSE_OPS_TEST_LIBRARY=build/cuda_test/ops/libsparse_ops_cuda.so`.
"""

import ctypes
import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from builds import build_folder, run_build, run_tests_on

from sparse_serve.op_library import library_cuda

TESTS = Path(__file__).parent
PROJECT = TESTS.parents[1]
REGISTERS = 65536  # of a multiprocessor

FLOAT_OPS = {
    "SparsegenLin",
    "SparsegenAttention",
    "SparsegenCrossAttention",
    "SoftmaxAttention",
    "SoftmaxCrossAttention",
    "AxisMask",
    "AxisAttention",
    "AxisCrossAttention",
}
FLOAT_TYPES = {1, 10, 16}
# Each op, every way to a kernel, in seconds.
CASES = "test_library or (test_errors and head) or (test_case_table and vector_borders) or test_every_width"
FILES = ("library", "errors", "packed_attention", "cross_attention", "axis_mask")


def cuda_compiler() -> str | None:
    """Return nvcc: on PATH, in its usual folder, or of the extra `cuda`."""
    packaged = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin"
    return shutil.which("nvcc") or shutil.which("nvcc", path=f"/usr/local/cuda/bin{os.pathsep}{packaged}")


@pytest.fixture(scope="session")
def build() -> Path:
    """Build it, in a folder where what has not changed is not built again."""
    nvcc = cuda_compiler()
    if nvcc is None or shutil.which("cmake") is None:
        pytest.skip("nvcc or cmake is not installed (extra cuda)")
    folder = build_folder("cuda_test")
    configured = ["cmake", "-S", str(PROJECT), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release"]
    options = ["SPARSE_OPS_CUDA=ON", f"SPARSE_OPS_NVCC={nvcc}"]
    run_build(
        folder,
        [*configured, *(f"-D{option}" for option in options)],
        ["cmake", "--build", str(folder), "--target", "sparse_ops_cuda"],
    )
    return folder / "ops"


@pytest.fixture(scope="session")
def library(build: Path) -> Path:
    return build / "libsparse_ops_cuda.so"


def registered_ops(library: Path) -> set[tuple[str, str, int]]:
    """Return name, provider and type of the first input of each op that a library registers."""
    no_arguments = ctypes.CFUNCTYPE(ctypes.c_void_p)
    of_input = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
    text = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)
    found = set()

    def add(_domain: int, op: int) -> None:
        words = (ctypes.c_void_p * 22).from_address(op)
        name, provider = (text(words[i] or 0)(op).decode() for i in (2, 3))
        found.add((name, provider, of_input(words[4] or 0)(op, 0)))

    two = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    calls = {26: two(lambda _name, _out: None), 27: two(add), 28: two(lambda _options, _domain: None)}
    table = (ctypes.c_void_p * 300)()
    for slot, call in calls.items():
        table[slot] = ctypes.cast(call, ctypes.c_void_p)
    get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(lambda _version: ctypes.addressof(table))
    base = (ctypes.c_void_p * 2)(
        ctypes.cast(get_api, ctypes.c_void_p), ctypes.cast(no_arguments(lambda: None), ctypes.c_void_p)
    )
    register = ctypes.CDLL(str(library)).RegisterCustomOps
    register.restype = ctypes.c_void_p
    assert register(None, base) is None
    return found


def test_every_op_of_floats_is_registered_for_both_providers(library: Path) -> None:
    ops = registered_ops(library)
    providers = {
        provider: {(name, kind) for name, own, kind in ops if own == provider} for _, provider, _ in ops
    }
    assert set(providers) == {"CPUExecutionProvider", "CUDAExecutionProvider"}
    for_gpus = {(name, kind) for name in FLOAT_OPS for kind in FLOAT_TYPES}
    assert providers["CUDAExecutionProvider"] == for_gpus
    assert providers["CPUExecutionProvider"] > for_gpus


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf, of binutils, is not installed")
def test_it_needs_no_library_of_cuda(library: Path) -> None:
    listing = subprocess.run(
        ["readelf", "-d", str(library)], check=True, capture_output=True, text=True
    ).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", listing)
    assert needed
    assert not [name for name in needed if "cuda" in name or "nv" in name]


def test_it_says_which_cuda_it_was_built_with(library: Path) -> None:
    """And, where no call has been, that none has had memory."""
    told = subprocess.run([str(cuda_compiler()), "--version"], check=True, capture_output=True, text=True)
    release = re.search(r"release (\d+)\.(\d+)", told.stdout)
    assert release
    assert library_cuda(library) == (int(release[1]), int(release[2]))
    assert ctypes.CDLL(str(library)).SparseOpsTakeScratchPeak() == 0


# Axis attention of heads wider than 64 in float32, or read element by element as their size is odd.
SPILLS = re.compile(r"AxisAttentionKernelI(fLi128|.*Li128ELb0)")


# Of SparsegenAttention in 16 bits with more keys than are resident.
LARGE_BLOCKS = re.compile(r"SparsegenAttentionKernelI.*(Half|BFloat16)ELi\d+ELb0E")


def threads_of(kernel: str) -> int:
    """Return how many threads a block has."""
    return 256 if LARGE_BLOCKS.search(kernel) else 128


def blocks_beside_each_other(kernel: str, capability: str) -> int:
    """Return for how many blocks of hot kernels a multiprocessor is to have registers."""
    if "SparsegenAttentionKernel" not in kernel or not re.search(r"(Half|BFloat16)ELi(32|64)E", kernel):
        return 1
    if LARGE_BLOCKS.search(kernel):
        return 1 if capability < "90" else 2
    return 4


def test_no_kernel_spills_registers(build: Path) -> None:
    """Nor has a stack frame, but for a few that are rare; a block's registers are no more than there are."""
    logs = sorted(build.glob("*_cuda.o.ptxas"))
    assert len(logs) >= 5
    for log in logs:
        text = log.read_text()
        kernels = re.findall(r"Compiling entry function '(\S+)' for 'sm_(\d+)'", text)
        frames = re.findall(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", text
        )
        registers = [int(count) for count in re.findall(r"Used (\d+) registers", text)]
        assert len(kernels) == len(frames) == len(registers) > 0
        for (kernel, capability), frame, count in zip(kernels, frames, registers, strict=True):
            assert frame == ("0", "0", "0") or SPILLS.search(kernel), (log.name, kernel)
            threads = threads_of(kernel) * blocks_beside_each_other(kernel, capability)
            assert count * threads <= REGISTERS, (log.name, kernel)


def test_it_answers_on_a_cpu_as_the_one_library_loaded(library: Path) -> None:
    run_tests_on(library, FILES, CASES)
