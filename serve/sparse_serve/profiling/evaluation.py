"""Task quality of a served model on labelled texts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparse_serve.data import Columns, read_data
from sparse_serve.metrics import task_metrics
from sparse_serve.profiling.load import TritonLoad
from sparse_serve.profiling.workload import Batch, load_tokenizer, make_batch
from sparse_serve.repository.config import CONFIG_NAME, read_config
from sparse_serve.repository.entries import TOKENIZER_NAME, Entry
from sparse_serve.tasks import ProblemType

BATCH_SIZE = 16


@dataclass(frozen=True)
class Evaluation:
    """Labelled texts or pairs of one file, tokenised as the entry does.

    `targets` is what the entry should answer, in the order of the batches' rows (`Task.targets`).
    """

    path: Path
    problem_type: ProblemType
    batches: tuple[Batch, ...]
    targets: npt.NDArray[Any]


def read_evaluation(path: Path, entry: Entry, columns: Columns | None = None) -> Evaluation:
    """Read a labelled file for an entry; its labels become the entry's as in `Task.targets`.

    Raises:
        DataError: as `read_data` and `Task.targets`.
    """
    task = entry.manifest.task
    data = read_data(path, columns, problem_type=task.problem_type)
    targets = task.targets(data)
    tokenizer = load_tokenizer(entry.path / TOKENIZER_NAME, entry.manifest.max_length)
    # Rows of like length side by side: padded variants would spend the time on padding, not on answers.
    order = sorted(
        range(len(data.rows)), key=lambda row: len(data.rows[row].text) + len(data.rows[row].text_pair)
    )
    size = min(BATCH_SIZE, read_config(entry.graph_path / CONFIG_NAME).max_batch_size)
    batches = []
    for start in range(0, len(order), size):
        rows = [data.rows[row] for row in order[start : start + size]]
        pairs = [row.text_pair for row in rows] if data.has_pairs else None
        batches.append(make_batch(tokenizer, [row.text for row in rows], pairs))
    return Evaluation(path, task.problem_type, tuple(batches), targets[order])


def measure_quality(load: TritonLoad, evaluation: Evaluation) -> dict[str, float]:
    """Return the task metrics of a served model's answers, by name.

    Raises:
        ServerError: the server refused a request, or is gone.
    """
    answers = [load.send(batch, ("logits",)).tensors["logits"] for batch in evaluation.batches]
    return task_metrics(evaluation.problem_type, np.concatenate(answers), evaluation.targets)
