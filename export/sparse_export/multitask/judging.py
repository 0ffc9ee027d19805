"""The figures of several tasks, and the one that sums them up."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table
from transformers import EvalPrediction

from sparse_export.multitask.options import SCORE
from sparse_export.multitask.task_file import TaskEntry
from sparse_export.tasks.trained import Encoded, TrainedHead
from sparse_export.training.batches import longest_first
from sparse_export.training.job import Figures
from sparse_export.training.options import LOSS
from sparse_export.training.task import mean_loss
from sparse_serve.data import TextData

# Figures from −1 to 1, which count in the score as if from 0 to 1.
_CORRELATIONS = frozenset({"pearson", "spearman", "matthews"})


def overall_score(figures: Mapping[str, float]) -> float:
    """Return the mean over tasks of the figure that each is known by, correlations r as (r + 1)/2.

    Of accuracy, accuracy and a correlation that is the score of the PAL paper (section 5.2).

    Args:
        figures: by the figure's name, behind the task's and a dot: "sentiment.accuracy".
    """
    return float(np.mean([_share(name.rpartition(".")[2], value) for name, value in figures.items()]))


def _share(metric: str, value: float) -> float:
    return (value + 1) / 2 if metric in _CORRELATIONS else value


def figures_of_tasks(
    heads: Mapping[str, TrainedHead],
    entries: Mapping[str, TaskEntry],
    encoded: Mapping[str, Sequence[Encoded]],
    data: Mapping[str, TextData],
) -> Figures:
    """Return what judges the evaluation rows of all tasks, one task after the other: its loss and metrics.

    Args:
        heads: of each task.
        entries: of the task file.
        encoded: each task's rows, with their targets.
        data: the same rows as they were read.
    """
    rows = [row for each in encoded.values() for row in each]
    order = longest_first(rows)
    targets = {name: head.task.targets(data[name]) for name, head in heads.items()}

    def figures(prediction: EvalPrediction) -> dict[str, float]:
        answered = np.empty_like(prediction.predictions)
        answered[order] = prediction.predictions
        found: dict[str, float] = {}
        start = 0
        for name, head in heads.items():
            end = start + len(encoded[name])
            own = judged(head, answered[start:end, : head.task.width], encoded[name], targets[name])
            found |= {f"{name}.{metric}": value for metric, value in own.items()}
            start = end
        losses = [found[f"{name}.{LOSS}"] for name in heads]
        if not np.isfinite(losses).all():
            return {LOSS: float(np.mean(losses))}
        score = overall_score({key: found[key] for key in headlines(entries)})
        return {LOSS: float(np.mean(losses)), SCORE: score, **found}

    return figures


def headlines(entries: Mapping[str, TaskEntry]) -> list[str]:
    """Return the names of the figures that count in the score."""
    return [f"{name}.{entry.headline}" for name, entry in entries.items()]


def table_of_tasks(entries: Mapping[str, TaskEntry], figures: Mapping[str, float]) -> Table:
    """Set out the figures of an evaluation, a line for each task; those that count in the score are first."""
    table = Table(box=None, pad_edge=False)
    for title in ("task", LOSS, "figure", "", "others"):
        table.add_column(title, justify="right" if title in (LOSS, "") else "left")
    for name, entry in entries.items():
        others = [metric for metric in entry.kind.metrics if metric != entry.headline]
        table.add_row(
            name,
            f"{figures[f'{name}.{LOSS}']:.4f}",
            entry.headline,
            f"{figures[f'{name}.{entry.headline}']:.4f}",
            ", ".join(f"{metric} {figures[f'{name}.{metric}']:.4f}" for metric in others),
        )
    return table


def judged(
    head: TrainedHead, output: npt.NDArray[Any], rows: Sequence[Encoded], targets: npt.NDArray[Any]
) -> dict[str, float]:
    """Return the loss of what a task's head answered, `(N, width)`, and if that is a number, the metrics."""
    loss = mean_loss(head, output, rows)
    if not np.isfinite(loss):
        return {LOSS: loss}
    return {LOSS: loss, **head.task.evaluate(head.task.answer([], output), targets)}
