"""Tiny classifiers of every family with random weights, large enough that every layer and token matters."""

import string
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    BertTokenizerFast,
    CamembertTokenizer,
    DistilBertTokenizerFast,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaTokenizerFast,
    XLMRobertaTokenizer,
)

from sparse_export.attention.spec import AttentionSpec
from sparse_export.encoders.axis import AxisLayer
from sparse_export.encoders.diagonals import AdaptiveDiagonals
from sparse_export.encoders.extension import extension_modules
from sparse_export.encoders.extensions import attach_extensions
from sparse_export.encoders.patterned import pattern_modules
from sparse_export.encoders.projected_attention import Projections
from sparse_export.encoders.spec import ModelSpec
from sparse_export.tasks import head_of_spec
from sparse_serve.tasks import DEFAULT_TASK, Classification, MultiLabel, Regression, Task

LABELS = ("negative", "neutral", "positive")
CLASSES = Classification(LABELS)
TASKS: dict[str, Task] = {
    "sentiment": Classification(("worst", "bad", "fair", "good", "best")),
    "paraphrase": Classification(("different", "same")),
    "similarity": Regression(),
}
# Two of four read pairs.
PAIRED_TASKS: dict[str, Task] = {
    **{name: replace(task, paired=name != "sentiment") for name, task in TASKS.items()},
    "topics": MultiLabel(("art", "law")),
}
ADAPTERS = {"projected_attention": {"size": 34, "heads": 2, "share_projections": False}}
LAYERS, HEADS, POSITIONS = 2, 4, 160
# What stands between products in a graph for a processor: norms of the embeddings and twice a layer, GELU.
ROW_OPS = {"SkipLayerNormalization": 1 + 2 * LAYERS, "BiasGelu": LAYERS}
LAMBD = -1.0
ROWS, LENGTH = 7, 14

_ROBERTA_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_CHARACTERS = string.ascii_lowercase + string.digits + ".,!?'-"
_SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 96,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.3,
}
# Positions of the RoBERTa kind begin behind the padding id, which is 1.
_ROBERTA_SIZES = {**_SIZES, "max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1, "pad_token_id": 1}
_FAMILY_SIZES: dict[str, dict[str, Any]] = {
    "bert": _SIZES,
    "roberta": _ROBERTA_SIZES,
    "distilbert": {
        "dim": 64,
        "n_layers": LAYERS,
        "n_heads": HEADS,
        "hidden_dim": 96,
        "max_position_embeddings": POSITIONS,
        "initializer_range": 0.2,
    },
    "electra": {**_SIZES, "embedding_size": 24, "initializer_range": 0.2},
    "xlm-roberta": _ROBERTA_SIZES,
    "camembert": _ROBERTA_SIZES,
    "mobilebert": {
        **_SIZES,
        "embedding_size": 24,
        "intra_bottleneck_size": 32,
        "num_feedforward_networks": 2,
        "initializer_range": 0.15,
    },
}
FAMILIES = tuple(_FAMILY_SIZES)


def make_tokenizer(folder: Path, family: str = "bert") -> PreTrainedTokenizerFast:
    """A tokenizer of letters and digits: every text has about as many tokens as characters."""
    return _TOKENIZERS[family](folder)


def _word_piece(kind: type[BertTokenizerFast], folder: Path) -> PreTrainedTokenizerFast:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_CHARACTERS, *(f"##{c}" for c in _CHARACTERS)]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    return kind(str(folder / "vocab.txt"))


def _byte_level() -> PreTrainedTokenizerFast:
    # "Ġ" is the space before a word; bytes outside the vocabulary are dropped.
    words = [*_ROBERTA_SPECIAL, "Ġ", *_CHARACTERS, "Ġa"]
    return RobertaTokenizerFast(vocab={word: index for index, word in enumerate(words)}, merges=[("Ġ", "a")])


def _unigram(kind: type[XLMRobertaTokenizer | CamembertTokenizer]) -> PreTrainedTokenizerFast:
    pieces = [*((piece, 0.0) for piece in _ROBERTA_SPECIAL), *((c, -2.0) for c in ("▁", *_CHARACTERS, "▁a"))]
    return kind(vocab=pieces)


_TOKENIZERS: dict[str, Callable[[Path], PreTrainedTokenizerFast]] = {
    "bert": lambda folder: _word_piece(BertTokenizerFast, folder),
    "roberta": lambda _: _byte_level(),
    "distilbert": lambda folder: _word_piece(DistilBertTokenizerFast, folder),
    "electra": lambda folder: _word_piece(BertTokenizerFast, folder),
    "xlm-roberta": lambda _: _unigram(XLMRobertaTokenizer),
    "camembert": lambda _: _unigram(CamembertTokenizer),
    "mobilebert": lambda folder: _word_piece(BertTokenizerFast, folder),
}


def make_model(
    attention: AttentionSpec,
    family: str = "bert",
    task: Task | Mapping[str, Task] = CLASSES,
    extensions: Mapping[str, Mapping[str, Any]] | None = None,
    **sizes: int,
) -> PreTrainedModel:
    """An untrained model that attends and answers as told, with weights far from zero.

    `sizes` are entries of its config.
    """
    config = AutoConfig.for_model(family, vocab_size=96, **_FAMILY_SIZES[family] | sizes)
    tasks = {DEFAULT_TASK: task} if isinstance(task, Task) else task
    spec = ModelSpec(attention, tasks, extensions or {})
    head = head_of_spec(spec)
    head.configure(config)
    spec.store(config)
    torch.manual_seed(0)
    model: PreTrainedModel = head.models[type(config)]._from_config(config)
    with torch.no_grad():
        # Biases and norms begin at 0 and 1, where leaving one out would not show.
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    attach_extensions(model, ModelSpec.of(config))
    _learn_something(model)
    return model


@torch.no_grad()
def _learn_something(model: PreTrainedModel) -> None:
    """Have some rows, columns and diagonals of a pattern on in every layer, and some off."""
    for module in pattern_modules(model):
        if isinstance(module, AxisLayer):
            module.weight.normal_(std=0.3)
            module.bias.fill_(-1.0)
        elif isinstance(module, AdaptiveDiagonals):
            module.logits.normal_(mean=-1.0)
    for added in extension_modules(model):
        if isinstance(added, Projections):
            added.contract.weight.normal_(std=0.3)


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
