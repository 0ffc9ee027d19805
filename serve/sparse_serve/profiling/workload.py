"""The requests of a profile: real texts, tokenised and cut to exact lengths, mixed where a batch is."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from sparse_serve.errors import DataError, OptionError, RepositoryError

BUILT_IN = "built-in texts"
REQUESTS = 4

# Lengths of a batch go evenly from a fifth of the longest to the longest, so that their mean is 0.6 of it.
SHORTEST_SHARE = 0.2

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """One request: its texts, and their ids, mask and segments, each `(batch, length)` int64.

    `text_pairs` are the second texts, None where the texts are single.
    """

    texts: tuple[str, ...]
    arrays: dict[str, Int64]
    text_pairs: tuple[str, ...] | None = None

    @property
    def row_lengths(self) -> tuple[int, ...]:
        """True length of each row in tokens, special tokens included."""
        return tuple(int(length) for length in self.arrays["attention_mask"].sum(axis=1))


@dataclass(frozen=True)
class Workload:
    """The different requests that are sent in turn at one length; all have the same row lengths."""

    length: int
    source: str
    batches: tuple[Batch, ...]


def load_tokenizer(path: Path, max_length: int | None = None) -> Tokenizer:
    """Load a `tokenizer.json`, padding batches to their longest row and cutting at `max_length` if given.

    The truncation and padding stored in the file are reset.

    Raises:
        RepositoryError: the file is missing or no tokenizer.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise RepositoryError(f"tokenizer {path} cannot be read: {error}") from error
    tokenizer.enable_padding(pad_id=_pad_id(tokenizer))
    tokenizer.no_truncation()
    if max_length is not None:
        tokenizer.enable_truncation(max_length)
    return tokenizer


def _pad_id(tokenizer: Tokenizer) -> int:
    """Return the id that fills rows up; the mask hides it, so any id of the vocabulary would do."""
    if tokenizer.padding is not None:
        return int(tokenizer.padding["pad_id"])
    known = (tokenizer.token_to_id(token) for token in ("[PAD]", "<pad>"))
    return next((token_id for token_id in known if token_id is not None), 0)


def row_lengths(length: int, batch_size: int, shortest: int) -> tuple[int, ...]:
    """Return the true lengths of a batch's rows: the longest exactly `length`, the mean about 0.6 of it.

    A single row has exactly `length` tokens; no row has fewer than `shortest`.
    """
    if batch_size == 1:
        return (length,)
    shares = np.linspace(1.0, SHORTEST_SHARE, batch_size)
    return tuple(max(shortest, round(length * share)) for share in shares.tolist())


def make_workload(
    tokenizer: Tokenizer, texts: Sequence[str], length: int, batch_size: int, source: str = BUILT_IN
) -> Workload:
    """Make `REQUESTS` different requests of `batch_size` texts whose longest has `length` tokens.

    Raises:
        OptionError: `length` leaves no room for a token beside the tokenizer's special tokens.
        DataError: the texts cannot be cut to a length (no word of them is a single token).
    """
    special = tokenizer.num_special_tokens_to_add(False)
    if length <= special:
        raise OptionError(f"length {length} leaves no room beside the {special} special tokens; give more")
    lengths = row_lengths(length, batch_size, special + 1)
    filler = _filler(tokenizer, texts)
    batches = []
    for request in range(REQUESTS):
        first = request * batch_size
        rows = [_cut(tokenizer, texts, first + row, true, filler) for row, true in enumerate(lengths)]
        batches.append(make_batch(tokenizer, rows))
    return Workload(length, source, tuple(batches))


def make_batch(tokenizer: Tokenizer, texts: Sequence[str], text_pairs: Sequence[str] | None = None) -> Batch:
    """Tokenise texts, or pairs of texts, and pad them to the longest."""
    rows = list(texts) if text_pairs is None else list(zip(texts, text_pairs, strict=True))
    encodings = tokenizer.encode_batch(rows)
    arrays = {
        "input_ids": [encoding.ids for encoding in encodings],
        "attention_mask": [encoding.attention_mask for encoding in encodings],
        "token_type_ids": [encoding.type_ids for encoding in encodings],
    }
    return Batch(
        tuple(texts),
        {name: np.array(values, dtype=np.int64) for name, values in arrays.items()},
        None if text_pairs is None else tuple(text_pairs),
    )


def _cut(tokenizer: Tokenizer, texts: Sequence[str], first: int, length: int, filler: str) -> str:
    """Return a text of exactly `length` tokens that begins with text `first` modulo their count."""
    words = " ".join(islice(cycle(texts), first % len(texts), first % len(texts) + len(texts)))
    while len(offsets := tokenizer.encode(words, add_special_tokens=False).offsets) < length:
        words = f"{words} {words}"
    end = offsets[length - tokenizer.num_special_tokens_to_add(False) - 1][1]
    text = words[:end] if words[end : end + 1] in ("", " ") else words[: max(0, words.rfind(" ", 0, end))]
    while (count := len(tokenizer.encode(text).ids)) < length:
        text = f"{text} {filler}".lstrip()
    if count != length:
        raise DataError(
            f"the texts could not be cut to {length} tokens: this tokenizer makes {count} of them; "
            "give other texts with --inputs"
        )
    return text


def _filler(tokenizer: Tokenizer, texts: Sequence[str]) -> str:
    """Return a word that adds exactly one token wherever it is appended."""
    for word in dict.fromkeys(word for text in texts for word in text.split()):
        if len(tokenizer.encode(f"{word} {word} {word}", add_special_tokens=False).ids) == 3:
            return word
    raise DataError(
        "no word of the texts is a single token to this tokenizer; give other texts with --inputs"
    )
