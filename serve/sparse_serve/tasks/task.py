"""What is common to all tasks."""

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from sparse_serve.errors import TaskError
from sparse_serve.rows import RowFormat, TextData
from sparse_serve.tasks.encoding import Columns, EncodedText, Pairs, Truncation, encode_cut

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class OutputTensor(NamedTuple):
    """A tensor that the public model answers; `dims` without the batch axis, `is_labelled` by `labels`."""

    name: str
    datatype: Literal["FP32", "INT32", "BYTES"]
    dims: tuple[int, ...]
    is_labelled: bool = False


@dataclass(frozen=True)
class Task(ABC):
    """What a model answers, in numbers and to a client.

    A subclass is a frozen dataclass; its fields are what checkpoint, manifest and server store of it.

    Attributes:
        type: names the task in what is stored; with Transformers' `problem_type` where that has one.
        option: names it on the command line.
        graph_output: what `NAME_model` answers, `[-1, width]`, with `by_token` `[-1, -1, width]`.
        in_windows: whether a text is read whole, in as many windows as it takes, and not cut.
        text_pair: whether rows have a second text: they may, must, or cannot.
        rows: the kind of rows that a data file has.
        metrics: how good answers are; the first is the headline.
        labels: names of what is answered, in the order of the last axis of `graph_output`.
        paired: whether it was trained on pairs, where rows may have a second text.

    Raises:
        ValueError: a setting is out of range, or `labels` are too few, no lines of text, or not different.
    """

    type: ClassVar[str]
    option: ClassVar[str]
    graph_output: ClassVar[str] = "logits"
    by_token: ClassVar[bool] = False
    in_windows: ClassVar[bool] = False
    text_pair: ClassVar[Literal["optional", "required", "refused"]] = "optional"
    rows: ClassVar[RowFormat]
    metrics: ClassVar[tuple[str, ...]]
    fewest_labels: ClassVar[int] = 0

    labels: tuple[str, ...] = ()
    paired: bool = False

    def __post_init__(self) -> None:
        if len(self.labels) < self.fewest_labels:
            raise ValueError(
                f"{self.type} needs {self.fewest_labels} or more labels, got {list(self.labels)}"
            )
        for label in self.labels:
            if not is_line(label):
                raise ValueError(f"label {label!r} is not one line of text")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError(f"the labels {reprlib.repr(list(self.labels))} are not all different")
        require_boolean(self, "paired", self.paired)
        if self.paired and self.text_pair == "refused":
            raise ValueError(f"{self.type} has no pairs")

    @classmethod
    @abstractmethod
    def of(cls, data: TextData) -> Self:
        """Return the task that a training file poses.

        Raises:
            DataError: the file has too few labels.
        """

    @property
    def width(self) -> int:
        """How many numbers `graph_output` has on its last axis."""
        return len(self.labels)

    @property
    def reads_pairs(self) -> bool:
        """Whether a graph that takes text takes a second one too."""
        return self.paired or self.text_pair == "required"

    @property
    @abstractmethod
    def outputs(self) -> tuple[OutputTensor, ...]:
        """What the public model answers, besides `token_count`, `truncated` and `rho`."""

    def to_json(self) -> dict[str, Any]:
        """Return the description that `read_task` reads: type, labels where it has any, settings."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        labels, paired = list(own.pop("labels")), own.pop("paired")
        return {
            "type": self.type,
            **({"labels": labels} if labels else {}),
            **own,
            **({"paired": paired} if paired else {}),
        }

    @classmethod
    def of_json(cls, description: Mapping[str, Any]) -> Self:
        """Return the task that `to_json` describes.

        Raises:
            ValueError: a setting is unknown or malformed.
        """
        settings = {key: value for key, value in description.items() if key != "type"}
        unknown = settings.keys() - {each.name for each in fields(cls)}
        if unknown:
            raise ValueError(
                f"{cls.type} has no setting {', '.join(sorted(map(repr, unknown)))}: upgrade sparse-serve"
            )
        labels = settings.pop("labels", ())
        if not isinstance(labels, list | tuple) or not all(isinstance(label, str) for label in labels):
            raise ValueError(f"labels are {reprlib.repr(labels)}; a list of names is needed")
        return cls(labels=tuple(labels), **settings)

    def encode(
        self,
        tokenizer: "Tokenizer",
        texts: Sequence[str],
        pairs: Pairs,
        max_length: int,
        truncation: Truncation = "right",
    ) -> list[EncodedText]:
        """Return texts, or pairs, as rows of the graph of at most `max_length` tokens.

        To refuse those that have more (`truncation` "error") is the caller's.
        """
        return encode_cut(tokenizer, texts, pairs, max_length, truncation)

    def member(self, name: str | None) -> "Task":
        """Return the task that a row is of: this one, where a model has one and rows name none.

        Raises:
            TaskError: the row names a task.
        """
        if name is not None:
            raise TaskError(f"the model has one task, but {name!r:.80} is named: leave out TASK")
        return self

    def number(self, name: str | None) -> int:
        """Return the number of the task that a row is of, as `task_ids` has it; errors as `member`."""
        self.member(name)
        return 0

    def task_ids(self, encoded: Sequence[EncodedText]) -> npt.NDArray[np.int64]:
        """Return the number of the task that each of their windows is of, `(W, 1)` int64."""
        return np.array([[self.number(text.task)] for text in encoded for _ in text.windows], dtype=np.int64)

    def check_pairs(self, pairs: Pairs) -> None:
        """Refuse second texts that rows of this task cannot have, or the lack of those they must.

        Raises:
            TaskError: `pairs` has or lacks one.
        """
        name = self.type.replace("_", " ")
        has = [pair is not None for pair in pairs or (None,)]
        if self.text_pair == "required" and not all(has):
            raise TaskError(f"{name} needs TEXT_PAIR beside TEXT")
        if self.text_pair == "refused" and any(has):
            raise TaskError(f"{name} reads TEXT alone: leave out TEXT_PAIR")

    @abstractmethod
    def answer(self, encoded: Sequence[EncodedText], output: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Return the tensors of `outputs`, one row for each of the N texts.

        Args:
            encoded: N texts.
            output: `graph_output` for all their windows, one after another: `(W, width)`, with `by_token`
                `(W, L, width)`, L at least as long as the longest window.
        """

    def asked(self, data: TextData) -> tuple[list[str], list[str] | None]:
        """Return what a model is asked so as to `evaluate` it on the rows of `data`: texts, second texts."""
        texts = [row.text for row in data.rows]
        return texts, [row.text_pair for row in data.rows] if data.has_pairs else None

    def targets(self, data: TextData) -> npt.NDArray[Any]:
        """Return what the model should answer to the N rows of `data`: here their labels `(N,)`, as objects.

        Raises:
            DataError: a label that the model does not know, with its line and value.
        """
        targets = np.empty(len(data.rows), dtype=np.object_)
        targets[:] = [row.label for row in data.rows]
        return targets

    @abstractmethod
    def evaluate(self, columns: Columns, targets: npt.NDArray[Any]) -> dict[str, float]:
        """Return each of `metrics` for what was answered to the texts that `asked` gives.

        Args:
            columns: as `answer` gives them.
            targets: as `targets` gives them.

        Raises:
            ValueError: the shapes disagree or there are no rows.
        """

    @property
    def headline(self) -> str:
        """The metric by which checkpoints are chosen and models compared; larger is better."""
        return self.metrics[0]


def require_integer(task: Task, name: str, value: object, least: int) -> None:
    """Refuse a setting that is no whole number of at least `least`.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{task.type}: {name} is {value!r}; a whole number of at least {least} is needed")


def require_boolean(task: Task, name: str, value: object) -> None:
    """Refuse a setting that is neither true nor false.

    Raises:
        ValueError: it is neither.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{task.type}: {name} is {value!r}; true or false is needed")


def is_line(text: str) -> bool:
    """Tell whether a text can be a line of `labels.txt`."""
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can hold
        return False
    return text.splitlines() == [text]
