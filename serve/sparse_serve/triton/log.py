"""The log of a server: kept in a file, shown while it is written, and read for the reason of a failure."""

import re
import shutil
import sys
import threading
from pathlib import Path

_ECHO_SECONDS = 0.2

# "E0101 12:00:00.000000 1 server.cc:1] message", the message in quotes in newer releases.
_LOG_LINE = re.compile(r'^[EF]\d{4} [\d:.]+ \d+ \S+\] "?(?P<message>.*?)"?$')
_UNAVAILABLE = re.compile(r"^\| (?P<model>\S+)\s+\| (?P<version>\d+)\s+\| UNAVAILABLE: (?P<reason>.*)\|$")
_REFUSED = re.compile(r"unrecognized option|requires an argument|^docker: |^error:")
_TABLE_NEXT_LINE = re.compile(r"^\| {2,}\| {2,}\| (?P<more>.*)\|$")


class LogFile:
    """A log that another process writes, copied to stderr on a thread if wanted."""

    def __init__(self, path: Path, *, echo: bool) -> None:
        self.stream = path.open("wb")
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._echo, args=(path,), daemon=True)
        if echo:
            self._thread.start()

    def _echo(self, path: Path) -> None:
        with path.open(encoding="utf-8", errors="replace") as reader:
            while not self._closed.wait(_ECHO_SECONDS):
                shutil.copyfileobj(reader, sys.stderr)
            shutil.copyfileobj(reader, sys.stderr)

    def close(self) -> None:
        """Copy what is left and close the file."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        self.stream.close()


def reason_in_log(log: str) -> str:
    """Return the one line of a log that best says why Triton did not start."""
    lines = log.splitlines()
    for index, line in enumerate(lines):
        found = _UNAVAILABLE.match(line)
        if found:
            reason = found["reason"].strip()
            for more in map(_TABLE_NEXT_LINE.match, lines[index + 1 :]):
                if more is None or more["more"].strip() == "At:":  # a Python stack follows
                    break
                reason = f"{reason} {more['more'].strip()}"
            return f"model '{found['model']}' version {found['version']}: {reason.strip()}"
    errors = [found["message"] for found in map(_LOG_LINE.match, lines) if found]
    errors = [message for message in errors if "CudaDriverHelper" not in message]  # said on every CPU
    if errors:
        return errors[0]
    written = [line.strip() for line in lines if line.strip()]
    refused = [line for line in written if _REFUSED.search(line)]
    return (refused or written[-1:] or ["it wrote no log"])[0]
