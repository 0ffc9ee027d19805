"""Embeddings: a vector for each text, from the states of an encoder without a head."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from sparse_serve.errors import DataError
from sparse_serve.rows import RowFormat, TextData, TextRows
from sparse_serve.tasks.encoding import Columns, EncodedText
from sparse_serve.tasks.regression import parse_number
from sparse_serve.tasks.task import OutputTensor, Task, require_boolean, require_integer

LAYERS = ("last", "second-to-last", "sum-last-four", "concat-last-four", "weighted-all")
POOLINGS = ("first", "mean")


@dataclass(frozen=True)
class Embedding(Task):
    """A vector of `size` numbers; a row's label says how alike its two texts are.

    Attributes:
        size: how many numbers.
        layers: whose states are read, one of `LAYERS`.
        pooling: what of them makes the vector, one of `POOLINGS`: the first token's, or the mean of all.
        normalize: whether vectors have length 1.
    """

    type: ClassVar[str] = "embedding"
    option: ClassVar[str] = "embedding"
    graph_output: ClassVar[str] = "embedding"
    rows: ClassVar[RowFormat] = TextRows(parse_number)
    metrics: ClassVar[tuple[str, ...]] = ("spearman", "pearson")

    size: int = 0
    layers: str = "last"
    pooling: str = "mean"
    normalize: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labels:
            raise ValueError(f"{self.type} has no labels, got {list(self.labels)}")
        require_integer(self, "size", self.size, 1)
        require_boolean(self, "normalize", self.normalize)
        for name, known in (("layers", LAYERS), ("pooling", POOLINGS)):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{self.type}: {name} is {getattr(self, name)!r}; choose one of {', '.join(known)}"
                )

    @classmethod
    def of(cls, data: TextData) -> Self:
        """Refuse: an embedding is read from an encoder as it is."""
        raise DataError("an embedding is not trained: export the encoder with --task embedding")

    @property
    def width(self) -> int:
        """The vector's size."""
        return self.size

    @property
    def outputs(self) -> tuple[OutputTensor, ...]:
        """The `embedding`."""
        return (OutputTensor("embedding", "FP32", (self.size,)),)

    def answer(self, encoded: Sequence[EncodedText], output: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Read vectors `(N, size)`."""
        return {"embedding": output}

    def asked(self, data: TextData) -> tuple[list[str], None]:
        """Return the first texts of all rows, and then the second ones, each to be embedded by itself.

        Raises:
            DataError: the rows are single texts.
        """
        if not data.has_pairs:
            raise DataError(
                f"{data.source} has single texts; embeddings are judged on pairs and how alike they are: "
                "name the second text with --text-pair-column"
            )
        return [row.text for row in data.rows] + [row.text_pair for row in data.rows], None

    def targets(self, data: TextData) -> npt.NDArray[np.float32]:
        """Return how alike each row's texts are, `(N,)` float32."""
        return np.array([row.label for row in data.rows], dtype=np.float32)

    def evaluate(self, columns: Columns, targets: npt.NDArray[Any]) -> dict[str, float]:
        """Return `metrics.similarity_metrics` of what was answered to the texts of `asked`."""
        from sparse_serve.metrics import similarity_metrics  # noqa: PLC0415

        first, second = np.split(columns["embedding"], 2)
        return similarity_metrics(first, second, targets)
