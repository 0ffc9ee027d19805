"""Writes `model_repository/sample`: a tiny, untrained SSAF classifier, to look at and to try commands on.

    python tests/serve/make_sample.py

Run it again when what an entry is made of changes; `test_sample.py` says when.
"""

import os
import sys
import tempfile
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification

from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import save_checkpoint
from sparse_export.cli import main
from sparse_export.encoders.spec import store_attention

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))


def write_checkpoint(folder: Path) -> None:
    """An encoder of 16 numbers per token that reads letters, its weights drawn from one seed."""
    from tiny_models import make_tokenizer  # noqa: PLC0415  found only by the path set above

    config = BertConfig(
        vocab_size=96,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        initializer_range=0.3,
        problem_type="single_label_classification",
        id2label={0: "negative", 1: "positive"},
        label2id={"negative": 0, "positive": 1},
    )
    store_attention(config, AttentionSpec(-4.0))
    torch.manual_seed(0)
    model = BertForSequenceClassification(config)
    folder.mkdir()
    with tempfile.TemporaryDirectory() as vocabulary:
        save_checkpoint(model, make_tokenizer(Path(vocabulary)), folder)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)  # the manifest keeps the command as it is given: without folders of this machine
        write_checkpoint(Path("checkpoint"))
        Path("model_repository").symlink_to(ROOT / "model_repository")
        sys.argv[1:] = ["export", "checkpoint", "--name", "sample", "--force"]
        main()
