"""How the tokens of a batch lie in a packed one, and what one forward pass on them shares.

Tokens come packed, from a tokenizer, or padded, from a client. Two details of padded batches keep the answers
Transformers' own for every mask. A head reads column 0 even where the mask hides it (left padding): that
position is no key, but it is a query. Such rows are rare, so their column-0 tokens are appended behind the T
real tokens as queries without keys (R of them, normally 0). And what the embedding of a token takes from
beside it, position or neighbours, is read from the padded row.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Self, cast

import torch
from torch import Tensor, nn

from sparse_export.attention.masks import LayerMask
from sparse_export.attention.patterns import LayerPattern
from sparse_export.encoders.routing import Partition

# What one batch has at most of anything; the tracer asks for a bound where it adds sizes up.
MOST_TOKENS = 2**31


@dataclass(frozen=True)
class Sequences:
    """The borders of sequences whose queries are beside their keys, named as by FlashAttention.

    Attributes:
        cu_seqlens_q: `(B + 1,)` int32, of the queries.
        cu_seqlens_k: `(B + 1,)` int32, of the keys.
    """

    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor

    @classmethod
    def of_first(cls, rows: int, cu_seqlens: Tensor) -> Self:
        """Give each of the first sequences, as many as there are `rows`, one query, and none to the others.

        Args:
            rows: B.
            cu_seqlens: the borders of `Packing`: those of hidden first tokens stand behind the rows'.
        """
        queries = torch.arange(cu_seqlens.shape[0], device=cu_seqlens.device).clamp_max(rows)
        return cls(queries.to(torch.int32), cu_seqlens)

    def of_some(self, chosen: Tensor) -> Self:
        """Return the same of some of the rows, `(B,)` bool: the others have no query."""
        borders = nn.functional.pad(chosen.to(torch.int32).cumsum(0, dtype=torch.int32), (1, 0))
        return replace(self, cu_seqlens_q=borders.index_select(0, self.cu_seqlens_q))

    def slices(self) -> Iterator[tuple[slice, slice]]:
        """Yield each sequence's rows of the queries and of the keys."""
        borders = (pairwise(each.tolist()) for each in (self.cu_seqlens_q, self.cu_seqlens_k))
        for own, keys in zip(*borders, strict=True):
            yield slice(*own), slice(*keys)


@dataclass(frozen=True)
class HiddenFirst:
    """Queries that are no keys: first tokens that the mask hides.

    Attributes:
        rows: `(R,)` int64, their positions T … T + R − 1.
        own: `(R, T + R)` bool, the tokens of the same sequence.
        ranks: `(T + R,)` int64, each token's number within its sequence, and −1 for them.
    """

    rows: Tensor
    own: Tensor
    ranks: Tensor


