"""The rows of a run: read from files or data sets, held out, and encoded."""

import os
import random
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic

from rich.console import Console
from typing_extensions import TypeVar

from sparse_export.training.hub_data import DatasetSplit, has_labels, read_split
from sparse_export.training.options import TrainingOptions
from sparse_export.training.records import DataRecord
from sparse_serve.data import Arrange, Columns, TextData, hold_out, read_data
from sparse_serve.digests import file_digest
from sparse_serve.errors import DataError, OptionError
from sparse_serve.records import SUFFIXES, iter_records
from sparse_serve.rows import RowFormat
from sparse_serve.tasks import TASKS

HOLD_OUT_SHARE = 0.1
VALIDATION, TEST = "validation", "test"

Source = Path | DatasetSplit


def sources_of(
    train: str,
    evaluation: str | None,
    test: str | None,
    config: str | None,
    train_split: str | None,
    eval_split: str | None,
) -> tuple[Source, Source | None, Source | None]:
    """Tell what a command line means: files, or data sets by their hub ids or folders.

    Args:
        train: names the training rows.
        evaluation: names the rows that choose the best epoch; None where nothing was said.
        test: names the rows that the result is tried on: of a data set, its split "test".
        config: configuration of the data sets.
        train_split: split to train on.
        eval_split: split to evaluate on; without `evaluation`, of the data set that is trained on.

    Raises:
        OptionError: a configuration or a split of a file.
    """
    train_source = _source(train, config, train_split or "train")
    eval_source: Source | None = None
    if evaluation is not None:
        eval_source = _source(evaluation, config, eval_split or VALIDATION)
    elif eval_split is not None:
        eval_source = _source(train, config, eval_split)
    test_source = None if test is None else _source(test, config, TEST)
    sources = (train_source, eval_source, test_source)
    for option, value, described in (
        ("--dataset-config", config, sources),
        ("--train-split", train_split, sources[:1]),
        ("--eval-split", eval_split, sources[1:2]),
    ):
        if value is not None and not any(isinstance(source, DatasetSplit) for source in described):
            raise OptionError(
                f"{option} {value} is for data sets, and {described[0]} is a file; leave it out"
            )
    return sources


@dataclass(frozen=True)
class Reading:
    """How the rows of a run are read.

    Attributes:
        task: whose rows they are, a type of `sparse_serve.tasks`.
        labelled: whether labels are read.
        arrange: makes other records of those of a source; None leaves them as they are.
        least: how few rows may be held out.
    """

    task: str = "single_label_classification"
    labelled: bool = True
    arrange: Arrange | None = None
    least: int = 1


Data = TypeVar("Data", default=TextData)


@dataclass(frozen=True)
class Rows(Generic[Data]):
    """Rows and where they came from; not all rows to be tried on are labelled."""

    data: Data
    record: DataRecord
    is_labelled: bool = True


def read_rows(
    train: Source, evaluation: Source | None, options: TrainingOptions, reading: Reading, console: Console
) -> tuple[Rows, Rows, bool]:
    """Read the rows to train on and those that choose the best epoch; tell whether these were held out.

    Without `evaluation`, a data set's split "validation" is taken where it has one and none of it is trained
    on; else a tenth of the training rows is held out, and judged whole or by a sample.

    Raises:
        DataError: a source that cannot be read, or pairs in one of the two alone.
    """
    if evaluation is None and isinstance(train, DatasetSplit) and not _has_part_of(train, VALIDATION):
        evaluation = train.sibling(VALIDATION)
    train_rows = _read(train, options, reading, options.max_train_rows)
    held_out = evaluation is None
    if evaluation is not None:
        eval_rows = _read(evaluation, options, reading, options.max_eval_rows)
    else:
        kept, held = hold_out(train_rows.data, HOLD_OUT_SHARE, options.seed, reading.least)
        judged = _sampled(held, options.max_eval_rows, reading.least, options.seed)
        sampled = f", by {len(judged.rows)} of them" if len(judged.rows) < len(held.rows) else ""
        console.print(
            f"no --eval: {len(held.rows)} of {len(train_rows.data.rows)} training rows "
            f"(seed {options.seed}) are held out to choose the best epoch{sampled}"
        )
        record = train_rows.record
        train_rows, eval_rows = (Rows(data, replace(record, rows=len(data.rows))) for data in (kept, judged))
    require_like_pairs(train_rows.data, eval_rows.data)
    return train_rows, eval_rows, held_out


