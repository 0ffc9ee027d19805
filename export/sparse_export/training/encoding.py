"""Labelled rows as an encoder takes them: encoded as they are served, with the targets of their head."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sparse_export.encoders.families import input_names
from sparse_export.tasks.trained import Encoded, TrainedHead
from sparse_serve.data import TextData
from sparse_serve.tasks import Task
from sparse_serve.tasks.encoding import EncodedText

# The tokenizer's own results take four times the memory of what is kept of them.
_ROWS_AT_ONCE = 1000


@dataclass(frozen=True)
class EncodedData:
    """Rows of a source as an encoder takes them.

    Attributes:
        rows: each window of each text, with its targets.
        texts: the texts, in one or more windows each; none where they were not to be kept.
    """

    rows: Sequence[Encoded]
    texts: Sequence[EncodedText]


def encode(
    head: TrainedHead,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    data: TextData,
    max_length: int,
    *,
    keep_texts: bool = False,
) -> EncodedData:
    """Encode labelled rows as they are served, and add the targets of each window.

    Raises:
        DataError: a label that the model does not know, or that does not fit its text.
    """
    has_segments = "token_type_ids" in input_names(model.config)
    rows: list[Encoded] = []
    texts: list[EncodedText] = []
    for start in range(0, len(data.rows), _ROWS_AT_ONCE):
        part = replace(data, rows=data.rows[start : start + _ROWS_AT_ONCE])
        encoded = encode_texts(head.task, tokenizer, part, max_length)
        for text, targets in zip(encoded, head.window_targets(part, encoded), strict=True):
            for window, target in zip(text.windows, targets, strict=True):
                segments = {"token_type_ids": window.type_ids} if has_segments else {}
                rows.append({"input_ids": window.ids, **segments, **target})
        texts += encoded if keep_texts else ()
    return EncodedData(rows, texts)


def encode_texts(
    task: Task, tokenizer: PreTrainedTokenizerFast, data: TextData, max_length: int
) -> list[EncodedText]:
    """Encode the texts of rows as they are served."""
    texts, pairs = task.asked(data)
    return task.encode(tokenizer.backend_tokenizer, texts, pairs, max_length)
