"""Several tasks as data: a YAML file that names them, their rows and what they share.

    relational: [paraphrase, similarity]
    tasks:
      sentiment:
        task: classification
        train: sst1/train.tsv
        eval: sst1/dev.tsv
        extra:
          - train: cfimdb/train.tsv
            labels: {"0": "0", "1": "4"}
      similarity:
        task: regression
        train: sts/train.tsv

Paths are relative to the file's folder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from sparse_export.tasks import head_class
from sparse_export.tasks.first_token import FirstTokenHead
from sparse_export.yaml_file import read_yaml
from sparse_serve.errors import OptionError
from sparse_serve.metrics import greater_is_better
from sparse_serve.tasks import DEFAULT_TASK, TASKS, Task, require_task_name


def _label(label: object) -> object:
    """Return a label as it is written: YAML reads 0 and 1 as numbers."""
    if isinstance(label, bool):
        raise ValueError("YAML reads yes and no as true and false: put them in quotes")
    return str(label) if isinstance(label, int) else label


_Label = Annotated[str, BeforeValidator(_label)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class _Entry:
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Columns(_Entry):
    """Names of columns; None for the task's own."""

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None


@dataclass(frozen=True)
class RowsEntry(_Entry):
    """Rows to train a task on.

    Attributes:
        train: a data file.
        columns: names of its columns.
        labels: the label of the task for labels of the file; None leaves the rows of a label out.
        max_train_rows: use a sample of so many rows.
        factor: multiplies the probability that a step is on these rows, where rows are sampled.
    """

    train: str
    columns: Columns = field(default_factory=Columns)
    labels: Mapping[_Label, _Label | None] = field(default_factory=dict)
    max_train_rows: Annotated[int, Field(ge=2)] | None = None
    factor: _Positive = 1.0


@dataclass(frozen=True)
class TaskEntry(RowsEntry):
    """One task: what it is, its rows, and how it is judged.

    Attributes:
        task: what is answered, by the name that `finetune --task` takes.
        eval: rows that choose the best epoch; None holds out a tenth of the training rows.
        test: rows that the result is tried on at last.
        metric: the figure that counts in the overall score, one of which more is better; None takes the
            task's first.
        loss_weight: factor on its loss.
        extra: other data sets that it is trained on besides.
    """

    task: str = "classification"
    eval: str | None = None
    test: str | None = None
    metric: str | None = None
    loss_weight: _Positive = 1.0
    extra: tuple[RowsEntry, ...] = ()

    def __post_init__(self) -> None:
        kind = self.kind
        accepted = [metric for metric in kind.metrics if greater_is_better(metric)]
        if self.metric is not None and self.metric not in accepted:
            raise ValueError(
                f"metric is {self.metric!r}; {kind.option} has {', '.join(accepted)}, of which more is better"
            )
        labelled = [rows for rows in (self, *self.extra) if rows.labels]
        if labelled and kind.option != "classification":
            raise ValueError(f"labels are mapped of classification alone, and this is {kind.option}")

    @property
    def kind(self) -> type[Task]:
        """The task's class."""
        together = [kind for kind in TASKS.values() if issubclass(head_class(kind), FirstTokenHead)]
        for kind in together:
            if kind.option == self.task:
                return kind
        raise ValueError(
            f"task is {self.task!r:.80}; tasks that are trained together read the first token: "
            f"{', '.join(kind.option for kind in together)}"
        )

    @property
    def headline(self) -> str:
        """The figure that counts in the overall score."""
        return self.metric or self.kind.metrics[0]


@dataclass(frozen=True)
class TaskFile(_Entry):
    """Tasks by name, in the order of their numbers.

    Attributes:
        tasks: one or more.
        relational: those whose heads share a relational layer: none, or two or more.
    """

    tasks: Mapping[str, TaskEntry]
    relational: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError("tasks is empty; name one or more")
        for name in self.tasks:
            require_task_name(name)
            if name == DEFAULT_TASK:
                raise ValueError(
                    f"a task cannot be called {DEFAULT_TASK!r}, which is that of models of one task"
                )
        unknown = [name for name in self.relational if name not in self.tasks]
        if unknown:
            raise ValueError(f"relational names {', '.join(unknown)}, which is no task of this file")
        if len(self.relational) == 1 or len(set(self.relational)) < len(self.relational):
            raise ValueError("relational must name two or more different tasks, or none")


def read_task_file(path: Path) -> TaskFile:
    """Read a task file; its paths become absolute.

    Raises:
        DataError: it cannot be read.
        OptionError: it is no task file.
    """
    try:
        read = TypeAdapter(TaskFile).validate_python(read_yaml("tasks", path))
    except ValidationError as error:
        raise OptionError(f"--tasks {path}: {_first(error)}") from None
    folder = path.resolve().parent
    return replace(read, tasks={name: _placed(task, folder) for name, task in read.tasks.items()})


def _first(error: ValidationError) -> str:
    """Return where the first fault is, and what is wrong there."""
    fault = error.errors()[0]
    place = [f"{part:.80}" if isinstance(part, str) else str(part) for part in fault["loc"]]
    where = f" of {'.'.join(place[:-1])}" if place[:-1] else ""
    if fault["type"] == "unexpected_keyword_argument":
        return f"there is no entry {place[-1]!r}{where}"
    if fault["type"] in ("missing", "missing_argument"):
        return f"the entry {place[-1]!r}{where} is missing"
    message = fault["msg"].removeprefix("Value error, ")
    return f"{'.'.join(place)}: {message}" if place else message


def _placed(task: TaskEntry, folder: Path) -> TaskEntry:
    def at(path: str) -> str:
        return str(folder / Path(path).expanduser())

    return replace(
        task,
        train=at(task.train),
        eval=None if task.eval is None else at(task.eval),
        test=None if task.test is None else at(task.test),
        extra=tuple(replace(rows, train=at(rows.train)) for rows in task.extra),
    )
