"""A tiny BERT classifier with random weights, large enough that every layer and every token matters."""

import string
from pathlib import Path

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast, PreTrainedModel

from sparse_export.checkpoint import AttentionSpec

LABELS = ("negative", "neutral", "positive")
LAYERS, HEADS, POSITIONS = 2, 4, 160
LAMBD = -1.0
ROWS, LENGTH = 7, 14


def make_tokenizer(folder: Path) -> BertTokenizerFast:
    """A WordPiece vocabulary of letters and digits: every text has about as many tokens as characters."""
    characters = string.ascii_lowercase + string.digits + ".,!?'-"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters, *(f"##{c}" for c in characters)]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    return BertTokenizerFast(str(folder / "vocab.txt"))


def make_model(attention: AttentionSpec) -> PreTrainedModel:
    """An untrained classifier that attends as told, with weights far from zero."""
    config = BertConfig(
        vocab_size=96,
        hidden_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=96,
        max_position_embeddings=POSITIONS,
        initializer_range=0.3,
        problem_type="single_label_classification",
        id2label=dict(enumerate(LABELS)),
        label2id={label: index for index, label in enumerate(LABELS)},
    )
    attention.store(config)
    torch.manual_seed(0)
    return BertForSequenceClassification(config)


def masks() -> dict[str, Tensor]:
    """Masks of every kind a client may send, `(ROWS, LENGTH)` each."""
    full = torch.ones(ROWS, LENGTH, dtype=torch.int64)
    lengths = torch.tensor([14, 1, 5, 13, 2, 14, 8])[:, None]
    column = torch.arange(LENGTH)[None]
    holes = full.clone()
    holes[:, 3::4] = 0
    holes[2, 0] = 0
    some_empty = (column < lengths).long()
    some_empty[0] = 0
    some_empty[4] = 0
    return {
        "full": full,
        "right_padded": (column < lengths).long(),
        "left_padded": (column >= LENGTH - lengths).long(),
        "holes": holes,
        "some_rows_empty": some_empty,
        "left_padded_and_empty": (column >= LENGTH - lengths).long() * (torch.arange(ROWS) != 3)[:, None],
    }


def token_ids(seed: int = 0) -> tuple[Tensor, Tensor]:
    """`input_ids` and `token_type_ids`, `(ROWS, LENGTH)` int64 each."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 80, (ROWS, LENGTH), generator=generator)
    return ids, torch.randint(0, 2, (ROWS, LENGTH), generator=generator)
