"""`sparse-serve` forked from a process that has imported the model side, which costs most of a command.

python warm_command.py SOCKET   the parent, which forks one process for each command line that it is sent
"""

import atexit
import gc
import hashlib
import json
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from unittest.mock import patch

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from sparse_export.graph.tokenizer.tables import TokenizerTables

COMMANDS = ("finetune", "export", "inspect", "check", "classify", "profile", "deploy", "info")
"""What is forked; the rest is started as ever."""

# Stands in for the command. It imports next to nothing.
_CLIENT = """#!{python} -IS
import json, os, socket, sys
if sys.argv[1:2] == [] or sys.argv[1] not in {commands!r}:
    os.execv({script!r}, [{script!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as parent:
    parent.connect({address!r})
    told = json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(parent, [len(told).to_bytes(4, "big")], [0, 1, 2])
    parent.sendall(told)
    sys.exit(int(parent.recv(4) or b"-1"))
"""


@contextmanager
def warm_command(script: Path) -> Iterator[Path]:
    """Yield a folder whose `sparse-serve` does what `script` does; its parent ends with the block."""
    with TemporaryDirectory(prefix="sparse-serve-", dir="/tmp") as folder:  # a socket's path is short
        address = Path(folder) / "socket"
        client = Path(folder) / script.name
        client.write_text(
            _CLIENT.format(
                python=sys.executable, commands=COMMANDS, script=str(script), address=str(address)
            ),
            encoding="utf-8",
        )
        client.chmod(0o755)
        with subprocess.Popen([sys.executable, __file__, address]) as parent:
            try:
                while not address.exists():
                    assert parent.poll() is None
                    time.sleep(0.05)
                yield Path(folder)
            finally:
                parent.terminate()


def _serve(address: Path) -> None:
    """Fork for each command line, one after the other, until ended."""
    unready = address.with_suffix(".unready")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(unready))
        listener.listen()
        unready.rename(address)
        while True:
            connection, _ = listener.accept()
            with connection:
                if not os.fork():
                    _answer(connection)
                os.wait()


def _answer(connection: socket.socket) -> None:
    """Run the command line in this process, which ends, and tell its exit status."""
    status = 1
    try:
        size, streams, *_ = socket.recv_fds(connection, 4, 3)
        told = connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
        status = _run(streams, *json.loads(told))
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        connection.sendall(str(status).encode())
        os._exit(status)


def _run(streams: list[int], arguments: list[str], folder: str, environment: Mapping[str, str]) -> int:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def _derived_once(folder: Path) -> "Callable[[Tokenizer], TokenizerTables]":
    """Stand in for what asks a tokenizer for seconds: one process leaves the answer to the next."""
    from sparse_export.graph.tokenizer.derive import derive_tables  # noqa: PLC0415

    def derive(tokenizer: "Tokenizer") -> "TokenizerTables":
        file = folder / f"{hashlib.sha256(tokenizer.to_str().encode()).hexdigest()}.tables"
        if not file.exists():
            file.write_bytes(pickle.dumps(derive_tables(tokenizer)))
        tables: TokenizerTables = pickle.loads(file.read_bytes())
        return tables

    return derive


if __name__ == "__main__":
    import torch
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    import sparse_export.entry
    import sparse_export.pretraining
    import sparse_export.training  # noqa: F401
    from sparse_export.cli import main

    # What the exporter imports when it is first used, and what it gathers anew at each export: all operators
    # that torch can export.
    patch.object(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib))).start()
    patch("sparse_export.entry.derive_tables", _derived_once(Path(sys.argv[1]).parent)).start()
    torch.onnx.export(torch.nn.Linear(1, 1).eval(), (torch.zeros(1, 1),), dynamo=True, verbose=False)
    gc.collect()
    gc.freeze()  # what all processes share
    gc.set_threshold(100_000, 50, 50)  # a trace makes little but objects that stay
    _serve(Path(sys.argv[1]))
