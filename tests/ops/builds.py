"""What is compiled of the ops for tests alone, and how tests of the ops run on a library of it.

It is kept in `build` and built again where something has changed. It takes minutes the first time, and only
what is in `ops` can break it: with EVERYTHING set, as in CI, or where it has been built before.
"""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from filelock import FileLock

VARIABLE = "EVERYTHING"
TESTS = Path(__file__).parent
PROJECT = TESTS.parents[1]
FLAGS = ("-std=gnu++17", "-Wall", "-Wextra", "-Wshadow", "-Werror", f"-I{PROJECT / 'ops'}")


def cxx() -> str:
    return os.environ.get("CXX") or "g++"


def build_folder(name: str) -> Path:
    """Return a folder in `build`; where it is not there and not asked for, the test is skipped."""
    folder = PROJECT / "build" / name
    if VARIABLE not in os.environ and not folder.exists():
        pytest.skip(f"{VARIABLE} is not set: compiling build/{name} takes minutes")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run_build(folder: Path, *commands: list[str]) -> None:
    """Run what builds in a folder, one process at a time."""
    with FileLock(folder / ".lock"):
        for command in commands:
            built = subprocess.run(command, check=False, capture_output=True, text=True)
            assert built.returncode == 0, (built.stdout + built.stderr)[-10_000:]


def compiled(source: str, *flags: str) -> Path:
    """Return what a file of this folder is compiled to, with all that it may include of the ops."""
    folder = build_folder("host_kernels")
    command = [cxx(), *FLAGS, *flags, str(TESTS / source)]
    digest = hashlib.sha256(" ".join(command).encode())
    for read in sorted([*(PROJECT / "ops").rglob("*.*"), *TESTS.rglob("*.cc"), *TESTS.rglob("*.h")]):
        digest.update(read.read_bytes())
    path = folder / f"{Path(source).stem}-{digest.hexdigest()[:16]}"
    with FileLock(folder / f"{Path(source).stem}.lock"):
        if not path.exists():
            for former in folder.glob(f"{Path(source).stem}-*"):
                former.unlink()
            unfinished = path.with_suffix(".unfinished")
            subprocess.run([*command, "-o", str(unfinished)], check=True)
            unfinished.rename(path)
    return path


def run_tests_on(
    library: Path,
    files: Sequence[str],
    cases: str,
    *options: str,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a part of the ops' tests on a library, in a process of its own; some of every file must pass."""
    paths = [TESTS / f"test_{name}.py" for name in files]
    run_tests(
        paths, cases, *options, environment={"SPARSE_OPS_TEST_LIBRARY": str(library), **(environment or {})}
    )


def run_tests(paths: Sequence[Path], cases: str, *options: str, environment: Mapping[str, str]) -> None:
    """Run a part of the tests of files in a process of its own; some of every file must pass."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-vx", *options]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", "-k", cases]
    answer = subprocess.run(
        [*command, *paths],
        cwd=PROJECT,
        env=inherited | dict(environment),
        check=False,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, (answer.stdout + answer.stderr)[-10_000:]
    assert set(re.findall(r"(\w+\.py)::.* PASSED", answer.stdout)) == {path.name for path in paths}
