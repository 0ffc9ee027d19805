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
            status, answer = ask(name, question(repository / name / "manifest.json"))
            if status != 200:
                print(f"{name} answers {status}: {answer}", file=sys.stderr)
                return 1
    except (OSError, HTTPException) as error:
        print(f"{name} does not answer: {error}", file=sys.stderr)
        return 1
    return 0


def question(manifest: Path) -> dict[str, str]:
    """Return what the entry is asked: a text, with a second one where it answers questions, and a task."""
    asked = {"TEXT": "health check"}
    try:
        tasks = json.loads(manifest.read_bytes())["tasks"]
        if any(task["type"] == "question_answering" for task in tasks.values()):
            asked["TEXT_PAIR"] = "health check"
        if len(tasks) > 1:
            asked["TASK"] = next(iter(tasks))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass  # of an earlier version, or for Triton to complain of
    return asked


def ask(name: str, asked: dict[str, str]) -> tuple[int, str]:
    """Return the status and the body of the entry's answer to a row of these inputs."""
    inputs = [
        {"name": tensor, "shape": [1, 1], "datatype": "BYTES", "data": [text]}
        for tensor, text in asked.items()
    ]
    request = {"inputs": inputs, "outputs": [{"name": "token_count"}]}
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
