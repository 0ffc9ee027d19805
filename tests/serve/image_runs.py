"""The entry point of the image, and its check of the repository, run without a container engine."""

import os
import subprocess
import sys
from pathlib import Path

from fake_triton import write_triton


def entrypoint(image: Path, triton: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    """Run the entry point with `triton` as the `tritonserver` on its PATH."""
    programs = image / "bin"
    write_triton(programs, triton)
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
