"""The entries that are measured, exported where they are missing."""

import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

COMMAND = Path(sysconfig.get_path("scripts"), "sparse-serve")
SMALL_LAYERS, SMALL_WIDTH, SMALL_POSITIONS = 2, 32, 512


def export(checkpoint: Path, repository: Path, name: str, *options: str) -> None:
    """Export a checkpoint, unless the repository has an entry of that name; end where it fails."""
    if (repository / name).exists():
        return
    place = (f"--name={name}", f"--model-repository={repository}")
    ended = subprocess.run([COMMAND, "export", str(checkpoint), *place, *options], check=False)
    if ended.returncode:
        raise SystemExit(ended.returncode)


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
    if (repository / name).exists():
        return
    import torch  # noqa: PLC0415  not needed by who measures
    from transformers import AutoConfig, AutoModelForSequenceClassification  # noqa: PLC0415

    from sparse_export.encoders.checkpoint import save_checkpoint  # noqa: PLC0415
    from sparse_export.encoders.tokenizer import load_tokenizer  # noqa: PLC0415

    config = AutoConfig.from_pretrained(checkpoint)
    config.update(dict(sizes))
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work, name)
        folder.mkdir()
        save_checkpoint(model, load_tokenizer(str(checkpoint)), folder)
        export(folder, repository, name, *options)
