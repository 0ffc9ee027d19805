"""A stand-in for the `docker` command: a container is a detached process of this machine.

`FAKE_DOCKER` names a folder that holds `images.json` (image → its labels; absent: no daemon runs), `calls`
(every argument list, one JSON array a line), `entrypoint` (what a container runs, with its user's arguments),
`environment.json` (of containers) and, while a container runs, its process id in a file of its name.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

PORTS = {"8000": "http", "8001": "grpc", "8002": "metrics"}


def run_parser() -> argparse.ArgumentParser:
    """Return what of `docker run` is understood; anything else is an error."""
    parser = argparse.ArgumentParser(prog="docker run", allow_abbrev=False)
    for flag in ("--rm", "--read-only"):
        parser.add_argument(flag, action="store_true")
    for option in (
        "--pull",
        "--name",
        "--user",
        "--tmpfs",
        "--shm-size",
        "--memory",
        "--memory-swap",
        "--gpus",
        "--cpuset-cpus",
    ):
        parser.add_argument(option)
    for option in ("--cap-drop", "--security-opt", "--volume", "--publish", "--env"):
        parser.add_argument(option, action="append", default=[])
    parser.add_argument("image")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def main(state: Path, arguments: Sequence[str]) -> int:
    with (state / "calls").open("a", encoding="utf-8") as calls:
        calls.write(json.dumps(arguments) + "\n")
    if not (state / "images.json").exists():
        print("Cannot connect to the Docker daemon. Is the docker daemon running?", file=sys.stderr)
        return 1
    command, *rest = arguments
    if command == "version":
        return 0
    if command == "image":
        return inspect_image(state, rest[-1])
    if command == "inspect":
        return inspect(state, rest[-1])
    if command == "run":
        return run(state, run_parser().parse_args(rest))
    return end(state, rest[-1], patience=float(rest[1]) if command == "stop" else 0.0)


def inspect(state: Path, name: str) -> int:
    pid = (state / name).read_text() if (state / name).exists() else None
    if pid is None:
        print(f"Error response from daemon: No such container: {name}", file=sys.stderr)
        return 1
    print(pid, "0123456789abcdef" * 4)
    return 0


def inspect_image(state: Path, image: str) -> int:
    images = json.loads((state / "images.json").read_text())
    if image not in images:
        print(f"Error response from daemon: No such image: {image}", file=sys.stderr)
        return 1
    print("sha256:5eed", json.dumps(images[image]))
    return 0


def run(state: Path, options: argparse.Namespace) -> int:
    volumes = {}
    for volume in options.volume:
        source, target, mode = volume.split(":")
        volumes[target] = source
        # Nothing else has a place of its own in what stands in for a container.
        assert mode == "ro"
        assert target in ("/models", source)
    listening = []
    for published in options.publish:
        address, port, inside = published.split(":")
        listening += [f"--{PORTS[inside]}-port={port}", f"--{PORTS[inside]}-address={address}"]
    regions = f"--backend-config=python,shm-region-prefix-name={options.name}_"
    container = subprocess.Popen(
        ["sh", str(state / "entrypoint"), *options.arguments, *listening, regions],
        env={
            **json.loads((state / "environment.json").read_text()),
            **dict(variable.split("=", 1) for variable in options.env),
            **({"MODEL_REPOSITORY": volumes["/models"]} if "/models" in volumes else {}),
        },
        start_new_session=True,
    )
    written = state / f".{options.name}"
    written.write_text(str(container.pid))
    written.rename(state / options.name)  # whole, for who waits for it
    status = container.wait()
    vanish(state, options.name)
    return status if status >= 0 else 128 - status


def end(state: Path, name: str, patience: float) -> int:
    path = state / name
    if not path.exists():
        print(f"Error response from daemon: No such container: {name}", file=sys.stderr)
        return 1
    pid = int(path.read_text())
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    vanish(state, name)
    return 0


def vanish(state: Path, name: str) -> None:
    """Forget a container, and remove what lay in the /dev/shm of its own that a real one has."""
    (state / name).unlink(missing_ok=True)
    for region in Path("/dev/shm").glob(f"{name}_*"):
        region.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(Path(os.environ["FAKE_DOCKER"]), sys.argv[1:]))
