"""What a trained model answers to rows that had no part in its making, as it is served."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sparse_export.encoders.families import input_names
from sparse_export.tasks.trained import Encoded, TrainedHead
from sparse_export.training.batches import evaluation_batches
from sparse_export.training.encoding import encode_texts
from sparse_export.training.records import TrialRecord
from sparse_export.training.sources import Rows, require_like_pairs
from sparse_serve.data import TextData
from sparse_serve.tasks import Task
from sparse_serve.tasks.encoding import Columns

PREDICTIONS_NAME, TEST_NAME = "predictions.jsonl", "test.json"

_ROWS_AT_ONCE = 64


def try_out(
    head: TrainedHead,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    rows: Rows,
    max_length: int,
    folder: Path,
) -> TrialRecord:
    """Answer rows; write answers and figures into a folder, as `predictions.jsonl` and `test.json`.

    Args:
        head: of the model.
        model: in evaluation mode.
        tokenizer: of the model.
        rows: labelled or not; without labels there are no figures.
        max_length: tokens at which texts are cut.
        folder: of the checkpoint.

    Raises:
        DataError: a label that the model does not know.
    """
    texts = encode_texts(head.task, tokenizer, rows.data, max_length)
    windows: list[Encoded] = [
        {"input_ids": window.ids, "token_type_ids": window.type_ids}
        for text in texts
        for window in text.windows
    ]
    columns = head.task.answer(texts, answer(head, model, tokenizer, windows))
    metrics = head.task.evaluate(columns, head.task.targets(rows.data)) if rows.is_labelled else {}
    lines = zip((row.line for row in rows.data.rows), _answers(columns), strict=True)
    with (folder / PREDICTIONS_NAME).open("w", encoding="utf-8") as stream:
        for line, answered in lines:
            stream.write(json.dumps({"line": line, **answered}, ensure_ascii=False) + "\n")
    record = TrialRecord(rows.record, metrics)
    (folder / TEST_NAME).write_text(record.to_json(), encoding="utf-8")
    return record


def require_answerable(task: Task, train: TextData, rows: Rows) -> None:
    """Refuse rows that a model cannot be tried on, before it is trained.

    Args:
        task: which the training rows pose.
        train: the training rows.
        rows: labelled or not.

    Raises:
        DataError: a label that the task does not know, or pairs in one of the two sources alone.
    """
    require_like_pairs(train, rows.data)
    if rows.is_labelled:
        task.targets(rows.data)


def answer(
    head: TrainedHead, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, windows: Sequence[Encoded]
) -> npt.NDArray[np.float32]:
    """Return what a model answers to windows, in their order: `(W, width)`, by token `(W, L, width)`."""
    names = input_names(model.config)
    longest = max(len(window["input_ids"]) for window in windows)
    shape = (longest,) if head.task.by_token else ()
    output = np.zeros((len(windows), *shape, head.task.width), dtype=np.float32)
    with torch.inference_mode():
        for chosen in evaluation_batches(windows, _ROWS_AT_ONCE):
            batch = tokenizer.pad([dict(windows[row]) for row in chosen], return_tensors="pt")
            inputs = {name: batch[name].to(model.device) for name in names}
            answered = head.answer_padded(model(**inputs), inputs["attention_mask"]).float().cpu().numpy()
            if head.task.by_token:
                output[chosen, : answered.shape[1]] = answered
            else:
                output[chosen] = answered
    return output


def _answers(columns: Columns) -> Iterator[dict[str, Any]]:
    """Yield what is answered to each row, by the name of the tensor: a number, a text, or a list."""
    read = {name: [_value(row) for row in column] for name, column in columns.items()}
    for values in zip(*read.values(), strict=True):
        yield dict(zip(read, values, strict=True))


def _value(row: npt.NDArray[Any]) -> Any:
    values = [each.decode() if isinstance(each, bytes) else each for each in row.tolist()]
    return values[0] if len(values) == 1 else values
