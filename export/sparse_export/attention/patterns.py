"""Attention patterns: which pairs of a sequence's tokens may attend (the AAA paper, Section 2.2).

A pattern is a set of allowed pairs (i, j), query i reading key j, where i and j count a sequence's N real
tokens from 0. It is the union (Eq. 8) of

- diagonals |i − j| ∈ O (Eq. 6), of which a local pattern of size w is O = {0, …, w};
- rows and columns, i ∈ R or j ∈ C (Eq. 7), of which a global pattern of size g is R = C = {0, …, g − 1};
- random keys, drawn for each row. A random pattern of size r draws 2r keys, so that one more of it is about
  as many pairs as one more of a local or a global one.

Rows and columns may be learned for each token (adaptive axis attention), diagonals for each task or layer.
"""

import re
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sparse_serve.errors import OptionError

# The random keys' hash works modulo this prime, so that no product leaves 62 bits.
_PRIME = 2**31 - 1
_SHIFT = 1580030168

_TERM = re.compile(r"(axis|diagonal|layer-diagonal)|(local|global|random)(\d{1,7})")
_ACCEPTED = (
    "softmax, sparsegen, or of axis, diagonal, layer-diagonal, localN, globalN and randomN one or several, "
    "joined by + as in local2+global1"
)


def random_keys(seed: int, rows: Tensor, draws: int, lengths: Tensor) -> Tensor:
    """Return the random keys of rows: a fixed hash of seed, row and draw, modulo the sequence's length.

    key(i, t) = mix(mix(mix(seed) + i + 1) + t + 1) mod N with mix(x) = (x + 1580030168)⁵ modulo 2³¹ − 1.

    Args:
        seed: at least 0.
        rows: int64 of any shape, the rows i ≥ −1.
        draws: keys per row; the same key may come more than once.
        lengths: int64, broadcastable to `rows`: N of each row's sequence.

    Returns:
        `rows.shape + (draws,)` int64, from 0 to N − 1; 0 where N is 0.
    """
    of_seed = _mix(torch.tensor(seed % _PRIME, device=rows.device))
    of_row = _mix((of_seed + rows + 1) % _PRIME)
    draw = torch.arange(1, draws + 1, device=rows.device)
    return _mix((of_row[..., None] + draw) % _PRIME) % lengths.clamp_min(1)[..., None]


def _mix(x: Tensor) -> Tensor:
    x = (x + _SHIFT) % _PRIME
    square = x * x % _PRIME
    return square * square % _PRIME * x % _PRIME


