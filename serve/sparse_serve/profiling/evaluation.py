"""Task quality of a served model on labelled texts."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparse_serve.data import Columns, label_ids, read_data
from sparse_serve.errors import DataError, OptionError
from sparse_serve.profiling.load import TritonLoad
from sparse_serve.profiling.workload import Batch, load_tokenizer, make_batch
from sparse_serve.repository.config import CONFIG_NAME, read_config
from sparse_serve.repository.entries import TOKENIZER_NAME, Entry

BATCH_SIZE = 16


@dataclass(frozen=True)
class Evaluation:
    """Labelled texts of one file, tokenised as the entry does; `labels` are indices of its labels."""

    path: Path
    batches: tuple[Batch, ...]
    labels: tuple[int, ...]


def read_evaluation(path: Path, entry: Entry, columns: Columns | None = None) -> Evaluation:
    """Read a labelled file of single texts; labels become the entry's as in `label_ids`.

    Raises:
        OptionError: the entry does not give each text one label.
        DataError: as `read_data` and `label_ids`, and where a row has a second text.
    """
    if entry.manifest.problem_type != "single_label_classification":
        raise OptionError(
            f"--eval measures accuracy, and '{entry.name}' is of type {entry.manifest.problem_type}; "
            "profile it without --eval"
        )
    data = read_data(path, columns)
    for row in data.rows:
        if row.text_pair:
            raise DataError(f"{path}, line {row.line}: has a second text; --eval takes single texts")
    labels = label_ids(data, entry.manifest.labels)
    texts = [row.text for row in data.rows]
    tokenizer = load_tokenizer(entry.path / TOKENIZER_NAME, entry.manifest.max_length)
    # Rows of like length side by side: padded variants would spend the time on padding, not on answers.
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    size = min(BATCH_SIZE, read_config(entry.graph_path / CONFIG_NAME).max_batch_size)
    return Evaluation(
        path,
        tuple(
            make_batch(tokenizer, [texts[row] for row in order[start : start + size]])
            for start in range(0, len(order), size)
        ),
        tuple(labels[row] for row in order),
    )


def accuracy(load: TritonLoad, evaluation: Evaluation) -> float:
    """Return the share of texts whose greatest logit is their label's.

    Raises:
        ServerError: the server refused a request, or is gone.
    """
    answers = (load.send(batch, ("logits",)).tensors["logits"].argmax(axis=1) for batch in evaluation.batches)
    return float(np.mean(np.concatenate(list(answers)) == np.array(evaluation.labels)))
