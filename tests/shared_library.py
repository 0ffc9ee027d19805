"""C++ beside the tests, compiled to what a process of Python or of any kind loads."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

_FLAGS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread")


def compile_library(library: Path, sources: Sequence[Path], *options: str) -> None:
    """Compile sources to a shared library. Needs a C++ compiler, CXX or g++."""
    compiler = os.environ.get("CXX") or "g++"
    subprocess.run([compiler, *_FLAGS, "-o", str(library), *map(str, sources), *options], check=True)
