"""Exits 0 when every entry of the model repository answers to a text, all of them within HEALTH_SECONDS.

Readiness does not tell: Triton calls a model ready though the Python process behind it has died.
Standard library only, for the image.
"""

import json
import os
import signal
import sys
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import FrameType
from typing import Any

# Where the package is not installed, as in `check_entries`.
sys.path.insert(0, str(Path(__file__).parent))

from check_entries import Message, UnfitError, messages, read_config

from sparse_serve.repository.health import Input, health_request

# Below the time that the image's HEALTHCHECK gives, so that what is wrong can still be said.
SECONDS = float(os.environ.get("HEALTH_SECONDS", "8"))


def main() -> int:
    """Ask each entry in turn; say on stderr which one does not answer."""
    repository = Path(os.environ.get("MODEL_REPOSITORY", "/models"))
    entries = sorted(path.parent.name for path in repository.glob("*/manifest.json"))
    if not entries:
        print(f"no entry in {repository}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGALRM, time_out)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    name = entries[0]
    try:
        for name in entries:
            status, answer = ask(name, question(repository / name))
            if status != 200:
                print(f"{name} answers {status}: {answer}", file=sys.stderr)
                return 1
    except (OSError, HTTPException) as error:
        print(f"{name} does not answer: {error}", file=sys.stderr)
        return 1
    except UnfitError as error:
        print(f"{name} cannot be asked: {error}", file=sys.stderr)
        return 1
    return 0


def question(entry: Path) -> dict[str, Any]:
    """Return the JSON of the inference that the entry's public model is asked for."""
    path = entry / "config.pbtxt"
    config = read_config(path)
    try:
        inputs = [read_input(each) for each in messages(config, "input")]
        is_batched = int(only(config, "max_batch_size", "0")) > 0
    except ValueError as error:
        raise UnfitError(f"configuration {path} is malformed ({error}): export the entry again") from None
    tasks = task_names(entry / "manifest.json")
    return health_request(inputs, tasks, is_batched=is_batched, output="token_count")


def read_input(message: Message) -> Input:
    """Return an input as its message in a configuration has it."""
    return Input(
        name=only(message, "name", ""),
        data_type=only(message, "data_type", ""),
        dims=[int(str(dim)) for dim in message.get("dims", [])],
        is_optional=only(message, "optional", "false") == "true",
    )


def only(message: Message, field: str, default: str) -> str:
    """Return the value of a field that is not repeated."""
    return str((message.get(field) or [default])[-1])


def task_names(manifest: Path) -> list[str]:
    """Return the names of an entry's tasks; none of a manifest that an earlier version wrote."""
    try:
        return [str(name) for name in json.loads(manifest.read_bytes())["tasks"]]
    except (OSError, ValueError, LookupError, TypeError):
        return []


def ask(name: str, request: dict[str, Any]) -> tuple[int, str]:
    """Return the status and the body of the entry's answer."""
    connection = HTTPConnection("127.0.0.1", int(os.environ.get("HTTP_PORT", "8000")))
    try:
        connection.request("POST", f"/v2/models/{name}/infer", json.dumps(request))
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def time_out(_signal: int, _frame: FrameType | None) -> None:
    """End whatever is being waited for."""
    raise TimeoutError(f"{SECONDS:g} s are over")


if __name__ == "__main__":
    sys.exit(main())
