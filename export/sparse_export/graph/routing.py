"""The tokens of a packed batch by the tasks of their rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sparse_export.encoders.packing import MOST_TOKENS, HiddenFirst, Packing, Sequences
from sparse_export.encoders.routing import Part, Partition, Routing
from sparse_export.graph.nodes import HeadSettings
from sparse_export.graph.packed_attention import attend_across, attend_all


def routing_of(packing: Packing, tasks: Sequence[str]) -> "PackedRouting":
    """Return how the tokens of a packed batch belong to tasks, in the order of their numbers."""
    if packing.tasks is None:
        (task,) = tasks
        return AllOfOneTask(task, packing)
    return ByTask(packing, packing.tasks, tasks)


@dataclass(frozen=True)
class _Tokens(Part):
    """The tokens of one task's rows, T_i and behind them R_i hidden first ones.

    Attributes:
        tokens: `(T_i + R_i,)` int64, which of the batch's they are; None for all.
        cu_seqlens: borders of their sequences: those of other tasks' rows are empty.
        hidden: the hidden first tokens among them; None where none can be.
    """

    tokens: Tensor | None
    cu_seqlens: Tensor
    hidden: HiddenFirst | None

    def take(self, hidden: Tensor) -> Tensor:
        """Return `(T_i + R_i, M)` of the batch's hidden states `(1, T + R, M)`."""
        return hidden[0] if self.tokens is None else hidden[0].index_select(0, self.tokens)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, num_heads: int, dropout: float) -> Tensor:
        """Attend within each sequence."""
        heads = HeadSettings(num_heads, (query.shape[1] // num_heads) ** -0.5, lambd=None)
        output, _ = attend_all((query, key, value), self.cu_seqlens, self.hidden, heads)
        return output


@dataclass(frozen=True)
class _FirstTokens(_Tokens):
    """The same, of which only the first tokens of the task's B_i rows attend.

    Attributes:
        first: `(B_i,)` int64, which of the batch's tokens they are.
        sequences: their borders, and those of the keys.
    """

    first: Tensor
    sequences: Sequences

    def take_queries(self, hidden: Tensor) -> Tensor:
        """Return `(B_i, M)` of the batch's hidden states `(1, T + R, M)`."""
        return hidden[0].index_select(0, self.first)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, num_heads: int, dropout: float) -> Tensor:
        """Attend from the first tokens within each sequence."""
        heads = HeadSettings(num_heads, (query.shape[1] // num_heads) ** -0.5, lambd=None)
        output, _ = attend_across(query, key, value, self.sequences, heads)
        return output


class FirstTokens(Routing):
    """A packed batch of which the first tokens of the B rows are computed alone."""

    def __init__(self, packing: Packing, tokens: dict[str, _Tokens]) -> None:
        """Take the tokens of each task, in the order of their numbers."""
        self._rows = packing.tasks
        self.parts = {
            task: _first_tokens(packing, own, number) for number, (task, own) in enumerate(tokens.items())
        }

    def join(self, outputs: Sequence[Tensor]) -> Tensor:
        """Put the rows of all tasks into their order, `(1, B, M)`."""
        return (outputs[0] if self._rows is None else self._rows.join(outputs))[None]


class PackedRouting(Routing):
    """The parts of a packed batch, of all its tokens."""

    def __init__(self, packing: Packing, tokens: dict[str, _Tokens]) -> None:
        self.parts = dict(tokens)
        self._packing, self._of_tasks = packing, tokens

    def of_first_tokens(self) -> FirstTokens:
        """Return the routing of a layer of which first tokens are computed alone."""
        return FirstTokens(self._packing, self._of_tasks)


class AllOfOneTask(PackedRouting):
    """A packed batch whose rows are all of one task."""

    def __init__(self, task: str, packing: Packing) -> None:
        super().__init__(packing, {task: _Tokens(None, packing.cu_seqlens, packing.hidden)})

    def join(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the only part's."""
        (output,) = outputs
        return output[None]


class ByTask(PackedRouting):
    """A packed batch whose rows are of several tasks.

    Each task's weights work on its own tokens alone, gathered in one piece: a task without rows costs
    nothing. They lie in the order of the batch, so that the trunk's tokens need not be moved for it.
    """

    def __init__(self, packing: Packing, rows: Partition, tasks: Sequence[str]) -> None:
        owners = packing.owners
        # The tracer writes down how large a size can be, and the sum of two without a bound has no type.
        if packing.hidden is not None:
            torch._check(packing.hidden.rows.shape[0] < MOST_TOKENS)
        torch._check(owners.shape[0] < MOST_TOKENS)
        self._tokens = Partition.of(rows.tasks.index_select(0, owners), len(tasks))
        lengths = packing.borders[1:] - packing.borders[:-1]
        parts = {
            task: _part(packing, owners, tokens, torch.where(rows.tasks == number, lengths, 0))
            for number, (task, tokens) in enumerate(zip(tasks, self._tokens.parts, strict=True))
        }
        super().__init__(packing, parts)

    def join(self, outputs: Sequence[Tensor]) -> Tensor:
        """Put the tokens of all tasks into their order, `(1, T + R, M)`."""
        return self._tokens.join(outputs)[None]


def _part(packing: Packing, owners: Tensor, tokens: Tensor, lengths: Tensor) -> _Tokens:
    """Lay out one task's tokens.

    Args:
        packing: of the batch.
        owners: `(T + R,)` int64, the row of each of its tokens.
        tokens: `(T_i + R_i,)` int64, which are the task's.
        lengths: `(B,)` int64, tokens of its rows, and 0 of all others.
    """
    borders = nn.functional.pad(lengths.cumsum(0), (1, 0))
    if packing.hidden is None:
        return _Tokens(tokens, borders.to(torch.int32), None)
    ranks, rows = (each.index_select(0, tokens) for each in (packing.ranks, owners))
    hidden = (ranks < 0).nonzero().squeeze(1)  # behind the others, as in the batch
    own = (rows.index_select(0, hidden)[:, None] == rows[None, :]) & (ranks >= 0)[None, :]
    cu_seqlens = torch.cat([borders, hidden + 1]).to(torch.int32)
    return _Tokens(tokens, cu_seqlens, HiddenFirst(rows=hidden, own=own, ranks=ranks))


def _first_tokens(packing: Packing, tokens: _Tokens, number: int) -> _FirstTokens:
    """Have one task's tokens, of a task's number, be attended to by the first ones of its rows alone."""
    first, sequences = packing.first, Sequences.of_first(packing.first.shape[0], tokens.cu_seqlens)
    if packing.tasks is not None:
        first = first.index_select(0, packing.tasks.parts[number])
        sequences = sequences.of_some(packing.tasks.tasks == number)
    return _FirstTokens(tokens.tokens, tokens.cu_seqlens, tokens.hidden, first, sequences)
