"""How the tokens of a padded batch lie in a packed one, and what one forward pass on them shares.

Two details keep the answers Transformers' own for every mask. A head reads column 0 even where the mask
hides it (left padding): that position is no key, but it is a query. Such rows are rare, so their column-0
tokens are appended behind the T real tokens as queries without keys (R of them, normally 0). And what the
embedding of a token takes from beside it, position or neighbours, is read from the padded row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from sparse_export.attention.masks import LayerMask
from sparse_export.attention.patterns import LayerPattern
from sparse_export.encoders.routing import Partition


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
class Packing:
    """How the tokens of a `[B, L]` batch lie in a packed one of T tokens and R hidden first tokens.

    Attributes:
        keep: `(B, L)` bool, where the batch has tokens.
        tokens: `(T + R,)` int64, positions in the flattened `[B · L]` batch.
        borders: `(B + 1,)` int64, borders of the B sequences.
        cu_seqlens: `(B + 1 + R,)` int32, the same with each hidden first token as a sequence of one.
        first: `(B,)` int64, where the head finds each row's first token.
        hidden: the hidden first tokens, which attend as queries and are no keys.
        has_token: `(B, 1)` bool, False where the mask is zero throughout.
        tasks: the B rows by their tasks; None where all are of one.
    """

    keep: Tensor
    tokens: Tensor
    borders: Tensor
    cu_seqlens: Tensor
    first: Tensor
    hidden: HiddenFirst
    has_token: Tensor
    tasks: Partition | None = None

    @classmethod
    def of(cls, attention_mask: Tensor, tasks: Partition | None = None) -> "Packing":
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
        return cls(
            keep=keep,
            tokens=tokens,
            borders=borders,
            cu_seqlens=torch.cat([borders, hidden + 1]).to(torch.int32),
            first=first,
            hidden=HiddenFirst(
                rows=hidden,
                own=owners[:, None] == owner_of_token[None, :],
                ranks=(keep.to(torch.int64).cumsum(1) - 1).reshape(-1)[tokens],
            ),
            has_token=has_token[:, None],
            tasks=tasks,
        )

    def of_rows(self, rows: Tensor) -> "Packing":
        """Return what a head that reads first tokens sees of some rows, `(K,)` int64: the tokens stay."""
        first, has_token = (each.index_select(0, rows) for each in (self.first, self.has_token))
        return replace(self, first=first, has_token=has_token, tasks=None)

    def lengths(self) -> Tensor:
        """Return how many tokens each row has, `(B, 1)` float32."""
        return (self.borders[1:] - self.borders[:-1]).to(torch.float32)[:, None]

    def pack(self, ids: Tensor) -> Tensor:
        """Gather ids, `(B, L)` to `(1, T + R)`."""
        packed = ids.reshape(-1)[self.tokens][None]
        # ONNX's Gather counts negative ids from the end, torch refuses them: make them too large for both.
        return torch.where(packed < 0, torch.iinfo(torch.int32).max, packed)

    def unpack(self, values: Tensor) -> Tensor:
        """Lay values of tokens `(T + R, C)` out as the batch does, `(B, L, C)`: zeros where the mask is 0.

        A hidden first token's are left out.
        """
        nth = self.keep.reshape(-1).to(torch.int64).cumsum(0) - 1
        laid_out = values.index_select(0, nth.clamp_min(0)).view(*self.keep.shape, values.shape[1])
        return torch.where(self.keep[:, :, None], laid_out, 0)

    def sums(self, layers: Sequence[Tensor]) -> Tensor:
        """Sum numbers of tokens, `(T + R,)` int64 by layer, over each row's tokens: `(B, layers)` float32."""
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
        supports: what each layer's attention kept, `(T + R, H)` int32; none where it keeps everything.
        axes: each layer's rows and columns that are on, where it has a pattern.
    """

    packing: Packing
    patterns: Sequence[LayerPattern]
    always_on: Tensor
    supports: list[Tensor] = field(default_factory=list)
    axes: list[Axes] = field(default_factory=list)

    @classmethod
    def of(cls, packing: Packing, patterns: Sequence[LayerPattern]) -> "PackedPass":
        """Begin a pass; all patterns have the same global part."""
        pattern = patterns[0] if patterns else LayerPattern()
        return cls(packing, patterns, pattern.is_global(packing.hidden.ranks))

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
