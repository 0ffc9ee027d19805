"""What public models answer for one text, as values: a class for each kind of model.

    Prediction   label, score and logits             classification, multi-label, regression
    Answer       the answer, and where it stands     question answering
    Entities     the entities of the text            token classification
    Embedding    a vector                            embedding

Which of them a model gives, the names of its outputs say: `reply_of`.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from sparse_serve.tasks import json_array

Columns = Mapping[str, npt.NDArray[Any]]
"""The tensors of an answer by name, one row a text."""


@dataclass(frozen=True, kw_only=True)
class Reply(ABC):
    """What is answered for one text.

    `token_count` counts the tokens the model saw, `truncated` tells whether the text had more.

    Attributes:
        outputs: the tensors that it is read from, besides those of every model.
        does: what a model that gives such replies does.
        text_pair: whether texts have a second one: they may, must, or cannot.
    """

    outputs: ClassVar[tuple[str, ...]]
    does: ClassVar[str]
    text_pair: ClassVar[Literal["optional", "required", "refused"]] = "optional"

    token_count: int
    truncated: bool

    @classmethod
    def read(cls, columns: Columns) -> list[Self]:
        """Return the replies in the rows of a model's tensors."""
        return [
            cls._of_row(columns, row, token_count=int(count), truncated=bool(truncated))
            for row, (count, truncated) in enumerate(
                zip(columns["token_count"][:, 0], columns["truncated"][:, 0], strict=True)
            )
        ]

    @classmethod
    @abstractmethod
    def _of_row(cls, columns: Columns, row: int, *, token_count: int, truncated: bool) -> Self:
        """Return the reply of one row."""


@dataclass(frozen=True)
class ClassScore:
    """One class and its score; `label` is None on models without labels."""

    index: int
    label: str | None
    score: float


@dataclass(frozen=True, kw_only=True)
class Prediction(Reply):
    """The label of a text.

    `label` is the best label, for multi-label models a JSON array of all with a score of at least 0.5, for
    regression the value, or a JSON array of several. `score` is the highest score, for regression the
    largest value; `top` the best classes, best first. On a model of several tasks the text is of `task`,
    and `scores` and `logits` are that task's alone.
    """

    outputs = ("label", "scores", "logits")
    does = "classifies texts"

    label: str
    score: float
    logits: tuple[float, ...]
    scores: tuple[float, ...]
    top: tuple[ClassScore, ...] = ()
    task: str | None = None

    @property
    def answer(self) -> str | list[object]:
        """The label, with a JSON array as the list it is."""
        array = json_array(self.label)
        return self.label if array is None else array

    def best(self, labels: Sequence[str | None], number: int) -> tuple[ClassScore, ...]:
        """Return the best classes, so many of those that `labels` names."""
        order = np.argsort(-np.array(self.scores), kind="stable")[:number]
        return tuple(ClassScore(int(index), labels[index], self.scores[index]) for index in order)

    @classmethod
    def _of_row(cls, columns: Columns, row: int, *, token_count: int, truncated: bool) -> Self:
        scores = tuple(map(float, columns["scores"][row]))
        return cls(
            label=columns["label"][row, 0].decode(),
            score=float(columns["scores"][row].max()),
            logits=tuple(map(float, columns["logits"][row])),
            scores=scores,
            task=columns["task"][row] if "task" in columns else None,
            token_count=token_count,
            truncated=truncated,
        )


@dataclass(frozen=True, kw_only=True)
class Answer(Reply):
    """The answer to a question: the characters `start` to `end` of its context, which are `answer`.

    Where the context has no answer it is empty, and both are −1. `score` is its probability.
    """

    outputs = ("answer", "start", "end", "score")
    does = "answers questions about a context"
    text_pair = "required"

    answer: str
    start: int
    end: int
    score: float

    @classmethod
    def _of_row(cls, columns: Columns, row: int, *, token_count: int, truncated: bool) -> Self:
        return cls(
            answer=columns["answer"][row, 0].decode(),
            start=int(columns["start"][row, 0]),
            end=int(columns["end"][row, 0]),
            score=float(columns["score"][row, 0]),
            token_count=token_count,
            truncated=truncated,
        )


@dataclass(frozen=True)
class Entity:
    """An entity: the characters `start` to `end` of its text, which are `text`."""

    label: str
    start: int
    end: int
    text: str
    score: float


@dataclass(frozen=True, kw_only=True)
class Entities(Reply):
    """The entities of a text, in their order."""

    outputs = ("entities",)
    does = "finds entities"
    text_pair = "refused"

    entities: tuple[Entity, ...]

    @classmethod
    def _of_row(cls, columns: Columns, row: int, *, token_count: int, truncated: bool) -> Self:
        entities = tuple(
            Entity(each["label"], each["start"], each["end"], each["text"], each["score"])
            for each in json.loads(columns["entities"][row, 0])
        )
        return cls(entities=entities, token_count=token_count, truncated=truncated)


@dataclass(frozen=True, kw_only=True, eq=False)
class Embedding(Reply):
    """The vector of a text, `(M,)` float32."""

    outputs = ("embedding",)
    does = "embeds texts"

    vector: npt.NDArray[np.float32]

    @property
    def norm(self) -> float:
        """The vector's length."""
        return float(np.linalg.norm(self.vector))

    @classmethod
    def _of_row(cls, columns: Columns, row: int, *, token_count: int, truncated: bool) -> Self:
        return cls(vector=columns["embedding"][row], token_count=token_count, truncated=truncated)


def of_tasks(columns: Columns, tasks: Sequence[str]) -> Columns:
    """Return the columns of a model of several tasks, with those that rows are of as `task`.

    Rows of `scores` and `logits` become as wide as their task: what it has no label for is −inf in `logits`.
    """
    is_own = ~np.isneginf(columns["logits"])
    cut = {name: np.empty(len(tasks), dtype=np.object_) for name in ("scores", "logits")}
    for name, rows in cut.items():
        for row, own in enumerate(is_own):
            rows[row] = columns[name][row, own]
    return {**columns, **cut, "task": np.array(tasks, dtype=np.object_)}


KINDS: tuple[type[Reply], ...] = (Prediction, Answer, Entities, Embedding)


def reply_of(outputs: Collection[str]) -> type[Reply] | None:
    """Return the kind of reply that a model with these outputs gives; None where it is none of ours."""
    wanted = {"token_count", "truncated"}
    return next((kind for kind in KINDS if wanted.union(kind.outputs) <= set(outputs)), None)
