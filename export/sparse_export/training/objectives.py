"""What a training step minimises: a sum of objectives, each a mean over the step's rows or its items."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sparse_export.attention.masks import LayerMask

Inputs = Mapping[str, Tensor]
"""A batch, or a part of one: what the model reads, and the targets of the objectives."""


@dataclass(frozen=True)
class Part:
    """What a model made of the part of a batch that one process computes at once.

    Attributes:
        inputs: of the model, and the targets.
        outputs: of the model.
        masks: of every layer that attends by a pattern; none in the dense stage.
        items: how many items of the objective all parts of the step have; None where it has none.
        parts: how many parts the step has, over all processes.
    """

    inputs: Inputs
    outputs: Any
    masks: Sequence[LayerMask]
    items: Tensor | None
    parts: int

    def mean(self, total: Tensor) -> Tensor:
        """Return this part's share in the mean over all items of the step, of which `total` is a part's sum.

        The trainer takes the mean over the parts, which have different numbers of items, or even none: a mean
        of their means would depend on how many share the batch.
        """
        assert self.items is not None
        return total * self.parts / self.items.clamp_min(1)


class Objective(ABC):
    """One summand of the loss.

    Attributes:
        targets: which of a batch's tensors it reads beside what the model reads.
        encodes_twice: whether steps that it `joins` are computed on every row twice, under two dropouts: the
            second half of a part's rows are the first ones again. It reads the hidden states.
    """

    targets: Sequence[str] = ()
    encodes_twice: bool = False

    def joins(self, inputs: Inputs) -> bool:
        """Tell whether it has a part in a step on these rows."""
        return True

    def items(self, inputs: Inputs) -> Tensor | None:
        """Count what the loss is a mean over; None where that is the rows, as many in every part."""
        return None

    @abstractmethod
    def loss(self, part: Part) -> Tensor | float:
        """Return a part's loss, of which the step's is the mean over the parts."""
