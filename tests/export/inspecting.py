"""Checkpoints to inspect."""

from pathlib import Path

from sparse_export.encoders.checkpoint import AttentionSpec, save_classifier
from tiny_models import make_model, make_tokenizer


def save_checkpoint(folder: Path, attention: AttentionSpec, family: str = "bert") -> str:
    """A tiny classifier of a family, saved as it would be after fine-tuning."""
    folder.mkdir(parents=True)
    save_classifier(make_model(attention, family), make_tokenizer(folder, family), folder)
    return str(folder)
