"""Checkpoints to inspect."""

from pathlib import Path

from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import save_checkpoint
from tiny_models import make_model, make_tokenizer


def make_checkpoint(folder: Path, attention: AttentionSpec, family: str = "bert") -> str:
    """A tiny classifier of a family, saved as it would be after fine-tuning."""
    folder.mkdir(parents=True)
    save_checkpoint(make_model(attention, family), make_tokenizer(folder, family), folder)
    return str(folder)
