"""The environment of each peer: a venv of its own, from the versions that are pinned beside this file."""

import subprocess
import sys
from pathlib import Path

PINS = Path(__file__).parent
SCRIPTS = "bin"
INSTALLED = "installed.txt"


def environment_of(peer: str, folder: Path) -> Path:
    """Return the folder of a peer's programs, installed unless the pinned versions are there.

    Raises:
        RuntimeError: the packages could not be installed.
    """
    place, pins = folder / peer, PINS / f"{peer}.txt"
    record = place / INSTALLED
    if not record.exists() or record.read_text("utf-8") != pins.read_text("utf-8"):
        print(f"{place}: installing {pins.name}", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(place)])
        install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _run([str(place / SCRIPTS / "python"), *install, "--requirement", str(pins)])
        record.write_text(pins.read_text("utf-8"), "utf-8")
    return (place / SCRIPTS).absolute()


def pinned(peer: str, packages: tuple[str, ...]) -> str:
    """Return the versions that a peer is measured in, such as `onnxruntime 1.32.0`."""
    versions = dict(line.split("==") for line in (PINS / f"{peer}.txt").read_text("utf-8").split())
    return ", ".join(f"{package} {versions[package]}" for package in packages)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise RuntimeError(f"{' '.join(command)}: {lines[-1]}")
