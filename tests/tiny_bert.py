"""A tiny BERT classifier with random weights, large enough that every layer and every token matters."""

import string
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast, PreTrainedModel

from sparse_export.checkpoint import AttentionSpec

LABELS = ("negative", "neutral", "positive")
LAYERS, HEADS, POSITIONS = 2, 4, 160
LAMBD = -1.0


def make_tokenizer(folder: Path) -> BertTokenizerFast:
    """A WordPiece vocabulary of letters and digits: every text has about as many tokens as characters."""
    characters = string.ascii_lowercase + string.digits + ".,!?'-"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters, *(f"##{c}" for c in characters)]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    return BertTokenizerFast(str(folder / "vocab.txt"))


def make_model(attention: AttentionSpec) -> PreTrainedModel:
    """An untrained classifier that attends as told, with weights far from zero."""
    config = BertConfig(
        vocab_size=80,
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
