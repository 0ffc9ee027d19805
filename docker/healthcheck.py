"""Exits 0 when every entry of the model repository classifies a text.

Readiness does not tell: Triton calls a model ready though the Python process behind it has died.
Standard library only, for the image.
"""

import json
import os
import sys
from http.client import HTTPConnection, HTTPException
from pathlib import Path

REQUEST = {
    "inputs": [{"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["health check"]}],
    "outputs": [{"name": "label"}],
}


def main() -> int:
    """Ask each entry in turn; say on stderr which one does not answer."""
    repository = Path(os.environ.get("MODEL_REPOSITORY", "/models"))
    entries = sorted(path.parent.name for path in repository.glob("*/manifest.json"))
    if not entries:
        print(f"no entry in {repository}", file=sys.stderr)
        return 1
    for name in entries:
        connection = HTTPConnection("127.0.0.1", int(os.environ.get("HTTP_PORT", "8000")), timeout=8)
        try:
            connection.request("POST", f"/v2/models/{name}/infer", json.dumps(REQUEST))
            response = connection.getresponse()
            answer = response.read().decode()
        except (OSError, HTTPException) as error:
            print(f"{name} does not answer: {error}", file=sys.stderr)
            return 1
        finally:
            connection.close()
        if response.status != 200:
            print(f"{name} answers {response.status}: {answer}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
