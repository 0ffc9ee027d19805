"""The entries that are measured, exported where they are missing."""

import subprocess
import sysconfig
import tempfile
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
    if (repository / name).exists():
        return
    import torch  # noqa: PLC0415  not needed by who measures
    from transformers import AutoConfig, AutoModelForSequenceClassification  # noqa: PLC0415

    from sparse_export.encoders.checkpoint import save_checkpoint  # noqa: PLC0415
    from sparse_export.encoders.tokenizer import load_tokenizer  # noqa: PLC0415

    config = AutoConfig.from_pretrained(checkpoint)
    config.num_hidden_layers, config.num_attention_heads = SMALL_LAYERS, 2
    config.hidden_size, config.intermediate_size = SMALL_WIDTH, 2 * SMALL_WIDTH
    config.max_position_embeddings = SMALL_POSITIONS
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work, name)
        folder.mkdir()
        save_checkpoint(model, load_tokenizer(str(checkpoint)), folder)
        export(folder, repository, name, *options)
