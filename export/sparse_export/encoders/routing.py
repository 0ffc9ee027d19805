"""Which rows of a batch belong to which task, for what a model of several tasks has of each."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Partition:
    """Numbers in parts, one for each task, and how values in their order go back to their places.

    Attributes:
        tasks: `(K,)` int64, whose each is.
        parts: each task's numbers among the K, `(K_i,)` int64, ascending; every number is in one part.
        restore: `(K,)` int64, where each number stands behind the parts one after another.
    """

    tasks: Tensor
    parts: Sequence[Tensor]
    restore: Tensor

    @classmethod
    def of(cls, tasks: Tensor, count: int) -> Self:
        """Part the numbers 0 … K − 1.

        Args:
            tasks: `(K,)` int64, whose each is, from 0 to `count` − 1.
            count: of tasks.
        """
        belongs = tasks[:, None] == torch.arange(count, device=tasks.device)
        rank = belongs.to(torch.int64).cumsum(0) - 1
        size = belongs.sum(0)
        place = torch.where(belongs, rank + (size.cumsum(0) - size), 0).sum(1)
        return cls(tasks, [(tasks == task).nonzero().squeeze(1) for task in range(count)], place)

    def join(self, values: Sequence[Tensor]) -> Tensor:
        """Put the parts' values, `(K_i, …)` each, into one tensor `(K, …)`."""
        return torch.cat([*values]).index_select(0, self.restore)


class Part(ABC):
    """The part of a batch that one task's weights work on."""

    @abstractmethod
    def take(self, hidden: Tensor) -> Tensor:
        """Return the part's hidden states, `(…, M)`."""

    def take_queries(self, hidden: Tensor) -> Tensor | None:
        """Return those that attend, `(…, M)`, where not all of the part's do; None where they do."""
        return None

    @abstractmethod
    def attend(self, query: Tensor, key: Tensor, value: Tensor, num_heads: int, dropout: float) -> Tensor:
        """Attend with softmax over all tokens of a row: `(…, H·D)` each.

        Keys and values are made of `take`, and so are queries, unless there are `take_queries`.
        """


class Routing(ABC):
    """The parts of a batch, by the names of their tasks."""

    parts: dict[str, Part]

    @abstractmethod
    def join(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return what was made of the parts in the order of what `Part.take` was given."""


class OneTask(Routing, Part):
    """A padded batch whose rows are all of one task."""

    def __init__(self, task: str, attention_mask: Tensor | None) -> None:
        """Take the task's name and the mask `(B, L)`, nonzero for tokens; None without padding."""
        self.parts = {task: self}
        self._mask = attention_mask

    def take(self, hidden: Tensor) -> Tensor:
        """Return all of it, `(B, L, M)`."""
        return hidden

    def attend(self, query: Tensor, key: Tensor, value: Tensor, num_heads: int, dropout: float) -> Tensor:
        """Attend within each row."""
        batch, length, width = query.shape
        split = (batch, length, num_heads, width // num_heads)
        q, k, v = (each.view(split).transpose(1, 2) for each in (query, key, value))
        mask = None if self._mask is None else _seen(self._mask)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        return attended.transpose(1, 2).reshape(batch, length, width)

    def join(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the only part's."""
        (output,) = outputs
        return output


class ByRows(Routing):
    """A padded batch whose rows are of several tasks."""

    def __init__(self, rows: Partition, tasks: Sequence[str], attention_mask: Tensor) -> None:
        """Take the rows of each task, in the order of `tasks`, and the mask `(B, L)`."""
        self.rows = rows
        self.parts = {
            task: _Rows(task, numbers, attention_mask)
            for task, numbers in zip(tasks, rows.parts, strict=True)
        }

    def join(self, outputs: Sequence[Tensor]) -> Tensor:
        """Put the rows of all tasks into their order, `(B, L, M)`."""
        return self.rows.join(outputs)


class _Rows(OneTask):
    """The rows of one task in a padded batch."""

    def __init__(self, task: str, numbers: Tensor, attention_mask: Tensor) -> None:
        super().__init__(task, attention_mask.index_select(0, numbers))
        self._numbers = numbers

    def take(self, hidden: Tensor) -> Tensor:
        """Return them, `(B_i, L, M)`."""
        return hidden.index_select(0, self._numbers)


def _seen(attention_mask: Tensor) -> Tensor:
    """Return which keys are seen, `(B, 1, 1, L)` bool: all in a row without tokens, as none have no mean."""
    seen = attention_mask != 0
    return (seen | ~seen.any(1, keepdim=True))[:, None, None, :]
