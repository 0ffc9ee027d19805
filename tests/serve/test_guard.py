"""What is left where a server was killed: removed if only a dead one can have left it."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from serving import addresses, alive, leftovers, serve, wait_for

from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.triton import guard

TOKEN = "01234567"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where both this process and Triton's Python backend put temporary folders."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(guard, "ENVIRONMENTS", tmp_path / "temporary")
    return tmp_path / "temporary"


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.fixture
def left(dead_pid: int, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A region and a folder of a server that a dead process started, where no other test's server clears."""
    monkeypatch.setattr(guard, "SHARED_MEMORY", tmp_path / "shm")
    region = guard.SHARED_MEMORY / f"{guard.mark_of(dead_pid, TOKEN)}region"
    folder = temporary / guard.folder_of(dead_pid, TOKEN)
    region.parent.mkdir()
    region.write_bytes(b"")
    (folder / "backends").mkdir(parents=True)
    return [region, folder]


@pytest.mark.usefixtures("temporary")
def test_the_next_server_clears_up_after_one_killed_with_its_guard(
    tmp_path: Path, make_spec: Callable[..., EntrySpec]
) -> None:
    write_entry(tmp_path / "models", make_spec())
    process = serve(tmp_path / "models")
    addresses(process)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for each in sorted(family, key=lambda each: guard.__file__ not in each.cmdline()):
        each.kill()
    process.communicate()
    wait_for(lambda: not alive(family))
    assert leftovers(process.pid)
    following = serve(tmp_path / "models")
    addresses(following)
    left_then = leftovers(process.pid)
    following.terminate()
    _, errors = following.communicate(timeout=60)
    assert following.returncode == 0, errors
    assert not left_then


def test_what_is_of_a_dead_launcher_is_removed(left: list[Path], temporary: Path) -> None:
    others = [temporary / "sparse-serve-abcdefgh", temporary / guard.folder_of(os.getpid(), TOKEN)]
    for other in others:
        other.mkdir()
    guard.clear(temporary)
    assert not any(path.exists() for path in left)
    assert all(other.is_dir() for other in others)


def test_what_is_of_another_container_stays(
    left: list[Path], temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose processes cannot be seen from here."""
    here = guard._namespace()
    monkeypatch.setattr(guard, "_namespace", lambda: here + 1)
    guard.clear(temporary)
    assert all(path.exists() for path in left)


def test_a_server_that_outlived_its_launcher_keeps_what_it_uses(
    left: list[Path], dead_pid: int, temporary: Path
) -> None:
    mark = guard.mark_of(dead_pid, TOKEN)
    with subprocess.Popen(["sleep", "60"], env={**os.environ, guard.MARK_VARIABLE: mark}) as server:
        # Which is empty for a moment when a program begins.
        wait_for(lambda: guard.MARK_VARIABLE in psutil.Process(server.pid).environ())
        guard.clear(temporary)
        assert all(path.exists() for path in left)
        server.kill()
    guard.clear(temporary)
    assert not any(path.exists() for path in left)


def test_environments_older_than_every_server_are_removed(tmp_path: Path, temporary: Path) -> None:
    """A process that has the backend mapped stands for the server."""
    library = tmp_path / "libtriton_python.so"
    library.write_bytes(b"\0")
    script = (
        "import mmap, sys; file = open(sys.argv[1], 'rb'); "
        "mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ); print(flush=True); sys.stdin.read()"
    )
    old, of_a_model, young = (temporary / f"python_env_{name}" for name in ("old", "model", "young"))
    with subprocess.Popen(
        [sys.executable, "-c", script, str(library)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline()
        for folder in (old, of_a_model / "bin", young):
            folder.mkdir(parents=True)
        for folder in (old, of_a_model):
            os.utime(folder, (0, 0))
        guard.end(guard.mark_of(0, TOKEN), temporary / "absent")
        assert (old.exists(), of_a_model.exists(), young.exists()) == (False, True, True)
        started = psutil.Process(server.pid).create_time()
        assert guard._oldest_server() < started + 1.1  # psutil takes the start of the system in whole seconds
