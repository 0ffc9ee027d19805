"""Several tasks of one model: each text is of one of them, and is answered as that task answers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from sparse_serve.errors import OptionError, TaskError
from sparse_serve.rows import RowFormat, TextData, TextRows
from sparse_serve.tasks.classification import class_outputs
from sparse_serve.tasks.encoding import Columns, EncodedText
from sparse_serve.tasks.task import OutputTensor, Task

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
# What the places of a row hold that its task has no label for.
_NO_LOGIT, _NO_SCORE = -np.inf, 0.0


def require_task_name(name: str) -> None:
    """Refuse a name that is not safe in a file's path, a tensor's name and a command line.

    Raises:
        ValueError: it is none.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r:.80} cannot name a task: at most 64 letters, digits, _ and - are needed, a letter or a "
            "digit first"
        )


def require_task_named_once(task: str | None, task_column: str | None) -> None:
    """Refuse a task for all texts beside a column that names the task of each.

    Raises:
        OptionError: both are given.
    """
    if task is not None and task_column is not None:
        raise OptionError("give the task of all texts with --task, or of each with --task-column, not both")


@dataclass(frozen=True)
class Several(Task):
    """The tasks of one model by name, in the order of their `task_ids`; each reads a row of `logits`.

    A row is as wide as the widest task's: what a row's task has no label for is −inf in `logits` and 0 in
    `scores`.

    Raises:
        ValueError: there is none, a name is unsafe, or a task is not answered by one row of logits.
    """

    type: ClassVar[str] = "several_tasks"
    option: ClassVar[str] = "several"
    rows: ClassVar[RowFormat] = TextRows(str)
    metrics: ClassVar[tuple[str, ...]] = ()

    tasks: Mapping[str, Task] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tasks:
            raise ValueError("a model of several tasks needs one or more, got none")
        wanted = class_outputs(0)
        for name, task in self.tasks.items():
            require_task_name(name)
            if [tensor.name for tensor in task.outputs] != [tensor.name for tensor in wanted]:
                raise ValueError(
                    f"task {name} is {task.type.replace('_', ' ')}, which answers other tensors than "
                    "classification and regression do: serve it as an entry of its own, with `export "
                    f"--single-task {name}`"
                )

    @classmethod
    def of(cls, data: TextData) -> Self:
        """Refuse: a data file has the rows of one task."""
        raise ValueError(f"{data.source} has the rows of one task")

    @property
    def width(self) -> int:
        """How many numbers a row of `logits` has."""
        return max(task.width for task in self.tasks.values())

    @property
    def outputs(self) -> tuple[OutputTensor, ...]:
        """Each row's `scores`, `label` and `logits`, as its task answers them."""
        return class_outputs(self.width, is_labelled=False)

    @property
    def reads_pairs(self) -> bool:
        """Whether any of the tasks does."""
        return any(task.reads_pairs for task in self.tasks.values())

    def member(self, name: str | None) -> Task:
        """Return the task of this name.

        Raises:
            TaskError: there is none, or none is named.
        """
        if name is None:
            raise TaskError(f"input TASK is missing: name one of {', '.join(self.tasks)} for each text")
        if name not in self.tasks:
            raise TaskError(f"there is no task {name!r:.80}; this model's are {', '.join(self.tasks)}")
        return self.tasks[name]

    def number(self, name: str | None) -> int:
        """Return the number of a task, as `task_ids` has it: its place among the tasks."""
        self.member(name)
        return [*self.tasks].index(str(name))

    def answer(self, encoded: Sequence[EncodedText], output: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Read each row of `(N, width)` as the task does that its text is of (`EncodedText.task`)."""
        columns = {
            "scores": np.full(output.shape, _NO_SCORE, dtype=np.float32),
            "label": np.empty((len(encoded), 1), dtype=np.object_),
            "logits": np.full(output.shape, _NO_LOGIT, dtype=np.float32),
        }
        for name, task in self.tasks.items():
            rows = [row for row, text in enumerate(encoded) if text.task == name]
            if not rows:
                continue
            answered = task.answer([encoded[row] for row in rows], output[rows, : task.width])
            for column, values in answered.items():
                columns[column][rows, : values.shape[1]] = values
        return columns

    def evaluate(self, columns: Columns, targets: npt.NDArray[Any]) -> dict[str, float]:
        """Refuse: figures are those of one task."""
        raise ValueError("evaluate the rows of each task by themselves")


def answered(tasks: Mapping[str, Task]) -> Task:
    """Return what a model of these tasks answers: that of its only one, or of several.

    Raises:
        ValueError: see `Several`.
    """
    return next(iter(tasks.values())) if len(tasks) == 1 else Several(tasks=dict(tasks))
