"""What runs of the same batches answer, in numbers, in words and in metrics."""

from collections.abc import Sequence

import numpy as np

from sparse_export.parity.examples import Examples
from sparse_export.parity.executions import Answer
from sparse_export.tasks import Head
from sparse_serve.tasks import Columns


def answers_of(head: Head, examples: Examples, answered: Sequence[Answer]) -> Columns:
    """Return what the served model would answer to the texts by the outputs of all rows, as they ran."""
    ran = [row for answer in answered for row in answer.output]
    rows = dict(zip(examples.order.tolist(), ran, strict=True))
    windows = [window for text in examples.texts for window in text.windows]
    if head.task.by_token:
        output = np.zeros((len(windows), max(map(len, windows)), head.task.width), np.float32)
        for number, window in enumerate(windows):
            output[number, : len(window)] = rows[number][: len(window)]
    else:
        output = np.stack([rows[number] for number in range(len(windows))])
    with np.errstate(invalid="ignore", over="ignore"):  # the gate tells of what is not finite
        return head.task.answer(examples.texts, output)


def metrics_of(head: Head, examples: Examples, answers: Columns) -> dict[str, float] | None:
    """Return the task metrics of answers by name; None where nobody says what they should be."""
    return None if examples.targets is None else head.task.evaluate(answers, examples.targets)


def largest_number(answered: Sequence[Answer]) -> float:
    """Return the largest finite |number| of the outputs of batches; 0 where none is finite."""
    return float(max(np.abs(each.output[np.isfinite(each.output)]).max(initial=0) for each in answered))


def accepted_difference(atol: float, largest: float) -> float:
    """Return how far numbers may lie from torch's, the largest of which is given.

    It is `atol` for numbers of up to 10, as logits are. Rounding grows with what it rounds: of larger ones,
    as a regression's or a hidden state's may be, it is as large a share of them as `atol` is of 10.
    """
    return atol * max(1.0, largest / 10)


def largest_difference(answered: Sequence[Answer], expected: Sequence[Answer]) -> float:
    """Return the largest |Δ| of two runs of the same batches; NaN where a number is none."""
    pairs = [(ours.output, torchs.output) for ours, torchs in zip(answered, expected, strict=True)]
    with np.errstate(invalid="ignore"):
        # What a task has no label for is −inf in both, and their difference is none.
        differences = [np.where(ours == torchs, 0, np.abs(ours - torchs)).max() for ours, torchs in pairs]
    return float(np.max(differences))
