"""The rows of several tasks, as a task file names them."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

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
from sparse_serve.data import Records, Row, TextData
from sparse_serve.errors import DataError
from sparse_serve.rows import names_of
from sparse_serve.tasks import Task, sorted_labels

Labelled = TypeVar("Labelled")


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

    Rows that the task file leaves out are as if they were not there: no sample and no record counts them.

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
            _reading(entry, entry),
            console,
        )
        is_held_out = is_held_out or held_out
        extra = [
            read_training_rows(Path(each.train), _options(options, entry, each), _reading(entry, each))
            for each in entry.extra
        ]
        for each in extra:
            require_like_pairs(train.data, each.data)
        trained[name] = TaskRows(
            train.data,
            [rows.data for rows in extra],
            [entry.factor, *(each.factor for each in entry.extra)],
        )
        judged[name] = TaskRows(evaluation.data)
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
            tests[name] = _relabelled(rows, entry) if rows.is_labelled and entry.labels else rows
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


def _reading(task: TaskEntry, entry: RowsEntry) -> Reading:
    """Return how a data set is read, where labels are mapped with those of the task."""
    kind = task.kind
    columns = _columns(task, entry.columns) or kind.rows.columns

    def relabelled(source: str, records: Records) -> Records:
        rows = ((kind.rows.row(source, *each, columns), each) for each in records)
        for (line, record), label in _mapped(source, rows, entry):
            yield line, {**record, columns.label: label}

    return Reading(kind.type, arrange=relabelled if entry.labels else None)


def _relabelled(rows: Rows, entry: RowsEntry) -> Rows:
    """Give rows that have been read the labels of the task.

    Raises:
        DataError: see `_mapped`.
    """
    mapped = _mapped(rows.data.source, ((row, row) for row in rows.data.rows), entry)
    kept = tuple(row._replace(label=label) for row, label in mapped)
    labels = sorted_labels(str(row.label) for row in kept)
    return replace(
        rows,
        data=replace(rows.data, rows=kept, labels=labels, total_rows=len(kept)),
        record=replace(rows.record, rows=len(kept), total_rows=len(kept)),
    )


def _mapped(
    source: str, rows: Iterable[tuple[Row, Labelled]], entry: RowsEntry
) -> Iterator[tuple[Labelled, str]]:
    """Yield what stands beside each row, and the label of the task; nothing for those that are left out.

    Raises:
        DataError: a label is not among those that are mapped, or no row is left.
    """
    kept = left_out = 0
    for row, beside in rows:
        (name,) = names_of(row.label)
        if name not in entry.labels:
            raise DataError(
                f"{source}, line {row.line}: label {name!r:.80} is not among those that the task file maps: "
                f"{', '.join(entry.labels)}"
            )
        if (label := entry.labels[name]) is None:
            left_out += 1
        else:
            kept += 1
            yield beside, label
    if left_out and not kept:
        raise DataError(f"{source}: the task file leaves out the labels of all of its rows")


def _together(path: Path, records: Sequence[DataRecord]) -> DataRecord:
    """Record several files as one: the task file, with a digest over theirs."""
    digest = hashlib.sha256("".join(f"{each.source} {each.sha256}\n" for each in records).encode())
    rows, total = (sum(getattr(each, name) for each in records) for name in ("rows", "total_rows"))
    return DataRecord(str(path), digest.hexdigest(), rows, total)
