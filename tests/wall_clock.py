"""The wall clock of a family of processes, set while they run; `wall_clock.cc` is what they see it by."""

import os
from pathlib import Path

from shared_library import compile_library

_SOURCE = Path(__file__).with_suffix(".cc")


class WallClock:
    """A clock that is the machine's until it is set, for processes that are started with its environment.

    Needs a C++ compiler, CXX or g++, and Linux with glibc.
    """

    def __init__(self, folder: Path) -> None:
        library, self._file = folder / "wall_clock.so", folder / "wall_clock"
        compile_library(library, [_SOURCE], "-ldl")
        self.environment = {"LD_PRELOAD": str(library), "WALL_CLOCK": str(self._file)}
        self.set_ahead(0)

    def set_ahead(self, seconds: int) -> None:
        """Set the clock so many seconds before the machine's; behind it where they are negative."""
        # In place, as it is mapped.
        file = os.open(self._file, os.O_CREAT | os.O_WRONLY, 0o600)
        os.pwrite(file, (seconds * 10**9).to_bytes(8, "little", signed=True), 0)
        os.close(file)
