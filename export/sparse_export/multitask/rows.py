"""The rows of several tasks, as a task file names them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from sparse_export.multitask.options import MultitaskOptions
from sparse_export.multitask.task_file import Columns, RowsEntry, TaskEntry
from sparse_export.training.records import DataRecord
from sparse_export.training.sources import (
    Reading,
    Rows,
    read_rows,
    read_test_rows,
    read_training_rows,
    require_like_pairs,
)
from sparse_export.training.task import posed
from sparse_serve import data
from sparse_serve.data import TextData
from sparse_serve.errors import DataError
from sparse_serve.rows import names_of
from sparse_serve.tasks import Task, sorted_labels


@dataclass(frozen=True)
class TaskRows:
    """The rows of one task.

    Attributes:
        own: from the task's own file.
        extra: from other data sets.
        factors: of each of these sets, the task's own first, on its probability.
    """

    own: TextData
    extra: Sequence[TextData] = ()
    factors: Sequence[float] = (1.0,)


AllRows = Mapping[str, TaskRows]
"""The rows of every task, by its name."""


def read_all(
    path: Path, options: MultitaskOptions, console: Console
) -> tuple[Rows[AllRows], Rows[AllRows], bool]:
    """Read the rows to train on and those that choose the best epoch; tell whether any of these are held out.

    Raises:
        DataError: a file that cannot be read, is of other labels than its task, has no rows left, or has
            pairs where others of its task have single texts.
    """
    trained: dict[str, TaskRows] = {}
    judged: dict[str, TaskRows] = {}
    train_records, eval_records = [], []
    is_held_out = False
    for name, entry in options.tasks.tasks.items():
        own = _options(options, entry, entry)
        train, evaluation, held_out = read_rows(
            Path(entry.train),
            None if entry.eval is None else Path(entry.eval),
            own,
            Reading(entry.kind.type),
            console,
        )
        is_held_out = is_held_out or held_out
        extra = [
            read_training_rows(Path(each.train), _options(options, entry, each), Reading(entry.kind.type))
            for each in entry.extra
        ]
        for each in extra:
            require_like_pairs(train.data, each.data)
        trained[name] = TaskRows(
            _relabelled(train.data, entry),
            [_relabelled(rows.data, each) for rows, each in zip(extra, entry.extra, strict=True)],
            [entry.factor, *(each.factor for each in entry.extra)],
        )
        judged[name] = TaskRows(_relabelled(evaluation.data, entry))
        train_records += [train.record, *(each.record for each in extra)]
        eval_records.append(evaluation.record)
        sizes = " + ".join(str(len(each.rows)) for each in (trained[name].own, *trained[name].extra))
        console.print(
            f"{name}: {sizes} rows to train on, {len(judged[name].own.rows)} to evaluate on", highlight=False
        )
    records = [_together(path, each) for each in (train_records, eval_records)]
    return Rows(trained, records[0]), Rows(judged, records[1]), is_held_out


def read_tests(path: Path, options: MultitaskOptions) -> Rows[Mapping[str, Rows]]:
    """Read the rows that the result is tried on, of those tasks that have any.

    Raises:
        DataError: a file that cannot be read, or is of other labels than those that are mapped.
    """
    tests = {}
    for name, entry in options.tasks.tasks.items():
        if entry.test is not None:
            rows = read_test_rows(Path(entry.test), _options(options, entry, entry), entry.kind.type)
            tests[name] = replace(rows, data=_relabelled(rows.data, entry)) if rows.is_labelled else rows
    return Rows(tests, _together(path, [each.record for each in tests.values()]))


def task_posed(entry: TaskEntry, rows: TaskRows) -> Task:
    """Return the task that the training rows of an entry pose.

    Raises:
        DataError: the rows have too few labels.
    """
    return posed(entry.kind, rows.own)


def _options(options: MultitaskOptions, task: TaskEntry, rows: RowsEntry) -> MultitaskOptions:
    """Return the options with the columns and the sample of one data set."""
    most = rows.max_train_rows if rows.max_train_rows is not None else options.max_train_rows
    return replace(options, max_train_rows=most, columns=_columns(task, rows.columns))


def _columns(task: TaskEntry, columns: Columns) -> data.Columns | None:
    given = {name: value for name, value in asdict(columns).items() if value is not None}
    return task.kind.rows.named(**given) if given else None


def _relabelled(data: TextData, entry: RowsEntry) -> TextData:
    """Give rows the labels of the task; those whose label is mapped to none are left out.

    Raises:
        DataError: a label is not among those that are mapped, or no row is left.
    """
    if not entry.labels:
        return data
    rows = []
    for row in data.rows:
        (name,) = names_of(row.label)
        if name not in entry.labels:
            raise DataError(
                f"{data.source}, line {row.line}: label {name!r:.80} is not among those that the task file "
                f"maps: {', '.join(entry.labels)}"
            )
        if (label := entry.labels[name]) is not None:
            rows.append(row._replace(label=label))
    if not rows:
        raise DataError(f"{data.source}: the task file leaves out the labels of all of its rows")
    return replace(data, rows=tuple(rows), labels=sorted_labels(str(row.label) for row in rows))


def _together(path: Path, records: Sequence[DataRecord]) -> DataRecord:
    """Record several files as one: the task file, with a digest over theirs."""
    digest = hashlib.sha256("".join(f"{each.source} {each.sha256}\n" for each in records).encode())
    rows, total = (sum(getattr(each, name) for each in records) for name in ("rows", "total_rows"))
    return DataRecord(str(path), digest.hexdigest(), rows, total)
