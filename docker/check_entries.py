"""Exits 0 when the image's op library has the version that every entry of the model repository was made for.

Standard library only, for the image.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

LIBRARY = Path(__file__).parent / "lib" / "libsparse_ops.so"


def main() -> int:
    """Say on stderr, in one line, what keeps the repository from being served."""
    repository = Path(os.environ.get("MODEL_REPOSITORY", "/models"))
    version = ctypes.CDLL(str(LIBRARY)).SparseOpsVersion()
    for path in sorted(repository.glob("*/manifest.json")):
        try:
            wanted = json.loads(path.read_bytes())["op_library"]
            needed = version if wanted is None else wanted["version"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            return fail(f"manifest {path} cannot be read ({type(error).__name__}): export the entry again")
        if needed != version:
            return fail(
                f"entry '{path.parent.name}' was made for version {needed} of the op library, the image has "
                f"version {version}: export it again, or build the image of its release"
            )
    return 0


def fail(message: str) -> int:
    """Report an error and return the exit status that goes with it."""
    print("error:", message, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
