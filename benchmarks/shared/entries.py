"""The entries that are measured, exported where they are missing or made of something else."""

import hashlib
import json
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from commands import run

from sparse_serve.digests import file_digest
from sparse_serve.op_library import library_path

SMALL_LAYERS, SMALL_WIDTH, SMALL_POSITIONS = 2, 32, 512
PACKAGES = ("sparse_export", "sparse_serve")


def export(checkpoint: Path, repository: Path, name: str, *options: str) -> None:
    """Export a checkpoint, unless the repository has what comes of it; end where it fails."""
    made_of = parts(checkpoint, *options)
    if not is_there(repository, name, made_of):
        export_anew(checkpoint, repository, name, *options)
        keep(repository, name, made_of)


def parts(checkpoint: Path, *options: str) -> dict[str, Any]:
    """Return what an entry comes of: files of the checkpoint, options, package and op library."""
    sources = hashlib.sha256()
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        for path in sorted(Path(spec.origin).parent.rglob("*.py")):
            sources.update(f"{path} {file_digest(path)}\n".encode())
    files = sorted(path for path in checkpoint.iterdir() if path.is_file())
    return {
        "checkpoint": {path.name: file_digest(path) for path in files},
        "options": [*options],
        "package": sources.hexdigest(),
        "op_library": file_digest(library_path()),
    }


def is_there(repository: Path, name: str, made_of: Mapping[str, Any]) -> bool:
    """Return whether an entry is in the repository, and was made of the same."""
    kept = record(repository, name)
    return (repository / name).exists() and kept.exists() and json.loads(kept.read_text("utf-8")) == made_of


def keep(repository: Path, name: str, made_of: Mapping[str, Any]) -> None:
    """Write down what an entry was made of."""
    record(repository, name).write_text(json.dumps(made_of, indent=2), "utf-8")


def record(repository: Path, name: str) -> Path:
    return repository / f"{name}.made_of.json"


def export_anew(checkpoint: Path, repository: Path, name: str, *options: str) -> None:
    record(repository, name).unlink(missing_ok=True)
    run("export", str(checkpoint), f"--name={name}", f"--model-repository={repository}", "--force", *options)


def export_small(checkpoint: Path, repository: Path, name: str, *options: str) -> None:
    """Export a model that costs next to nothing, with a checkpoint's tokenizer, labels and attention."""
    sizes = {
        "num_hidden_layers": SMALL_LAYERS,
        "num_attention_heads": 2,
        "hidden_size": SMALL_WIDTH,
        "intermediate_size": 2 * SMALL_WIDTH,
        "max_position_embeddings": SMALL_POSITIONS,
    }
    export_random(checkpoint, repository, name, sizes, *options)


def export_random(
    checkpoint: Path, repository: Path, name: str, sizes: Mapping[str, int], *options: str
) -> None:
    """Export a model of random weights, as a checkpoint but for some sizes, named as in its config."""
    made_of = parts(checkpoint, *options) | {"sizes": dict(sizes)}
    if is_there(repository, name, made_of):
        return
    import torch  # noqa: PLC0415  not needed by who measures
    from transformers import AutoConfig, AutoModelForSequenceClassification  # noqa: PLC0415

    from sparse_export.checkpoint import save_checkpoint  # noqa: PLC0415
    from sparse_export.encoders.tokenizer import load_tokenizer  # noqa: PLC0415

    config = AutoConfig.from_pretrained(checkpoint)
    config.update(dict(sizes))
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work, name)
        folder.mkdir()
        save_checkpoint(model, load_tokenizer(str(checkpoint)), folder)
        export_anew(folder, repository, name, *options)
    keep(repository, name, made_of)