@dataclass(frozen=True)
class LayerPattern:
    """The fixed part of one layer's pattern, in the words of the op `AxisAttention`.

    Attributes:
        diagonals: offsets ≥ 0, each meant on both sides.
        global_size: how many first rows and columns are on.
        random_keys: keys drawn per row.
        seed: of the random keys.
    """

    diagonals: tuple[int, ...] = ()
    global_size: int = 0
    random_keys: int = 0
    seed: int = 0

    def allowed(
        self, ranks: Tensor, lengths: Tensor, rows: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        """Return the allowed pairs of a batch.

        Args:
            ranks: `(B, L)` int64, each token's number within its sequence.
            lengths: `(B,)` int64, N of each sequence.
            rows: `(B, L)` bool, further rows that are on.
            columns: `(B, L)` bool, further columns that are on.

        Returns:
            `(B, L, L)` bool, `[sequence, query, key]`, also for places that hold no token.
        """
        axes = self.on(ranks, rows)[:, :, None] | self.on(ranks, columns)[:, None, :]
        return axes | self.off_axes(ranks, ranks, lengths[:, None])

    def off_axes(self, queries: Tensor, keys: Tensor, lengths: Tensor) -> Tensor:
        """Return the pairs that diagonals and random keys allow, whatever rows and columns are on.

        Args:
            queries: `(…, Q)` int64, numbers of the queries within their sequences.
            keys: `(…, K)` int64, those of the keys.
            lengths: int64, broadcastable to `queries`: N of each query's sequence.

        Returns:
            `(…, Q, K)` bool.
        """
        query, key = queries[..., :, None], keys[..., None, :]
        pairs = torch.zeros_like(query == key)
        if self.diagonals:
            pairs = pairs | self._on_diagonals((query - key).abs(), keys.shape[-1])
        for drawn in random_keys(self.seed, queries, self.random_keys, lengths).unbind(-1):
            pairs = pairs | (drawn[..., :, None] == key)
        return pairs

    def on(self, ranks: Tensor, learned: Tensor | None) -> Tensor:
        """Return bool of the shape of `ranks`: whose row, or column, is on, globally or as it was learned."""
        is_global = self.is_global(ranks)
        return is_global if learned is None else is_global | learned

    def is_global(self, ranks: Tensor) -> Tensor:
        """Return bool of the shape of `ranks`: whose row and column are on wherever they stand.

        A query before its sequence's first token, of rank −1, goes with that token.
        """
        return ranks < self.global_size if self.global_size else torch.zeros_like(ranks, dtype=torch.bool)

    def size(self, length: int, rows: Tensor | None = None, columns: Tensor | None = None) -> int:
        """Return |B|, how many pairs of a sequence are allowed, without forming the N×N pairs.

        Args:
            length: N ≥ 0.
            rows: `(N,)` bool, further rows that are on.
            columns: `(N,)` bool, further columns that are on.
        """
        ranks = torch.arange(length)
        off_rows, off_columns = ~self.on(ranks, rows), ~self.on(ranks, columns)
        others = ranks[off_rows]
        pairs = length**2 - len(others) * int(off_columns.sum())
        for offset in {each for each in self.diagonals if each < length}:
            above = off_rows[: length - offset] & off_columns[offset:]
            below = off_rows[offset:] & off_columns[: length - offset]
            pairs += int(above.sum()) + (int(below.sum()) if offset else 0)
        drawn = random_keys(self.seed, others, self.random_keys, torch.full_like(others, length))
        drawn = drawn.sort(dim=1).values
        fresh = off_columns[drawn]
        fresh[:, 1:] &= drawn[:, 1:] != drawn[:, :-1]
        if self.diagonals:
            fresh &= ~self._on_diagonals((others[:, None] - drawn).abs(), length)
        return pairs + int(fresh.sum())

    def _on_diagonals(self, distance: Tensor, longest: int) -> Tensor:
        """Tell which distances, each at most `longest`, are on a diagonal."""
        is_on = torch.zeros(longest + 1, dtype=torch.bool, device=distance.device)
        is_on[[offset for offset in self.diagonals if offset <= longest]] = True
        return is_on[distance]


@dataclass(frozen=True)
class Pattern:
    """The pattern of a whole model, as its config remembers it.

    Attributes:
        axis: rows and columns are learned, for each layer and token (adaptive axis attention, Eq. 11-12).
        diagonal: offsets are learned, once for the "task" or for each "layer"; None where they are not.
        local: size w of the local pattern; None for none.
        global_size: size of the global pattern; 0 for none.
        random: size of the random pattern; 0 for none.
        offsets: further fixed diagonals: one set for all layers, or one for each.
        seed: of the random keys; layer k, from 0, draws with `seed` + k.
    """

    axis: bool = False
    diagonal: Literal["task", "layer"] | None = None
    local: int | None = None
    global_size: int = 0
    random: int = 0
    offsets: tuple[tuple[int, ...], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        # From JSON they come as lists.
        offsets = tuple(tuple(sorted(set(each))) for each in self.offsets)
        object.__setattr__(self, "offsets", offsets)
        sizes = (
            0 if self.local is None else self.local,
            self.global_size,
            self.random,
            self.seed,
            *(o for each in offsets for o in each),
        )
        if any(type(size) is not int or size < 0 for size in sizes):
            raise OptionError(
                f"the sizes, offsets and seed of a pattern must be whole numbers ≥ 0, got {self}"
            )
        if type(self.axis) is not bool:
            raise OptionError(f"the axis of a pattern is learned or not, true or false, got {self.axis!r}")
        if self.diagonal not in (None, "task", "layer"):
            raise OptionError(f"diagonals are learned per task or per layer, got {self.diagonal!r}")
        if not (self.learns or any(offsets) or self.local is not None or self.global_size or self.random):
            raise OptionError(f"a pattern must allow something; accepted: {_ACCEPTED}")

    @classmethod
    def parse(cls, text: str, seed: int = 0) -> "Pattern":
        """Read a pattern's name, such as `local2+global1+random1`; `axis` alone stands for `axis+local2`.

        The paper's own writing, as in Local2+Global1, is the same.

        Raises:
            OptionError: an unknown term, one of size 0 that means nothing, or two of one kind.
        """
        seen: dict[str, str] = {}
        for term in text.lower().split("+"):
            match = _TERM.fullmatch(term)
            if match is None:
                raise OptionError(f"attention {text!r} has no meaning at {term!r}; accepted: {_ACCEPTED}")
            learned, kind, size = match.groups()
            kind = kind or ("axis" if learned == "axis" else "diagonal")
            if kind in seen:
                raise OptionError(
                    f"attention {text!r} contradicts itself: {seen[kind]!r} and {term!r} are one kind of "
                    "pattern; give it once"
                )
            if kind in ("global", "random") and int(size) == 0:
                raise OptionError(
                    f"attention {text!r}: {term} allows nothing; leave it out, or give a size above 0"
                )
            seen[kind] = term
        sizes = {
            kind: int(term.removeprefix(kind))
            for kind, term in seen.items()
            if kind not in ("axis", "diagonal")
        }
        diagonal = seen.get("diagonal")
        return cls(
            axis="axis" in seen,
            diagonal=None if diagonal is None else "layer" if diagonal.startswith("layer") else "task",
            local=2 if tuple(seen) == ("axis",) else sizes.get("local"),
            global_size=sizes.get("global", 0),
            random=sizes.get("random", 0),
            seed=seed,
        )

    @property
    def name(self) -> str:
        """The name under which `parse` knows it, with `offsets` for fixed further diagonals."""
        learned = {None: "", "task": "diagonal", "layer": "layer-diagonal"}[self.diagonal]
        sizes = (("local", self.local), ("global", self.global_size or None), ("random", self.random or None))
        terms = ["axis" if self.axis else "", learned, "offsets" if self.offsets else ""]
        terms += [f"{kind}{size}" for kind, size in sizes if size is not None]
        return "+".join(term for term in terms if term)

    @property
    def learns(self) -> bool:
        """Whether any part of it is learned."""
        return self.axis or self.diagonal is not None

    def layer(self, index: int) -> LayerPattern:
        """Return the fixed part of layer `index`, from 0."""
        local = () if self.local is None else range(self.local + 1)
        own = self.offsets[index if len(self.offsets) > 1 else 0] if self.offsets else ()
        # A learned diagonal keeps the main one: no row may be without a key.
        main = (0,) if self.diagonal else ()
        return LayerPattern(
            diagonals=tuple(sorted({*local, *own, *main})),
            global_size=self.global_size,
            random_keys=2 * self.random,
            seed=self.seed + index,
        )

    def require_within(self, tokens: int) -> None:
        """Refuse sizes that no sequence of at most `tokens` tokens can use.

        Raises:
            OptionError: a window, a global size or an offset larger than that.
        """
        reach = {
            "local": (self.local or 0) + 1,
            "global": self.global_size,
            "random": self.random,
            "offset": max((offset + 1 for each in self.offsets for offset in each), default=0),
        }
        for kind, needed in reach.items():
            if needed > tokens:
                size = needed - 1 if kind in ("local", "offset") else needed
                most = tokens - 1 if kind in ("local", "offset") else tokens
                raise OptionError(
                    f"the {kind} size {size} of attention {self.name} is larger than the length: texts are "
                    f"cut at {tokens} tokens, so at most {most} means anything; choose a smaller one or a "
                    "larger --max-length"
                )
