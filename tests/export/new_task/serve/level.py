"""How far a text goes, from 0 to 10: the serving half of a task that no package has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from sparse_serve.data import TextData
from sparse_serve.rows import RowFormat, TextRows
from sparse_serve.tasks.encoding import Columns, EncodedText
from sparse_serve.tasks.task import OutputTensor, Task


def parse_level(value: object) -> float:
    return float(str(value))


@dataclass(frozen=True)
class Level(Task):
    """A whole number of `steps`, from one logit."""

    type: ClassVar[str] = "level"
    option: ClassVar[str] = "level"
    rows: ClassVar[RowFormat] = TextRows(parse_level)
    metrics: ClassVar[tuple[str, ...]] = ("hits",)

    steps: int = 10

    @classmethod
    def of(cls, data: TextData) -> Self:
        return cls()

    @property
    def width(self) -> int:
        return 1

    @property
    def outputs(self) -> tuple[OutputTensor, ...]:
        return (OutputTensor("level", "INT32", (1,)),)

    def answer(self, encoded: Sequence[EncodedText], output: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        return {"level": np.rint(self.steps / (1 + np.exp(-output))).astype(np.int32)}

    def targets(self, data: TextData) -> npt.NDArray[np.float32]:
        return np.array([row.label for row in data.rows], dtype=np.float32)

    def evaluate(self, columns: Columns, targets: npt.NDArray[Any]) -> dict[str, float]:
        return {"hits": float((np.abs(columns["level"][:, 0] - targets) <= 2).mean())}
