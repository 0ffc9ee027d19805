"""The entry point of the image, and its check of the repository, run without a container engine."""

import os
import subprocess
import sys
from pathlib import Path

# Prints its arguments, one a line.
FAKE_TRITON = """#!/bin/sh
if [ "$1" = --help ]; then
  echo "  --allow-vertex-ai <boolean>" >&2
  exit 1
fi
printf '%s\\n' "$@"
"""


def entrypoint(image: Path, triton: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    """Run the entry point with `triton` as the `tritonserver` on its PATH."""
    programs = image / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "tritonserver").write_text(triton)
    (programs / "tritonserver").chmod(0o755)
    return subprocess.Popen(
        ["sh", str(image / "entrypoint.sh"), *arguments],
        env=environment | {"PATH": f"{programs}:{environment.get('PATH', os.environ['PATH'])}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def check_in_image(image: Path, repository: Path, **environment: str) -> str:
    """What the image's own check says of a repository; "" where nothing is wrong."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(image / "check_entries.py")],
        env={"MODEL_REPOSITORY": str(repository), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (1 if done.stderr else 0)
    assert done.stderr.count("\n") <= 1
    return done.stderr
