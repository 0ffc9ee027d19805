"""Ends a server whose launcher has died, by whatever signal, and removes what the server left behind.

Run as a program, it waits for the end of its standard input: a pipe that only the launcher holds open, and
that the kernel closes with it. (The kernel's own means, PR_SET_PDEATHSIG, follows the thread that forked, and
`profile` starts servers on threads.) Run by path and with the standard library only, it starts in
milliseconds and holds little memory.

A server's processes are found by a variable in their environment, which every descendant inherits.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

MARK_VARIABLE = "SPARSE_SERVE_SERVER_MARK"
SHARED_MEMORY = Path("/dev/shm")

_KILL_SECONDS = 5.0
_COMMAND_SECONDS = 60


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


def kill(mark: str) -> None:
    """Kill every process that carries the mark, and those that they start meanwhile."""
    deadline = time.monotonic() + _KILL_SECONDS
    while (alive := _marked(mark)) and time.monotonic() < deadline:
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _marked(mark: str) -> list[int]:
    """Return the processes with the mark in their environment; that of a dead one is empty."""
    wanted = f"{MARK_VARIABLE}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # another user's, or gone
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


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
