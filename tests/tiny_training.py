"""A tiny encoder and labelled rows that it learns in seconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor
from transformers import BertConfig, BertModel, BertTokenizerFast

import sparse_export.training.trainer as trainer_module
from sparse_export.training import FinetuneOptions, FinetuneRecord
from sparse_export.training.callbacks import Steering

GOOD = ("good", "fine", "lovely", "great")
BAD = ("bad", "poor", "dull", "awful")
NEUTRAL = ("the", "film", "is", "a", "very", "story")
LAYERS, POSITIONS = 2, 24

FAST = FinetuneOptions(epochs=2, learning_rate=5e-3, batch_size=8, warmup_ratio=0, seed=1)


def make_encoder(folder: Path, *, dropout: float = 0.1) -> Path:
    """A two-layer BERT with random weights and a WordPiece vocabulary of whole words."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *NEUTRAL, *GOOD, *BAD)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=POSITIONS,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        initializer_range=0.1,  # large enough for few steps to matter
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def write_rows(path: Path, count: int, names: tuple[str, str] = ("negative", "positive")) -> Path:
    """A TSV file whose labels its words decide; texts have 4 to 8 words."""
    lines = ["text_a\tlabel"]
    for number in range(count):
        words = (BAD, GOOD)[number % 2]
        # The text grows with the number, so that batches of mixed lengths occur.
        text = f"the film is {'very ' * (number % 5)}{words[number // 2 % 4]}"
        lines.append(f"{text}\t{names[number % 2]}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def weights(checkpoint: Path) -> dict[str, Tensor]:
    """A checkpoint's tensors by name."""
    return load_file(checkpoint / "model.safetensors")


def expect_equal_figures(one: FinetuneRecord, other: FinetuneRecord) -> None:
    """Two runs that differ in the order of their sums alone."""
    for mine, theirs in zip(one.epochs, other.epochs, strict=True):
        assert mine.train_loss == pytest.approx(theirs.train_loss, abs=1e-5)
        assert mine.eval_loss == pytest.approx(theirs.eval_loss, abs=1e-5)
        assert mine.metrics == theirs.metrics
    assert one.best_epoch == other.best_epoch


@contextmanager
def interrupted_after(step: int) -> Iterator[None]:
    """Have the user press Ctrl-C after so many steps of the run in the block, which must not outlive it."""

    class Interrupting(Steering):
        def on_step_begin(self, *args: Any, **_: Any) -> None:
            if args[1].global_step == step:
                raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module, "Steering", Interrupting)
        with pytest.raises(KeyboardInterrupt):
            yield


def told(console: Console) -> str:
    """Return what a training has said on a console that writes to memory."""
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()
