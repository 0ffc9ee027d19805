"""Ends a server whose launcher has died, by whatever signal, and removes what the server left behind.

Run as a program, it waits for the end of its standard input: a pipe that only the launcher holds open, and
that the kernel closes with it. (The kernel's own means, PR_SET_PDEATHSIG, follows the thread that forked, and
`profile` starts servers on threads.) Run by path and with the standard library only, it starts in
milliseconds and holds little memory.

A server's processes are found by a variable in their environment, which every descendant inherits. Where its
guard was killed too, the next server clears up, by what names and times tell.
"""

import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

MARK_VARIABLE = "SPARSE_SERVE_SERVER_MARK"
SHARED_MEMORY = Path("/dev/shm")
# Triton's Python backend makes an empty folder here at its start, whatever TMPDIR says, and takes it away at
# its end. Nothing about it tells whose it is.
ENVIRONMENTS = Path("/tmp")
_ENVIRONMENT = "python_env_*"
_PYTHON_BACKEND = b"libtriton_python.so"
_CLOCK_SECONDS = 1.0

# A mark, as it begins the name of a region, and the name of a folder.
_LEFT = re.compile(r"sparse([_-])serve\1(?P<namespace>\d+)\1(?P<pid>\d+)\1(?P<token>[0-9a-f]{8})")

_KILL_SECONDS = 5.0
_COMMAND_SECONDS = 60


def mark_of(pid: int, token: str) -> str:
    """Return the mark of a server that process `pid` starts; `token` is eight hexadecimal digits."""
    return f"sparse_serve_{_namespace()}_{pid}_{token}_"


def folder_of(pid: int, token: str) -> str:
    """Return the name of that server's folder."""
    return f"sparse-serve-{_namespace()}-{pid}-{token}"


def start(mark: str, folder: Path, command: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Start a guard over the server called `mark`; `command` is what ends processes that cannot be killed.

    The guard acts when this process has died, or closes the guard's `stdin`.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, mark, str(folder), *command],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def end(mark: str, folder: Path) -> None:
    """Kill the server's processes and remove its shared memory and its folder."""
    kill(mark)
    for region in SHARED_MEMORY.glob(f"{mark}*"):
        region.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    _remove_environments()


def clear(temporary: Path) -> None:
    """Remove what servers have left that were killed together with their launcher and their guard.

    A server is taken for alive where its launcher is, or a process with its mark; and where neither could be
    seen from here, as that of another container with which folders are shared.
    """
    left = [*SHARED_MEMORY.glob("sparse_serve_*"), *temporary.glob("sparse-serve-*")]
    marks = {value for _, value in _marks()} if left else set()
    for path in left:
        found = _LEFT.match(path.name)
        if found is None or int(found["namespace"]) != _namespace() or not _is_ours(path):
            continue
        if Path(f"/proc/{found['pid']}").exists():
            continue
        if mark_of(int(found["pid"]), found["token"]) in marks:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    _remove_environments()


def kill(mark: str) -> None:
    """Kill every process that carries the mark, and those that they start meanwhile."""
    deadline = time.monotonic() + _KILL_SECONDS
    while (alive := [pid for pid, each in _marks() if each == mark]) and time.monotonic() < deadline:
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _marks() -> Iterator[tuple[int, str]]:
    """Yield the processes with a mark in their environment, and the mark; that of a dead one is empty."""
    prefix = f"{MARK_VARIABLE}=".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # another user's, or gone
            for variable in path.read_bytes().split(b"\0"):
                if variable.startswith(prefix):
                    yield int(path.parent.name), os.fsdecode(variable.removeprefix(prefix))


def _namespace() -> int:
    """Return the number of the namespace that process ids are of: each container has its own."""
    return Path("/proc/self/ns/pid").stat().st_ino


def _is_ours(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.getuid()
    except OSError:  # gone
        return False


def _remove_environments() -> None:
    """Remove the folders of Python backends that are older than every server that runs.

    Where the clock was set forward since one started, its own seems older and goes too. It is empty; only a
    model that brings an environment would need it, and none of this package does.
    """
    folders = [path for path in ENVIRONMENTS.glob(_ENVIRONMENT) if _is_ours(path)]
    oldest = _oldest_server() if folders else math.inf
    for folder in folders:
        with suppress(OSError):  # gone, or it holds an environment that a model brought
            if folder.lstat().st_mtime < oldest - _CLOCK_SECONDS:
                folder.rmdir()


def _oldest_server() -> float:
    """Return when the first process with the Python backend started, in seconds of the clock."""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    oldest = math.inf
    for path in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # another user's, or gone
            if _PYTHON_BACKEND in path.read_bytes():
                # The 22nd field; the second is a name in parentheses, which may hold anything.
                ticks = path.with_name("stat").read_text(errors="replace").rpartition(")")[2].split()[19]
                oldest = min(oldest, booted + int(ticks) / os.sysconf("SC_CLK_TCK"))
    return oldest


def main() -> None:
    """Wait for the launcher's end, then end its server."""
    mark, folder, *command = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    kill(mark)  # first, or what the command ends could be started again
    if command:
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_COMMAND_SECONDS,
                check=False,
            )
    end(mark, Path(folder))


if __name__ == "__main__":
    main()
