import re
from pathlib import Path

import pytest

from sparse_serve import op_library
from sparse_serve.digests import file_digest
from sparse_serve.errors import OpLibraryError
from sparse_serve.op_library import (
    CUDA_LIBRARY_NAME,
    OPSET_VERSION,
    instruction_set,
    library_cuda,
    library_path,
    library_version,
    verify_library,
)


def test_the_installed_library_is_the_recorded_one() -> None:
    path = verify_library()
    assert path == library_path()
    assert re.fullmatch("[0-9a-f]{64}", file_digest(path))
    assert library_version(path) == OPSET_VERSION
    assert instruction_set(path) in ("avx512vnni", "avx512", "avx2", "neon", "generic")


def test_a_missing_library_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_library, "LIBRARY_NAME", "libabsent.so")
    with pytest.raises(OpLibraryError, match=r"libabsent\.so is missing from the installed package"):
        verify_library()


def test_another_file_in_its_place_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "libsparse_ops.so"
    other.write_bytes(library_path().read_bytes() + b"\0")
    monkeypatch.setattr(op_library, "library_path", lambda device: other)
    with pytest.raises(OpLibraryError, match="it is not the file that was installed"):
        verify_library()


def test_an_unrecorded_library_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_library, "_DISTRIBUTION", "no-such-distribution")
    with pytest.raises(OpLibraryError, match="has no record of"):
        verify_library()


def test_a_library_of_another_version_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_library, "library_version", lambda path: 2)
    with pytest.raises(OpLibraryError, match=r"speaks version 2 of ai\.sparse_serve, this package speaks 1"):
        verify_library()


def test_a_file_that_is_no_library_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "libsparse_ops.so"
    path.write_text("text")
    for ask in (library_version, library_cuda, instruction_set):
        with pytest.raises(OpLibraryError, match="cannot be used"):
            ask(path)


def test_a_library_for_gpus_is_held_against_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = tmp_path / CUDA_LIBRARY_NAME
    built.write_bytes(library_path().read_bytes())
    monkeypatch.setattr(op_library, "library_path", lambda device: built)
    recorded = file_digest(built)
    monkeypatch.setattr(op_library, "_recorded_digest", lambda path: recorded)
    assert verify_library("cuda") == built
    with built.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(
        OpLibraryError, match=r"it is not the file that was installed; build it with make cuda"
    ):
        verify_library("cuda")


def test_a_library_for_gpus_that_was_not_built_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_library, "CUDA_LIBRARY_NAME", "libabsent_cuda.so")
    with pytest.raises(OpLibraryError, match=r"libabsent_cuda\.so is missing .* build it with make cuda"):
        verify_library("cuda")
