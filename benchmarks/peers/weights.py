"""One checkpoint as every candidate takes it: the same weights, attended with dense softmax."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparse_serve.errors import OptionError

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from entries import export

OWN_KEY = "sparse_serve"
WEIGHTS, CONFIG = "model.safetensors", "config.json"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
ENTRIES: Mapping[str, Sequence[str]] = {
    "dense_fp32": (),
    "dense_int8": ("--dtype=int8",),
    "ssaf_fp32": ("--attention=sparsegen", "--lambda=-4"),
    "ssaf_int8": ("--attention=sparsegen", "--lambda=-4", "--dtype=int8"),
}
"""Our entries, and what they are exported with; sparsegen adds no weights."""


def plain_checkpoint(checkpoint: Path, models: Path) -> Path:
    """Return a checkpoint without what this package adds to its configuration, made where it is missing.

    Transformers then attends with softmax, as every peer does. Its folder, `models/DIGEST/plain`, has the
    weights' digest in its name, so that nothing made of other weights is measured.

    Raises:
        OptionError: a file of the checkpoint is missing, or it is none that all peers can serve.
    """
    for name in (WEIGHTS, CONFIG, *TOKENIZER):
        if not (checkpoint / name).is_file():
            raise OptionError(f"{checkpoint} has no {name}: give the folder of a checkpoint of Transformers")
    config = json.loads((checkpoint / CONFIG).read_text("utf-8"))
    own = config.pop(OWN_KEY, {})
    if config.get("architectures") != ["BertForSequenceClassification"] or own.get("extensions"):
        raise OptionError(f"{checkpoint} is no plain BERT classifier: not all peers can serve it")
    config_text = json.dumps(config, indent=2, sort_keys=True)
    digest = hashlib.sha256((checkpoint / WEIGHTS).read_bytes() + config_text.encode()).hexdigest()[:12]
    plain = models / digest / "plain"
    plain.mkdir(parents=True, exist_ok=True)
    for name in (WEIGHTS, *TOKENIZER):
        shutil.copyfile(checkpoint / name, plain / name)
    (plain / CONFIG).write_text(config_text, "utf-8")
    return plain


def export_onnx(plain: Path, programs: Path) -> None:
    """Have optimum write its graphs beside the plain checkpoint, unless they are there.

    Raises:
        RuntimeError: it failed.
    """
    folder = plain.parent
    if any((folder / "int8").glob("*.onnx")):  # the last that it writes
        return
    script = Path(__file__).with_name("export_onnx.py")
    command = [str(programs / "python"), str(script), str(plain), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"optimum's export: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}")


def export_entries(plain: Path, repository: Path) -> None:
    """Export our entries, by the package as it is now."""
    for name, options in ENTRIES.items():
        export(plain, repository, name, *options)