@dataclass(frozen=True)
class Packing(ABC):
    """How the tokens of B rows lie in a packed batch of T tokens and R hidden first tokens.

    Attributes:
        borders: `(B + 1,)` int64, borders of the B sequences.
        cu_seqlens: `(B + 1 + R,)` int32, the same with each hidden first token as a sequence of one.
        first: `(B,)` int64, where the head finds each row's first token.
        ranks: `(T + R,)` int64, each token's number within its sequence, −1 for hidden first tokens.
        hidden: the hidden first tokens, which attend as queries and are no keys; None where none can be.
        has_token: `(B, 1)` bool, False where a row has no token.
        tasks: the B rows by their tasks; None where all are of one.
    """

    borders: Tensor
    cu_seqlens: Tensor
    first: Tensor
    ranks: Tensor
    hidden: HiddenFirst | None
    has_token: Tensor
    tasks: Partition | None

    @abstractmethod
    def side_by_side(self) -> Tensor:
        """Return where a padded batch of the rows has tokens, `(B, L)` bool."""

    @property
    @abstractmethod
    def owners(self) -> Tensor:
        """The row of each token, `(T + R,)` int64."""

    def first_tokens(self) -> Sequences:
        """Return the borders of each row's first token as the only query, and of all keys."""
        return Sequences.of_first(self.first.shape[0], self.cu_seqlens)

    def of_rows(self, rows: Tensor) -> Self:
        """Return what a head that reads first tokens sees of some rows, `(K,)` int64: the tokens stay."""
        first, has_token = (each.index_select(0, rows) for each in (self.first, self.has_token))
        return replace(self, first=first, has_token=has_token, tasks=None)

    def lengths(self) -> Tensor:
        """Return how many tokens each row has, `(B, 1)` float32."""
        return (self.borders[1:] - self.borders[:-1]).to(torch.float32)[:, None]

    def unpack(self, values: Tensor) -> Tensor:
        """Lay values of tokens `(T + R, C)` out as rows side by side, `(B, L, C)`: zeros where none is.

        A hidden first token's are left out.
        """
        keep = self.side_by_side()
        nth = keep.reshape(-1).to(torch.int64).cumsum(0) - 1
        laid_out = values.index_select(0, nth.clamp_min(0)).view(*keep.shape, values.shape[1])
        return torch.where(keep[:, :, None], laid_out, 0)

    def sums(self, layers: Sequence[Tensor]) -> Tensor:
        """Sum numbers of tokens, `(T + R,)` int64 by layer, over each row's tokens: `(B, layers)` float32."""
        if not layers:
            return self.lengths()[:, :0]
        running = nn.functional.pad(torch.stack([*layers], 1).cumsum(0), (0, 0, 1, 0))
        return (running[self.borders[1:]] - running[self.borders[:-1]]).to(torch.float32)

    def means(self, values: Tensor) -> Tensor:
        """Average values of tokens, `(T + R, C)`, over each row's tokens: `(B, C)` float32.

        A running sum adds them one by one, in the order of the row: what a longer row beside it adds are
        zeros at the end, so that the mean is the same to the bit in any company. A row without tokens has 0.
        """
        running = self.unpack(values.to(torch.float32)).cumsum(1)
        return running[:, -1] / self.lengths().clamp_min(1)


