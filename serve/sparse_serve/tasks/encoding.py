"""Texts as a graph takes them: tokens, cut or in windows, in rows that are filled up to one length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from sparse_serve.errors import TaskError, in_brief

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

Pairs = Sequence[str | None] | None
"""The second text of each row, None where a row has none; None where no row has."""

TASK_IDS = "task_ids"
"""The input of a graph of several tasks that says which one each row is of, INT64 [-1, 1]."""

Truncation = Literal["right", "left", "error"]
"""What becomes of a text with more tokens than are read: it loses its end or its begin, or is refused."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class CutEncoding:
    """The tokens that are left of an encoding, each with what the encoding says of it."""

    whole: "Encoding"
    kept: Sequence[int]

    def __len__(self) -> int:
        return len(self.kept)

    @cached_property
    def ids(self) -> list[int]:
        """The tokens."""
        return self._of(self.whole.ids)

    @cached_property
    def type_ids(self) -> list[int]:
        """The segment of each."""
        return self._of(self.whole.type_ids)

    @property
    def tokens(self) -> list[str]:
        """Each as it is written in the vocabulary."""
        return self._of(self.whole.tokens)

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Where each was in its text."""
        return self._of(self.whole.offsets)

    @property
    def sequence_ids(self) -> list[int | None]:
        """Which text each is of, 0 or 1; None for special ones."""
        return self._of(self.whole.sequence_ids)

    @property
    def word_ids(self) -> list[int | None]:
        """Which word of its text each is of."""
        return self._of(self.whole.word_ids)

    def _of(self, values: list[Value]) -> list[Value]:
        return [values[place] for place in self.kept]


Window: TypeAlias = "Encoding | CutEncoding"
"""A row of a graph."""


@dataclass(frozen=True)
class EncodedText:
    """One text, or pair of texts, as tokens.

    Attributes:
        text: what offsets speak of: the context where a question is asked about one, else the text itself.
        windows: rows of the graph, one or more.
        truncated: whether tokens were left out of all windows.
        length: tokens of what is cut where it has more than `limit`: of the row, special ones included, or
            of a question.
        limit: how many of them are read.
        task: the name of the task that it is of, where a model has several.
    """

    text: str
    windows: tuple[Window, ...]
    truncated: bool
    length: int = 0
    limit: int = 0
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


def graph_inputs(windows: Sequence[Window], filler: int) -> dict[str, npt.NDArray[np.int64]]:
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
    tokenizer: "Tokenizer",
    texts: Sequence[str],
    pairs: Pairs,
    max_length: int,
    truncation: Truncation = "right",
    *,
    offsets: bool = False,
) -> list[EncodedText]:
    """Encode texts, or pairs, in one window each, cut at `max_length` tokens: from the left, or the right.

    Of a pair the longer text is cut first. Only with `offsets` do windows know where in the text they are.
    """
    # What the file says of padding and truncation belongs to training. Cutting is done here, because the
    # library makes a row of every two parts that it cuts off a pair: gigabytes, where both are long.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    rows = [text if pair is None else (text, pair) for text, pair in _rows(texts, pairs)]
    encode = tokenizer.encode_batch if offsets else tokenizer.encode_batch_fast
    return [
        EncodedText(
            text,
            (_cut_encoding(encoding, max_length, truncation),),
            len(encoding) > max_length,
            len(encoding),
            max_length,
        )
        for text, encoding in zip(texts, encode(rows), strict=True)
    ]


def _cut_encoding(encoding: "Encoding", max_length: int, truncation: Truncation) -> Window:
    """Return what is left where a row may have so many tokens: "longest_first" of the library.

    The shorter text keeps half of what special tokens leave, or all that it has, and the longer the rest;
    an odd token is the longer's, the second's where they are equal.
    """
    if len(encoding) <= max_length:
        return encoding
    own: dict[int | None, list[int]] = {None: [], 0: [], 1: []}
    for place, sequence in enumerate(encoding.sequence_ids):
        own[sequence].append(place)
    special, first, second = own.values()
    budget = max_length - len(special)
    if len(first) > len(second):
        of_second = min(len(second), budget // 2)
        of_first = budget - of_second
    else:
        of_first = min(len(first), budget // 2)
        of_second = budget - of_first
    if truncation == "left":
        first, second = first[len(first) - of_first :], second[len(second) - of_second :]
    return CutEncoding(encoding, sorted([*special, *first[:of_first], *second[:of_second]]))


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
            windows = (encoding, *encoding.overflowing)
            encoded[row] = EncodedText(pairs[row], windows, row in cut, len(firsts[row]), room // 2)
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
