"""Scripts in the place of Triton, which tell what it is started with."""

from pathlib import Path

PRINTING_TRITON = """#!/bin/sh
if [ "$1" = --help ]; then
  echo "  --allow-vertex-ai <boolean>" >&2
  exit 1
fi
printf '%s\\n' "$@"
"""
"""Prints its arguments, one a line."""

RECORDING_TRITON = """#!/bin/sh
if [ "$1" = --help ]; then
  printf '  --model-repository <string>\\n  --http-address <string>\\n  --http-restricted-api <x>\\n'
  exit
fi
printf '%s\\n' "$LD_LIBRARY_PATH" "$@" > {record}
echo "error: fake" >&2
exit 1
"""
"""Writes where it looks for libraries and its arguments to the file `record`, and fails."""


def write_triton(programs: Path, script: str) -> None:
    """Put a script into a folder of programs as `tritonserver`."""
    programs.mkdir(exist_ok=True)
    (programs / "tritonserver").write_text(script)
    (programs / "tritonserver").chmod(0o755)
