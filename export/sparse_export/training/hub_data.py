"""Labelled rows by the names of the `datasets` library: data sets on the hub, and folders in its layout.

Code that comes with a data set is never run. Numbers of a `ClassLabel` are read as its names.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import datasets
from datasets.exceptions import DatasetsError

from sparse_serve.data import TEXT_PAIR, Arrange, Columns, Records, TextData, sample_records
from sparse_serve.errors import DataError, first_line
from sparse_serve.records import Record
from sparse_serve.rows import RowFormat
from sparse_serve.tasks import TASKS

# What data sets have in the place of a label that they do not tell.
_NO_LABEL = -1


@dataclass(frozen=True)
class DatasetSplit:
    """One split of a data set.

    Attributes:
        name: a hub id, or a folder of CSV, JSONL, Parquet or other files that `datasets` reads.
        config: which of the data set's configurations; None where it has one.
        split: for example "train".
    """

    name: str
    config: str | None = None
    split: str = "train"

    def __str__(self) -> str:
        config = "" if self.config is None else f"/{self.config}"
        return f"{self.name}{config}, split {self.split}"

    def sibling(self, split: str) -> Self | None:
        """Return another split of the same data set; None where it has no such.

        Raises:
            DataError: the data set cannot be found.
        """
        with _errors_of(self):
            names = datasets.get_dataset_split_names(self.name, self.config)
        return type(self)(self.name, self.config, split) if split in names else None


@dataclass(frozen=True)
class SplitData:
    """Rows of a split; `sha256` is of all its rows, each as a line of JSON; `revision` is its commit."""

    data: TextData
    sha256: str
    revision: str


class OpenSplit:
    """The rows of a split as they are read: by whoever goes over the records, once.

    Attributes:
        records: numbered from 1.
        revision: the commit of the data set.
        classes: its names of the labels, in its order; none where it does not name them.
    """

    def __init__(self, rows: Iterator[Record], revision: str, classes: Sequence[str]) -> None:
        self._digest = hashlib.sha256()
        self.records: Records = self._read(rows)
        self.revision = revision
        self.classes = classes

    @property
    def sha256(self) -> str:
        """Of the records that were read, each as a line of JSON."""
        return self._digest.hexdigest()

    def _read(self, rows: Iterator[Record]) -> Iterator[tuple[int, Record]]:
        for number, record in enumerate(rows, start=1):
            self._digest.update(json.dumps(record, default=str).encode() + b"\n")
            yield number, record


def read_split(
    split: DatasetSplit,
    columns: Columns | None,
    task: str,
    max_rows: int | None = None,
    seed: int = 0,
    arrange: Arrange | None = None,
    *,
    labelled: bool = True,
) -> SplitData:
    """Read a split, or a sample of `max_rows` of its rows, as `sparse_serve.data.sample_records` does.

    Labels are in the data set's order, where it names them: others number them by it, and so do its figures.

    Raises:
        DataError: the data set cannot be loaded, lacks a column, or has a malformed row.
    """
    kind = TASKS[task].rows
    columns = columns or kind.columns
    opened = open_split(split, columns, kind if labelled else None)
    data = sample_records(
        str(split),
        opened.records if arrange is None else arrange(str(split), opened.records),
        columns,
        task=task,
        labelled=labelled,
        max_rows=max_rows,
        seed=seed,
    )
    if set(data.labels) <= set(opened.classes):
        data = replace(data, labels=tuple(sorted(data.labels, key=opened.classes.index)))
    return SplitData(data, opened.sha256, opened.revision)


def open_split(split: DatasetSplit, columns: Columns, labelled_by: RowFormat | None) -> OpenSplit:
    """Open a split: its texts and, of rows that are labelled, all that tells a label.

    Raises:
        DataError: the data set cannot be loaded, or lacks a column.
    """
    rows, revision = _loaded(split)
    names = _columns(split, rows.column_names, columns, labelled_by)
    labels = _label_columns(names, columns, labelled_by)
    classes = [each for name in labels for each in _classes(rows.features[name])]
    return OpenSplit(_records(rows.select_columns(names)), revision, classes)


def has_labels(split: DatasetSplit, columns: Columns, kind: RowFormat) -> bool:
    """Tell whether any row has a label: a split to be tried on may have no column of them, or -1 in all rows.

    Raises:
        DataError: the data set cannot be loaded.
    """
    rows, _ = _loaded(split)
    names = _label_columns(rows.column_names, columns, kind)
    labels = (value for row in rows.select_columns(names) for value in row.values())
    return bool(names) and any(value not in (None, _NO_LABEL) for value in labels)


def _loaded(split: DatasetSplit) -> tuple["datasets.Dataset", str]:
    """Return the rows of a split, and the commit that they are of."""
    with _errors_of(split):
        builder = datasets.load_dataset_builder(split.name, split.config)
        builder.download_and_prepare()
        return builder.as_dataset(split.split), str(builder.hash)


def _label_columns(present: Sequence[str], columns: Columns, kind: RowFormat | None) -> list[str]:
    """Return the columns that tell a label, where rows are labelled."""
    return [name for name in present if kind and kind.has_label({name: None}, columns)]


def _columns(
    split: DatasetSplit, present: Sequence[str], columns: Columns, labelled_by: RowFormat | None
) -> list[str]:
    """Return the columns to read: those of texts and, where rows are labelled, all that tell a label."""
    wanted = {columns.text: "--text-column"}
    labels = _label_columns(present, columns, labelled_by)
    if labelled_by and not labels:
        wanted[columns.label] = "--label-column"
    if columns.text_pair is not None:
        wanted[columns.text_pair] = "--text-pair-column"
    for name, option in wanted.items():
        if name not in present:
            raise DataError(
                f"data set {split} has no column '{name}'; its columns are {', '.join(present)}: "
                f"name yours with {option}"
            )
    optional = [TEXT_PAIR] if columns.text_pair is None and TEXT_PAIR in present else []
    return list(dict.fromkeys((*wanted, *labels, *optional)))


def _records(rows: "datasets.Dataset") -> Iterator[Record]:
    decode = {name: decoder for name, kind in rows.features.items() if (decoder := _decoder(kind))}
    for row in rows:
        yield {name: decode[name](value) if name in decode else value for name, value in row.items()}


def _classes(kind: Any) -> Sequence[str]:
    """Return the names of a feature's labels."""
    if isinstance(kind, datasets.ClassLabel):
        return list(kind.names)
    return _classes(kind.feature) if isinstance(kind, datasets.List | datasets.LargeList) else ()


def _decoder(kind: Any) -> Callable[[Any], Any] | None:
    """Return what turns a value of a feature into the JSON value of a data file, where that is another."""
    if isinstance(kind, datasets.ClassLabel):
        return lambda value: None if value is None or value < 0 else kind.int2str(value)
    if isinstance(kind, datasets.List | datasets.LargeList) and (inner := _decoder(kind.feature)):
        return lambda values: None if values is None else [inner(value) for value in values]
    return None


@contextmanager
def _errors_of(split: DatasetSplit) -> Iterator[None]:
    datasets.disable_progress_bars()
    try:
        yield
    except (DatasetsError, OSError, ValueError, RuntimeError, ImportError) as error:
        raise DataError(
            f"data set {split} cannot be loaded: {first_line(error)}; give a hub id, a folder of data "
            "files, or a .tsv, .csv or .jsonl file"
        ) from error
