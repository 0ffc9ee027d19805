"""Tokens of a corpus, on disk: rows are mapped into memory as they are asked for, however many there are."""

from collections.abc import Collection, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import overload

import datasets
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from sparse_export.encoders.families import input_names
from sparse_export.tasks.trained import Encoded
from sparse_serve.data import TextData

_ROWS_AT_ONCE = 1000


class TokenRows(Sequence[Encoded]):
    """Encoded texts in an Arrow file, which goes when nothing refers to them any more.

    Attributes:
        lengths: tokens of each row.
    """

    def __init__(
        self, rows: "datasets.Dataset", lengths: Sequence[int], folder: "TemporaryDirectory[str]"
    ) -> None:
        self.lengths = lengths
        self._rows = rows
        self._folder = folder

    def without(self, numbers: Collection[int]) -> "TokenRows":
        """Return the others, where they are."""
        left = sorted(set(range(len(self))) - set(numbers))
        return TokenRows(self._rows.select(left), [self.lengths[number] for number in left], self._folder)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, number: int) -> Encoded: ...

    @overload
    def __getitem__(self, number: slice) -> list[Encoded]: ...

    def __getitem__(self, number: int | slice) -> Encoded | list[Encoded]:
        if isinstance(number, slice):
            return [self._rows[each] for each in range(*number.indices(len(self)))]
        return dict(self._rows[number])


def tokenize(
    tokenizer: PreTrainedTokenizerFast, config: PreTrainedConfig, data: TextData, max_length: int
) -> TokenRows:
    """Encode texts, or pairs, cut from the right: token ids (and segment ids), unpadded."""
    has_segments = "token_type_ids" in input_names(config)

    def encode(batch: dict[str, list[int]]) -> dict[str, list[list[int]] | list[int]]:
        rows = [data.rows[number] for number in batch["row"]]
        columns = tokenizer(
            [row.text for row in rows],
            [row.text_pair for row in rows] if has_pairs else None,
            padding=False,
            truncation=True,
            max_length=max_length,
            return_attention_mask=False,
            return_token_type_ids=has_segments,
        )
        return {**columns, "length": [len(ids) for ids in columns["input_ids"]]}

    has_pairs = data.has_pairs
    cache = Path(datasets.config.HF_DATASETS_CACHE)
    cache.mkdir(parents=True, exist_ok=True)
    folder = TemporaryDirectory(prefix="sparse_serve_", dir=cache, ignore_cleanup_errors=True)
    numbers = datasets.Dataset.from_dict({"row": range(len(data.rows))})
    datasets.disable_progress_bars()
    encoded = numbers.map(
        encode,
        batched=True,
        batch_size=_ROWS_AT_ONCE,
        remove_columns="row",
        cache_file_name=str(Path(folder.name) / "tokens.arrow"),
        new_fingerprint="tokens",  # what would be hashed are all texts
    )
    return TokenRows(encoded.remove_columns("length"), encoded["length"][:], folder)