def _sampled(data: TextData, most: int | None, least: int, seed: int) -> TextData:
    """Return a random sample of `most` rows, but not fewer than `least`; all of them where `most` is None."""
    size = len(data.rows)
    wanted = size if most is None else min(size, max(most, least))
    return replace(
        data, rows=tuple(data.rows[row] for row in sorted(random.Random(seed).sample(range(size), wanted)))
    )


def require_like_pairs(one: TextData, other: TextData) -> None:
    """Refuse rows of one run of which only some have second texts.

    Raises:
        DataError: pairs in one of the two alone.
    """
    if one.has_pairs != other.has_pairs:
        raise DataError(
            f"only one of {one.source} and {other.source} has second texts: give pairs in both, or single "
            "texts in both (--text-pair-column names the column)"
        )


def read_training_rows(source: Source, options: TrainingOptions, reading: Reading) -> Rows:
    """Read rows that are trained on besides those that a task has of its own.

    Raises:
        DataError: a source that cannot be read.
    """
    return _read(source, options, reading, options.max_train_rows)


def read_test_rows(source: Source, options: TrainingOptions, task: str) -> Rows:
    """Read rows that a result is tried on, with their labels unless none of them has one.

    Raises:
        DataError: a source that cannot be read or has no rows, or of which some rows have no label.
    """
    kind = TASKS[task].rows
    columns = options.columns or kind.columns
    labelled = _is_labelled(source, columns, kind)
    return replace(_read(source, options, Reading(task, labelled)), is_labelled=labelled)


def _is_labelled(source: Source, columns: Columns, kind: RowFormat) -> bool:
    if not isinstance(source, Path):
        return has_labels(source, columns, kind)
    records = (record for _, record in iter_records(source, columns.required, kind.formats))
    if kind.whole_contexts:  # where nothing is in the columns of a question's answers, it has none
        return any(kind.has_label(record, columns) for record in records)
    return any(record.get(columns.label) not in (None, "") for record in records)


def _source(value: str, config: str | None, split: str) -> Source:
    value = os.path.expanduser(value)  # noqa: PTH111  leaves ~name alone
    path = Path(value)
    is_written_as_path = value.startswith((".", "/", "~")) or value.count("/") > 1
    is_file = path.suffix.lower() in SUFFIXES or path.exists() or is_written_as_path
    return path if is_file and not path.is_dir() else DatasetSplit(value, config, split)


def _has_part_of(source: DatasetSplit, split: str) -> bool:
    """Tell whether a split's expression, such as "train+validation[:50%]" or "all", names another split."""
    return not {split, "all"}.isdisjoint(re.findall(r"[\w.]+", source.split))


def _read(source: Source, options: TrainingOptions, reading: Reading, max_rows: int | None = None) -> Rows:
    if isinstance(source, Path):
        data = read_data(
            source,
            options.columns,
            task=reading.task,
            labelled=reading.labelled,
            max_rows=max_rows,
            seed=options.seed,
            arrange=reading.arrange,
        )
        return Rows(data, DataRecord(data.source, file_digest(source), len(data.rows), data.total_rows))
    split = read_split(
        source,
        options.columns,
        reading.task,
        max_rows,
        options.seed,
        reading.arrange,
        labelled=reading.labelled,
    )
    data = split.data
    record = DataRecord(data.source, split.sha256, len(data.rows), data.total_rows, split.revision)
    return Rows(data, record)
