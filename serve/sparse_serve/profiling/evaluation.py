"""Task quality of a served model on labelled texts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparse_serve.data import Columns, read_data
from sparse_serve.errors import ServerError
from sparse_serve.profiling.load import TritonLoad
from sparse_serve.profiling.workload import Batch, Tokens
from sparse_serve.repository.config import CONFIG_NAME, read_config
from sparse_serve.repository.entries import TOKENIZER_NAME, Entry
from sparse_serve.tasks import Task

BATCH_SIZE = 16


@dataclass(frozen=True)
class Evaluation:
    """Labelled texts or pairs of one file, tokenised as the entry does.

    Attributes:
        path: the file.
        rows: how many labelled rows it has.
        task: what the entry answers, or that of its tasks which the rows are of.
        batches: what is asked, rows of like length side by side.
        order: `(N,)`, the number of each text of the batches among those of `Task.asked`.
        targets: what the entry should answer, as `Task.targets` gives it.
        graph_rows: the most rows that the graph takes at a time.
    """

    path: Path
    rows: int
    task: Task
    batches: tuple[Batch, ...]
    order: npt.NDArray[np.int64]
    targets: npt.NDArray[Any]
    graph_rows: int


def read_evaluation(
    path: Path, entry: Entry, columns: Columns | None = None, name: str | None = None
) -> Evaluation:
    """Read a labelled file for an entry; its labels become the entry's as in `Task.targets`.

    Of an entry of several tasks the rows are of the one called `name`.

    Raises:
        DataError: as `read_data`, `Task.asked`, `Task.targets` and `Tokens.require_readable`.
        TaskError: the entry has several tasks and none of this name, or one and it is named.
    """
    task = entry.manifest.task.member(name)
    data = read_data(path, columns, task=task.type)
    targets = task.targets(data)
    texts, pairs = task.asked(data)
    tokens = Tokens(
        entry.path / TOKENIZER_NAME,
        entry.manifest.task,
        entry.manifest.max_length,
        entry.manifest.truncation,
        in_graph=entry.takes_text,
    )
    tokens.require_readable(str(path), (name,), has_pairs=pairs is not None)
    # Padded variants would spend the time on padding, not on answers.
    lengths = [len(text) + len(pair) for text, pair in zip(texts, pairs or [""] * len(texts), strict=True)]
    order = sorted(range(len(texts)), key=lengths.__getitem__)
    graph_rows = read_config(entry.graph_path / CONFIG_NAME).max_batch_size
    size = min(BATCH_SIZE, graph_rows)
    batches = []
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        batch_pairs = None if pairs is None else [pairs[row] for row in rows]
        batches.append(tokens.batch([texts[row] for row in rows], batch_pairs, (name,)))
    return Evaluation(path, len(data.rows), task, tuple(batches), np.array(order), targets, graph_rows)


def measure_quality(load: TritonLoad, evaluation: Evaluation) -> dict[str, float]:
    """Return the task metrics of a served model's answers, by name.

    Raises:
        ServerError: the server refused a request, answered with NaN, or is gone.
    """
    ask = _ask_texts if load.takes_text else _ask_graph
    answers = [ask(load, batch, evaluation) for batch in evaluation.batches]
    places = np.argsort(evaluation.order)
    columns = {name: np.concatenate([answer[name] for answer in answers])[places] for name in answers[0]}
    for name, values in columns.items():
        if values.dtype.kind == "f" and np.isnan(values).any():
            raise ServerError(f"{name} is NaN for a row of {evaluation.path}: its figures would mean nothing")
    return evaluation.task.evaluate(columns, evaluation.targets)


def _ask_texts(load: TritonLoad, batch: Batch, evaluation: Evaluation) -> dict[str, npt.NDArray[Any]]:
    wanted = {tensor.name: tensor.dims[0] for tensor in evaluation.task.outputs}
    answers = load.send(batch, list(wanted)).tensors
    return {name: answers[name][:, :width] for name, width in wanted.items()}


def _ask_graph(load: TritonLoad, batch: Batch, evaluation: Evaluation) -> dict[str, npt.NDArray[Any]]:
    output = evaluation.task.graph_output
    parts = [load.send(part, (output,)).tensors[output] for part in batch.parts(evaluation.graph_rows)]
    return evaluation.task.answer(batch.encoded, np.concatenate(parts)[..., : evaluation.task.width])
