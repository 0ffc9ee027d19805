"""Task quality of a served model on labelled texts."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparse_serve.errors import DataError, OptionError
from sparse_serve.profiling.load import TritonLoad
from sparse_serve.profiling.workload import Batch, load_tokenizer, make_batch
from sparse_serve.records import iter_records, text_of
from sparse_serve.repository.config import CONFIG_NAME, read_config
from sparse_serve.repository.entries import TOKENIZER_NAME, Entry

TEXT_COLUMN = "text_a"
PAIR_COLUMN = "text_b"
LABEL_COLUMN = "label"
BATCH_SIZE = 16


@dataclass(frozen=True)
class Evaluation:
    """Labelled texts of one file, tokenised as the entry does; `labels` are indices of its labels."""

    path: Path
    batches: tuple[Batch, ...]
    labels: tuple[int, ...]


def read_evaluation(path: Path, entry: Entry) -> Evaluation:
    """Read the columns `text_a` and `label` of a TSV, CSV or JSONL file.

    Labels are the entry's, or whole numbers where none of the file's is one of the entry's.

    Raises:
        OptionError: the entry does not give each text one label.
        DataError: the file is unreadable or empty, has second texts, or a label that is not the entry's.
    """
    if entry.manifest.problem_type != "single_label_classification":
        raise OptionError(
            f"--eval measures accuracy, and '{entry.name}' is of type {entry.manifest.problem_type}; "
            "profile it without --eval"
        )
    rows = [
        (line, text_of(path, line, record, TEXT_COLUMN), str(record[LABEL_COLUMN]), record.get(PAIR_COLUMN))
        for line, record in iter_records(path, [TEXT_COLUMN, LABEL_COLUMN])
    ]
    if not rows:
        raise DataError(f"data file {path} has no rows; it needs one labelled text per line")
    for line, _, _, pair in rows:
        if pair:
            raise DataError(f"{path}, line {line}: has a second text; --eval takes single texts")
    names = entry.manifest.labels
    known = {name: index for index, name in enumerate(names)}
    if not any(label in known for _, _, label, _ in rows):
        known = {str(index): index for index in range(len(names))}
    for line, _, label, _ in rows:
        if label not in known:
            raise DataError(
                f"{path}, line {line}: label {label!r:.80} is none of {', '.join(names)}, "
                "nor one of their indices"
            )
    tokenizer = load_tokenizer(entry.path / TOKENIZER_NAME, entry.manifest.max_length)
    texts = [text for _, text, _, _ in rows]
    # Rows of like length side by side: padded variants would spend the time on padding, not on answers.
    order = sorted(range(len(rows)), key=lambda row: len(texts[row]))
    size = min(BATCH_SIZE, read_config(entry.graph_path / CONFIG_NAME).max_batch_size)
    return Evaluation(
        path,
        tuple(
            make_batch(tokenizer, [texts[row] for row in order[start : start + size]])
            for start in range(0, len(order), size)
        ),
        tuple(known[rows[row][2]] for row in order),
    )


def accuracy(load: TritonLoad, evaluation: Evaluation) -> float:
    """Return the share of texts whose greatest logit is their label's.

    Raises:
        ServerError: the server refused a request, or is gone.
    """
    answers = (load.send(batch, ("logits",)).tensors["logits"].argmax(axis=1) for batch in evaluation.batches)
    return float(np.mean(np.concatenate(list(answers)) == np.array(evaluation.labels)))
