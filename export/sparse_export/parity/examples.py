"""Tokenised texts that the parity gate compares executions on: of many lengths, odd ones among them.

They are encoded by the task, as the served model encodes what clients send.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, cycle
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from transformers import PreTrainedConfig

from sparse_export.graph.inputs import BATCH, SEQUENCE, graph_inputs
from sparse_serve.data import TextData
from sparse_serve.errors import DataError
from sparse_serve.runs import RUN_TOKENS
from sparse_serve.tasks import TASK_IDS, Embedding, EncodedText, Several, Task
from sparse_serve.tasks.encoding import Truncation, Window, encode_cut

Row = dict[str, list[int]]
"""One row of a graph, by the name of the input."""
# Arrays `(B, L)` int64 by the name of the input.
Batch = dict[str, npt.NDArray[np.int64]]

# Padded tokens of one batch: torch and the fallback form N² scores.
_BATCH_TOKENS = 1024
# Of one that a graph divides into runs.
_SEVERAL_RUNS = 4 * RUN_TOKENS
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
_CALIBRATION_ROWS, _CALIBRATION_TOKENS = 512, 32 * 1024
# So many windows of the longest text are compared where a task reads a text of any length in windows.
_WINDOWS = 3


@dataclass(frozen=True)
class Examples:
    """Rows of the graph: the windows of texts, and rows that no text makes.

    Attributes:
        texts: as the task encodes them.
        others: rows besides, that no answer is read from; of several tasks, they are of each in turn.
        targets: what the model should answer to the texts (`Task.targets`), where that is known.
        is_mixed: whether rows run in another order than theirs, so that every batch mixes lengths and
            tasks, as a server's batches do.
        tasks: the number of each task, of a model of several.
    """

    texts: Sequence[EncodedText]
    others: Sequence[Row] = ()
    targets: npt.NDArray[Any] | None = None
    is_mixed: bool = False
    tasks: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> list[Row]:
        """All rows, those of the texts first."""
        windows = [(text.task, window) for text in self.texts for window in text.windows]
        rows = [*(_row(window) for _, window in windows), *self.others]
        if not self.tasks:
            return rows
        others = zip(self.others, cycle(self.tasks.values()), strict=False)
        ids = [*(self.tasks[task or ""] for task, _ in windows), *(number for _, number in others)]
        return [row | {TASK_IDS: [number]} for row, number in zip(rows, ids, strict=True)]

    @property
    def order(self) -> npt.NDArray[np.int64]:
        """The order in which the rows run, by their numbers."""
        count = len(self.rows)
        return np.random.default_rng(0).permutation(count) if self.is_mixed else np.arange(count)


def builtin_examples(task: Task, tokenizer: Tokenizer, max_length: int, texts: Sequence[str]) -> Examples:
    """Make examples of many lengths, up to `max_length` or 512 tokens, from `texts` and from odd input.

    Some are pairs, so that the segment ids of those models that have any are seen.
    """
    corpus = " ".join(texts)
    longest = min(max_length, _LONGEST)
    lengths = [*(length for length in _LENGTHS if length < longest), longest]
    needs_pair = task.text_pair == "required"
    pair = texts[0] if needs_pair else None
    encoded = [_cut(tokenizer, corpus, pair, length) for length in lengths]
    odd: list[tuple[str, str | None]] = [(text, None) for text in _ODD_TEXTS]
    if needs_pair:
        # Questions about odd contexts, odd questions, and a context of several windows.
        long = " ".join([corpus] * (1 + _WINDOWS * 4 * max_length // len(corpus)))
        odd = [*((texts[0], text) for text in _ODD_TEXTS), *((text, texts[0]) for text in _ODD_TEXTS)]
        odd.append((texts[0], long[: _WINDOWS * 4 * max_length]))
    encoded += task.encode(tokenizer, [text for text, _ in odd], [second for _, second in odd], max_length)
    pairs = [
        _cut(tokenizer, text, second, cut)
        for text, second, cut in (
            (texts[0], texts[-1], longest),
            ("", texts[0], longest),
            (corpus, texts[0], longest),
            (texts[-1], corpus, min(longest, 64)),
        )
    ]
    others = _hidden(encoded[1:])
    if task.text_pair == "refused":
        others += [_row(each.windows[0]) for each in pairs]
    else:
        encoded += pairs
    return Examples(_of_each_task(task, encoded), others, is_mixed=True, tasks=_task_numbers(task))


def text_examples(task: Task, tokenizer: Tokenizer, max_length: int, texts: Sequence[str]) -> Examples:
    """Encode a user's texts; where a second text is needed, each is it, and the first one is asked of all.

    Beside them are some with masked tokens, and a pair.
    """
    needs_pair = task.text_pair == "required"
    firsts, pairs = ([texts[0]] * len(texts), texts) if needs_pair else (texts, None)
    encoded = task.encode(tokenizer, firsts, pairs, max_length)
    pair = _cut(tokenizer, texts[0], texts[-1], max_length)
    others = [*_hidden(encoded), _row(pair.windows[0])]
    return Examples(_of_each_task(task, encoded), others, tasks=_task_numbers(task))


def reading_examples(
    task: Task, tokenizer: Tokenizer, max_length: int, truncation: Truncation, texts: Sequence[str]
) -> tuple[list[tuple[str, str | None]], Examples]:
    """Return what a graph that takes text is asked, and its tokens: `texts`, and odd and long ones.

    Of tasks that read pairs each text has another beside it; of several tasks each is asked as it reads.
    """
    first = [*_ODD_TEXTS, *texts, " ".join(texts)]
    second = [*first[1:], first[0]]
    asked: list[tuple[str, str | None]] = []
    encoded: list[EncodedText] = []
    for name, each in task.tasks.items() if isinstance(task, Several) else [(None, task)]:
        pairs = second if each.reads_pairs else [None] * len(first)
        asked += zip(first, pairs, strict=True)
        rows = task.encode(tokenizer, first, pairs, max_length, truncation)
        encoded += [replace(row, task=name) for row in rows]
    return asked, Examples(encoded, tasks=_task_numbers(task))


def labelled_examples(
    task: Task, tokenizer: Tokenizer, max_length: int, truncation: Truncation, data: TextData
) -> Examples:
    """Encode what a model is asked on labelled rows, with what it should answer.

    Raises:
        DataError: a row has more tokens than are read, and `truncation` is "error".
    """
    texts, pairs = task.asked(data)
    encoded = task.encode(tokenizer, texts, pairs, max_length, truncation)
    for text, row in zip(texts, encoded, strict=True):
        if truncation == "error" and row.truncated:
            raise DataError(
                f"{data.source}: {text!r:.40} has {row.length} tokens, at most {row.limit} are read with "
                "--truncation error: leave the row out"
            )
    return Examples(encoded, targets=task.targets(data))


def calibration_examples(
    task: Task, tokenizer: Tokenizer, max_length: int, truncation: Truncation, data: TextData
) -> Examples:
    """Encode what a model is asked on rows by which weights are rounded: of many, drawn ones.

    Raises:
        DataError: they are pairs where it reads single texts, or the other way round.
    """
    # Single texts make no pairs to judge embeddings by, but they are what is embedded.
    is_pair_alone = isinstance(task, Embedding) and not data.has_pairs
    texts, pairs = Task.asked(task, data) if is_pair_alone else task.asked(data)
    if task.text_pair == "optional" and (pairs is not None) != task.reads_pairs:
        has, reads = ("pairs of", "single") if pairs is not None else ("single", "pairs of")
        raise DataError(
            f"{data.source} has {has} texts, where the model reads {reads} texts: give rows like those that "
            "it will be asked"
        )
    numbers = random.Random(0).sample(range(len(texts)), min(len(texts), _CALIBRATION_ROWS))
    seconds = None if pairs is None else [pairs[number] for number in numbers]
    encoded = task.encode(tokenizer, [texts[number] for number in numbers], seconds, max_length, truncation)
    so_far = accumulate((sum(len(window.ids) for window in text.windows) for text in encoded), initial=0)
    return Examples(
        [text for text, tokens in zip(encoded, so_far, strict=False) if tokens < _CALIBRATION_TOKENS]
    )


def batches(
    rows: Sequence[Row], config: PreTrainedConfig, most_tokens: int = _BATCH_TOKENS
) -> Iterator[Batch]:
    """Yield rows in order as padded batches of what a model of this config takes.

    Each has `most_tokens` with its padding at most, or one row.
    """
    together: list[Row] = []
    longest = 0
    for row in rows:
        length = len(row["input_ids"])
        if together and (len(together) + 1) * max(longest, length) > most_tokens:
            yield _pad(together, longest, config)
            together, longest = [], 0
        together.append(row)
        longest = max(longest, length)
    if together:
        yield _pad(together, longest, config)


def several_runs(rows: Sequence[Row], config: PreTrainedConfig) -> tuple[list[int], list[Batch]]:
    """Return the numbers of rows, and padded batches of them in that order, which a graph divides into runs.

    Each row is there as often as it takes, and beside others of its length, as padding fills no run.
    """
    tokens = sum(sum(row["attention_mask"]) for row in rows)
    numbers = [*range(len(rows))] * -(-_SEVERAL_RUNS // tokens)
    numbers.sort(key=lambda number: len(rows[number]["input_ids"]))
    return numbers, list(batches([rows[number] for number in numbers], config, _SEVERAL_RUNS))


def _of_each_task(task: Task, texts: Sequence[EncodedText]) -> Sequence[EncodedText]:
    """Return each text once, or for each of several tasks."""
    if not isinstance(task, Several):
        return texts
    return [replace(text, task=name) for text in texts for name in task.tasks]


def _task_numbers(task: Task) -> dict[str, int]:
    return {name: task.number(name) for name in task.tasks} if isinstance(task, Several) else {}


def _cut(tokenizer: Tokenizer, text: str, pair: str | None, length: int) -> EncodedText:
    (encoded,) = encode_cut(tokenizer, [text], [pair], length, offsets=True)
    return encoded


def _row(window: Window) -> Row:
    return {
        "input_ids": window.ids,
        "attention_mask": [1] * len(window.ids),
        "token_type_ids": window.type_ids,
    }


def _hidden(texts: Sequence[EncodedText]) -> list[Row]:
    """Return a row with each of the `_HIDDEN` masks, of these texts in turn."""
    return [_hide(_row(text.windows[0]), mask) for text, mask in zip(cycle(texts), _HIDDEN, strict=False)]


def _hide(row: Row, pattern: str) -> Row:
    """Mask the tokens of a row where the repeated pattern has a 0; its last token stays."""
    mask = [int(bit) for bit, _ in zip(cycle(pattern), row["input_ids"], strict=False)]
    return row | {"attention_mask": [*mask[:-1], 1]}


def _pad(rows: Sequence[Row], length: int, config: PreTrainedConfig) -> Batch:
    sizes = {BATCH: len(rows), SEQUENCE: length}
    batch = {each.name: each.example(sizes).numpy() for each in graph_inputs(config)}
    batch["input_ids"][:] = config.pad_token_id or 0
    for index, row in enumerate(rows):
        for name, values in batch.items():
            values[index, : len(row[name])] = row[name]
    return batch
