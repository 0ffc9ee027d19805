"""Texts as a graph takes them: tokens, cut or in windows, in rows that are filled up to one length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparse_serve.errors import TaskError, in_brief

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

Pairs = Sequence[str | None] | None
"""The second text of each row, None where a row has none; None where no row has."""

TASK_IDS = "task_ids"
"""The input of a graph of several tasks that says which one each row is of, INT64 [-1, 1]."""


@dataclass(frozen=True)
class EncodedText:
    """One text, or pair of texts, as tokens.

    Attributes:
        text: what offsets speak of: the context where a question is asked about one, else the text itself.
        windows: rows of the graph, one or more.
        truncated: whether tokens were left out of all windows.
        task: the name of the task that it is of, where a model has several.
    """

    text: str
    windows: tuple["Encoding", ...]
    truncated: bool
    task: str | None = None

    @property
    def token_count(self) -> int:
        """The tokens of all windows, special ones included."""
        return sum(map(len, self.windows))


def load_tokenizer(path: Path) -> "Tokenizer":
    """Read a `tokenizer.json`.

    Raises:
        TaskError: the file cannot be read as one.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415  who asks a server reads texts with none

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise TaskError(f"{path.name} cannot be read: {in_brief(error)}") from None


def pad_id(tokenizer: "Tokenizer") -> int:
    """Return the id that fills rows up; the mask hides it, so any id of the vocabulary will do."""
    if tokenizer.padding is not None:
        return int(tokenizer.padding["pad_id"])
    known = (tokenizer.token_to_id(token) for token in ("[PAD]", "<pad>"))
    return next((token_id for token_id in known if token_id is not None), 0)


def graph_inputs(windows: Sequence["Encoding"], filler: int) -> dict[str, npt.NDArray[np.int64]]:
    """Return N windows as `input_ids`, `attention_mask` and `token_type_ids`, each `(N, L)` int64.

    L is the longest window's length; shorter rows are filled up with the id `filler`, masked.
    """
    shape = (len(windows), max(map(len, windows)))
    arrays = {
        "input_ids": np.full(shape, filler, dtype=np.int64),
        "attention_mask": np.zeros(shape, dtype=np.int64),
        "token_type_ids": np.zeros(shape, dtype=np.int64),
    }
    for row, window in enumerate(windows):
        arrays["input_ids"][row, : len(window)] = window.ids
        arrays["attention_mask"][row, : len(window)] = 1
        arrays["token_type_ids"][row, : len(window)] = window.type_ids
    return arrays


def of_tasks(encoded: Sequence[EncodedText], names: Sequence[str | None]) -> list[EncodedText]:
    """Return N texts, each with the name of the task that it is of, None on a model of one."""
    return [replace(text, task=name) for text, name in zip(encoded, names, strict=True)]


def encode_cut(
    tokenizer: "Tokenizer", texts: Sequence[str], pairs: Pairs, max_length: int, *, offsets: bool = False
) -> list[EncodedText]:
    """Encode texts, or pairs, in one window each, cut at `max_length` tokens from the right.

    Of a pair the longer text is cut first. Only with `offsets` do windows know where in the text they are.
    """
    # What the file says of padding and truncation belongs to training.
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length, strategy="longest_first", direction="right")
    rows = [text if pair is None else (text, pair) for text, pair in _rows(texts, pairs)]
    encode = tokenizer.encode_batch if offsets else tokenizer.encode_batch_fast
    return [
        EncodedText(text, (encoding,), bool(encoding.overflowing))
        for text, encoding in zip(texts, encode(rows), strict=True)
    ]


def encode_windows(
    tokenizer: "Tokenizer", texts: Sequence[str], pairs: Sequence[str], max_length: int, stride: int
) -> list[EncodedText]:
    """Encode pairs in as many windows of `max_length` tokens as the second text takes, the first in each.

    Windows overlap by `stride` tokens, or by half of the room that they have for the second text where that
    is less, so that they advance. Where a pair does not fit into one window and its first text would take
    more than half of the room, the first text is cut to half, and the row is truncated.
    """
    tokenizer.no_padding()
    tokenizer.no_truncation()
    room = max_length - tokenizer.num_special_tokens_to_add(True)
    firsts = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    cut: dict[int, str] = {}
    by_overlap: dict[int, list[int]] = {}
    for row, first in enumerate(firsts):
        length = len(first)
        if length > room // 2 and length + _count(tokenizer, pairs[row]) > room:
            cut[row], length = _cut(tokenizer, texts[row], first, room // 2)
        by_overlap.setdefault(min(stride, (room - length) // 2), []).append(row)
    encoded: dict[int, EncodedText] = {}
    for overlap, rows in by_overlap.items():
        tokenizer.enable_truncation(max_length, stride=overlap, strategy="only_second", direction="right")
        encodings = tokenizer.encode_batch([(cut.get(row, texts[row]), pairs[row]) for row in rows])
        for row, encoding in zip(rows, encodings, strict=True):
            encoded[row] = EncodedText(pairs[row], (encoding, *encoding.overflowing), row in cut)
    return [encoded[row] for row in range(len(texts))]


def _count(tokenizer: "Tokenizer", text: str) -> int:
    return len(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0])


def _cut(tokenizer: "Tokenizer", text: str, encoding: "Encoding", most: int) -> tuple[str, int]:
    """Return the beginning of a text that is at most so many tokens, and how many it is."""
    offsets = encoding.offsets
    for kept in range(most, 0, -1):
        beginning = text[: offsets[kept - 1][1]]
        # A word that is cut can be other pieces than it began with.
        length = _count(tokenizer, beginning)
        if length <= most:
            return beginning, length
    return "", 0


def _rows(texts: Sequence[str], pairs: Pairs) -> list[tuple[str, str | None]]:
    return list(zip(texts, [None] * len(texts) if pairs is None else pairs, strict=True))


def softmax(logits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return exp(logit) over its sum along the last axis."""
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities: npt.NDArray[Any] = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities


def text_column(rows: Sequence[str]) -> npt.NDArray[np.object_]:
    """Return N texts as a column `(N, 1)` of UTF-8."""
    column = np.empty((len(rows), 1), dtype=np.object_)
    column[:, 0] = [row.encode() for row in rows]
    return column


Columns = Mapping[str, npt.NDArray[Any]]
"""What a model answers, by the name of the tensor; one row a text."""
