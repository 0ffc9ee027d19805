"""The op library, once for every instruction set this processor runs."""

import ctypes
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from one_op import library_under_test

X86 = ("generic", "avx2", "avx512", "avx512vnni")
INSTRUCTION_SETS = ("generic", "neon") if platform.machine() == "aarch64" else X86


@pytest.fixture(scope="session", params=INSTRUCTION_SETS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the library that runs one instruction set: each file chooses once, when it is first asked."""
    wanted: str = request.param
    copy = tmp_path_factory.mktemp(wanted) / f"libsparse_ops_{wanted}.so"
    shutil.copyfile(library_under_test(), copy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "SPARSE_OPS_INSTRUCTION_SET", wanted)
        chosen = ctypes.CDLL(str(copy)).SparseOpsInstructionSet
        chosen.restype = ctypes.c_char_p
        if chosen() != wanted.encode():
            pytest.skip(f"this processor does not run {wanted}")
    return copy


@pytest.fixture
def subnormals_are_zero() -> Iterator[None]:
    """Subnormal numbers are 0 to this thread, as to those of a session with `set_denormal_as_zero`."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot treat subnormal numbers as 0")
    yield
    torch.set_flush_denormal(False)
