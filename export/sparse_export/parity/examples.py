"""Tokenised texts that the parity gate compares executions on: of many lengths, odd ones among them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from sparse_export.encoders.families import input_names

Encoding = dict[str, list[int]]
# Arrays `(B, L)` int64 by the name of the input.
Batch = dict[str, npt.NDArray[np.int64]]

# Padded tokens of one batch: torch and the fallback form N² scores.
_BATCH_TOKENS = 1024
_LENGTHS = (3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 256)
_LONGEST = 512
# Masks that begin with a hole or have some: left padding, every third token, the last token alone.
_HIDDEN = ("01111", "00011", "101", "0")
_ODD_TEXTS = (
    "",
    " \t\n ",
    "a",
    "¿Qué? — naïve café",
    "雪が降る。 🎬🍿",
    "x" * 300,
    "no no no " * 20,
    "\u0000\u200b\ufeff",
)


@dataclass(frozen=True)
class Examples:
    """Tokenised texts, and what the model should answer to them (`Task.targets`), where that is known."""

    encodings: Sequence[Encoding]
    targets: npt.NDArray[Any] | None = None


def builtin_examples(tokenizer: PreTrainedTokenizerFast, max_length: int, texts: Sequence[str]) -> Examples:
    """Make examples of many lengths, up to `max_length` or 512 tokens, from `texts` and from odd input.

    Some are pairs, so that the segment ids of those models that have any are seen.
    """
    corpus = " ".join(texts)
    longest = min(max_length, _LONGEST)
    lengths = [*(length for length in _LENGTHS if length < longest), longest]
    encodings = [_encode(tokenizer, corpus, length) for length in lengths]
    encodings += [_encode(tokenizer, text, max_length) for text in _ODD_TEXTS]
    encodings += [
        _encode(tokenizer, text, cut, pair)
        for text, pair, cut in (
            (texts[0], texts[-1], longest),
            ("", texts[0], longest),
            (corpus, texts[0], longest),
            (texts[-1], corpus, min(longest, 64)),
        )
    ]
    encodings += [_hide(encodings[index], pattern) for index, pattern in enumerate(_HIDDEN, start=1)]
    # Every batch mixes lengths, as a server's batches do.
    return Examples([encodings[index] for index in np.random.default_rng(0).permutation(len(encodings))])


def encode_examples(
    tokenizer: PreTrainedTokenizerFast,
    max_length: int,
    texts: Sequence[tuple[str, str]],
    targets: npt.NDArray[Any] | None = None,
) -> Examples:
    """Tokenise texts and, where not empty, their second texts, cut to `max_length` tokens together."""
    return Examples([_encode(tokenizer, text, max_length, pair) for text, pair in texts], targets)


def batches(encodings: Sequence[Encoding], config: PreTrainedConfig) -> Iterator[Batch]:
    """Yield encodings in order as padded batches of what a classifier takes."""
    rows: list[Encoding] = []
    longest = 0
    for encoding in encodings:
        length = len(encoding["input_ids"])
        if rows and (len(rows) + 1) * max(longest, length) > _BATCH_TOKENS:
            yield _pad(rows, longest, config)
            rows, longest = [], 0
        rows.append(encoding)
        longest = max(longest, length)
    if rows:
        yield _pad(rows, longest, config)


def _encode(tokenizer: PreTrainedTokenizerFast, text: str, max_length: int, pair: str = "") -> Encoding:
    encoded = tokenizer(text, pair or None, truncation=True, max_length=max_length, padding=False)
    ids = encoded["input_ids"]
    return {
        "input_ids": ids,
        "attention_mask": [1] * len(ids),
        "token_type_ids": encoded.get("token_type_ids", [0] * len(ids)),
    }


def _hide(encoding: Encoding, pattern: str) -> Encoding:
    """Mask the tokens of an encoding where the repeated pattern has a 0; its last token stays."""
    mask = [int(bit) for bit, _ in zip(cycle(pattern), encoding["input_ids"], strict=False)]
    return encoding | {"attention_mask": [*mask[:-1], 1]}


def _pad(rows: Sequence[Encoding], length: int, config: PreTrainedConfig) -> Batch:
    batch = {name: np.zeros((len(rows), length), np.int64) for name in input_names(config)}
    batch["input_ids"][:] = config.pad_token_id or 0
    for index, row in enumerate(rows):
        for name, values in batch.items():
            values[index, : len(row[name])] = row[name]
    return batch