@dataclass(frozen=True)
class PaddedPacking(Packing):
    """The tokens of a padded `[B, L]` batch, packed.

    Attributes:
        keep: `(B, L)` bool, where the batch has tokens.
        tokens: `(T + R,)` int64, positions in the flattened `[B · L]` batch.
    """

    keep: Tensor
    tokens: Tensor

    @classmethod
    def of(cls, attention_mask: Tensor, tasks: Partition | None = None) -> Self:
        """Lay out a batch by its mask `(B, L)`, where nonzero marks a token; `tasks` part its rows."""
        keep = attention_mask != 0
        batch, length = keep.shape
        sequence_length = keep.sum(1)
        has_token = sequence_length > 0
        # An entirely empty batch keeps its column 0, so that no tensor below is without rows.
        hides_first = ~keep[:, 0] & (has_token | ~has_token.any())

        real = keep.reshape(-1).nonzero().squeeze(1)
        owners = hides_first.nonzero().squeeze(1)
        cumulative = sequence_length.cumsum(0)
        borders = torch.cat([cumulative.new_zeros(1), cumulative])
        position = torch.arange(batch * length, device=keep.device).view(batch, length)[:, 0]
        tokens = torch.cat([real, position[owners]])
        hidden = torch.arange(tokens.shape[0], device=keep.device)[real.shape[0] :]
        nth_hidden = hides_first.to(torch.int64).cumsum(0) - 1
        # Rows without any token have nothing to read; index 0 exists, and the answer is zeroed.
        first = torch.where(hides_first, borders[-1] + nth_hidden, torch.where(has_token, borders[:-1], 0))
        owner_of_token = torch.cat([real // length, torch.full_like(owners, -1)])
        cu_seqlens = torch.cat([borders, hidden + 1]).to(torch.int32)
        own = owners[:, None] == owner_of_token[None, :]
        ranks = (keep.to(torch.int64).cumsum(1) - 1).reshape(-1)[tokens]
        return cls(
            borders=borders,
            cu_seqlens=cu_seqlens,
            first=first,
            ranks=ranks,
            hidden=HiddenFirst(rows=hidden, own=own, ranks=ranks),
            has_token=has_token[:, None],
            tasks=tasks,
            keep=keep,
            tokens=tokens,
        )

    def side_by_side(self) -> Tensor:
        """Return where the batch has tokens, `(B, L)` bool."""
        return self.keep

    @property
    def owners(self) -> Tensor:
        """The row of each token, `(T + R,)` int64."""
        return self.tokens // self.keep.shape[1]

    def pack(self, ids: Tensor) -> Tensor:
        """Gather ids, `(B, L)` to `(1, T + R)`."""
        packed = ids.reshape(-1)[self.tokens][None]
        # ONNX's Gather counts negative ids from the end, torch refuses them: make them too large for both.
        return torch.where(packed < 0, torch.iinfo(torch.int32).max, packed)


@dataclass(frozen=True)
class TokenPacking(Packing):
    """Tokens that come packed, one or more for each row, and none of them hidden."""

    @classmethod
    def of(cls, positions: Tensor, cu_seqlens: Tensor, tasks: Partition | None = None) -> Self:
        """Take each token's number within its row, `(T,)` int64, and the borders of rows `(B + 1,)` int32."""
        borders = cu_seqlens.to(torch.int64)
        return cls(
            borders=borders,
            cu_seqlens=cu_seqlens,
            first=borders[:-1],
            ranks=positions,
            hidden=None,
            has_token=(borders[1:] > borders[:-1])[:, None],
            tasks=tasks,
        )

    def side_by_side(self) -> Tensor:
        """Return where a padded batch of the rows has tokens, `(B, L)` bool, L the most of a row."""
        lengths = self.borders[1:] - self.borders[:-1]
        longest = cast(int, lengths.max().item())
        # The tracer is told what is true of every batch.
        torch._check(longest >= 1)
        torch._check(longest < MOST_TOKENS)
        return torch.arange(longest, device=lengths.device) < lengths[:, None]

    @property
    def owners(self) -> Tensor:
        """The row of each token, `(T,)` int64."""
        return (self.ranks == 0).to(torch.int64).cumsum(0) - 1


@dataclass(frozen=True)
class Axes:
    """The rows and columns of a packed batch that are on.

    Attributes:
        rows: `(T + R,)` bool.
        columns: `(T + R,)` bool.
    """

    rows: Tensor
    columns: Tensor


@dataclass(frozen=True)
class PackedPass:
    """What the layers of one packed forward pass share.

    Attributes:
        packing: how the tokens lie.
        patterns: each layer's, as it is served; none where every key is allowed.
        always_on: `(T + R,)` bool, whose row and column are on in every layer.
        supports: what each layer's attention kept, `(T + R, H)` int32, or `(B, H)` where first tokens alone
            attend; none where it keeps everything.
        axes: each layer's rows and columns that are on, where it has a pattern.
        keys_and_values: of all tokens, `(T + R, H·D)` each, in a layer of which first tokens alone attend.
    """

    packing: Packing
    patterns: Sequence[LayerPattern]
    always_on: Tensor
    supports: list[Tensor] = field(default_factory=list)
    axes: list[Axes] = field(default_factory=list)
    keys_and_values: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, packing: Packing, patterns: Sequence[LayerPattern]) -> "PackedPass":
        """Begin a pass; all patterns have the same global part."""
        pattern = patterns[0] if patterns else LayerPattern()
        return cls(packing, patterns, pattern.is_global(packing.ranks))

    def next_pattern(self, mask: LayerMask) -> tuple[LayerPattern, Axes]:
        """Return what the next layer may attend to, and note its rows and columns."""
        pattern = self.patterns[len(self.axes)]
        rows, columns = (self._on(learned, pattern) for learned in (mask.rows, mask.columns))
        self.axes.append(Axes(rows, columns))
        return pattern, self.axes[-1]

    def _on(self, learned: Tensor | None, pattern: LayerPattern) -> Tensor:
        if learned is None:
            return self.always_on
        learned = learned.reshape(-1)
        return learned | self.always_on if pattern.global_size else learned
