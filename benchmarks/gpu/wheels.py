"""Pinned wheels for a machine without a network, in parts small enough to travel.

    python benchmarks/gpu/wheels.py pack PARTS            # with a network: downloads, cuts, writes the sums
    python benchmarks/gpu/wheels.py unpack PARTS WHEELS   # without: holds parts against them, and joins them

`requirements.txt` has the pins; those of `constraints.txt` hold for the rest. The sums are in
`PARTS/sha256sums.txt`. A part that is missing or has changed is named, and nothing is unpacked. Standard
library only: nothing is installed yet.
"""

import argparse
import hashlib
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
REQUIREMENTS = HERE / "requirements.txt"
SUMS = "sha256sums.txt"
PART_BYTES = 48 << 20
_LINE = re.compile(r"(?P<digest>[0-9a-f]{64})  (?P<name>[A-Za-z0-9._+-]+)")
_PART = re.compile(r"(?P<wheel>.+\.whl)\.part(?P<number>\d{3})")


def main() -> None:
    """Read the command line, and pack or unpack."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    packing, unpacking = commands.add_parser("pack"), commands.add_parser("unpack")
    packing.add_argument("parts", type=Path)
    packing.add_argument("--wheels", type=Path, help="cut these, in place of a download of requirements.txt")
    packing.add_argument("--part-bytes", type=int, default=PART_BYTES)
    unpacking.add_argument("parts", type=Path)
    unpacking.add_argument("wheels", type=Path)
    asked = parser.parse_args()
    if asked.command == "pack":
        pack(asked.parts, asked.wheels, asked.part_bytes)
    else:
        unpack(asked.parts, asked.wheels)


def pack(parts: Path, wheels: Path | None = None, part_bytes: int = PART_BYTES) -> None:
    """Download the wheels, or take those of a folder, and cut them into parts."""
    parts.mkdir(parents=True, exist_ok=True)
    folder = wheels or parts.with_name(f"{parts.name}_wheels")
    if wheels is None:
        _download(folder)
    sums = []
    for wheel in sorted(folder.glob("*.whl")):
        content = wheel.read_bytes()
        sums.append(f"{hashlib.sha256(content).hexdigest()}  {wheel.name}")
        for number, start in enumerate(range(0, len(content), part_bytes)):
            part = parts / f"{wheel.name}.part{number:03}"
            part.write_bytes(content[start : start + part_bytes])
            sums.append(f"{hashlib.sha256(part.read_bytes()).hexdigest()}  {part.name}")
    (parts / SUMS).write_text("".join(f"{line}\n" for line in sums), encoding="ascii")
    print(f"{len(sums)} sums in {parts / SUMS}")


def _download(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--only-binary", ":all:", "--dest", str(folder)]
    pinned = ["--constraint", str(ROOT / "constraints.txt"), "--requirement", str(REQUIREMENTS)]
    subprocess.run([*pip, *pinned], check=True)


def unpack(parts: Path, wheels: Path) -> None:
    """Join the parts, after holding each against the sums, and the wheels against theirs."""
    sums = read_sums(parts / SUMS)
    by_wheel: dict[str, list[Path]] = {}
    for name, digest in sums.items():
        if found := _PART.fullmatch(name):
            part = parts / name
            if not part.is_file() or hashlib.sha256(part.read_bytes()).hexdigest() != digest:
                fault = "another file" if part.is_file() else "missing"
                raise SystemExit(f"error: {part} is {fault}: send it again")
            by_wheel.setdefault(found["wheel"], []).append(part)
    wheels.mkdir(parents=True, exist_ok=True)
    for name, pieces in by_wheel.items():
        content = b"".join(part.read_bytes() for part in sorted(pieces))
        if hashlib.sha256(content).hexdigest() != sums.get(name):
            raise SystemExit(f"error: {name} is not whole: {SUMS} lacks a part of it; pack again")
        (wheels / name).write_bytes(content)
    print(f"{len(by_wheel)} wheels in {wheels}")


def read_sums(path: Path) -> dict[str, str]:
    """Return digests by name, as sha256sum writes them."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise SystemExit(f"error: {path} cannot be read: {error.strerror}") from None
    found = [_LINE.fullmatch(line) for line in lines]
    if None in found:
        raise SystemExit(f"error: {path} has a line that is no sum")
    return {each["name"]: each["digest"] for each in found if each}


if __name__ == "__main__":
    main()
