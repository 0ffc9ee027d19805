"""What an inspection says in numbers: the JSON on stdout, and what the page says in words and tables."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sparse_export.attention.spec import AttentionSpec
from sparse_export.inspection.allowed import AllowedPairs, Flags
from sparse_export.inspection.inspecting import InspectedText, Variant
from sparse_export.inspection.maps import AttentionMaps


@dataclass(frozen=True)
class TokenAt:
    """A token and its place in the text, from 0."""

    place: int
    token: str


@dataclass(frozen=True)
class PatternSummary:
    """What a pattern allows in one text of L tokens; every list has one element per layer.

    Attributes:
        rho: share of the L² pairs that are not allowed: ρ of softmax (Eq. 9 of the AAA paper).
        rho_without_band: share that the learned rows, columns and diagonals by themselves do not allow;
            None where nothing is learned.
        rows_on: share of the tokens whose row is on, learned or global: they read every token.
        columns_on: share of the tokens whose column is on, learned or global: every token reads them.
        rows: those tokens.
        columns: those tokens.
        diagonals: distances below L at which tokens read each other, learned or fixed.
    """

    rho: list[float]
    rho_without_band: list[float] | None
    rows_on: list[float]
    columns_on: list[float]
    rows: list[list[TokenAt]]
    columns: list[list[TokenAt]]
    diagonals: list[list[int]]


@dataclass(frozen=True)
class VariantSummary:
    """One variant's reading of one text of L tokens.

    Attributes:
        name: as in the pictures.
        checkpoint: whose weights.
        attention: which keys it may read, and with which normaliser.
        as_trained: whether the checkpoint was trained with it.
        label: the answer, as the served model gives it.
        scores: one per label.
        rho: per layer the share of weights that are exactly zero.
        support: per layer the keys with a weight above zero per query, mean over heads and queries.
        read_by_head: the weight of each token for the first one in the last layer, mean over heads: what
            the classification head reads. L numbers that sum to 1.
        received: the weight of each token in the last layer, mean over heads and queries. The same shape.
        pattern: what its pattern allows; None for full attention.
    """

    name: str
    checkpoint: str
    attention: AttentionSpec
    as_trained: bool
    label: str
    scores: dict[str, float]
    rho: list[float]
    support: list[float]
    read_by_head: list[float]
    received: list[float]
    pattern: PatternSummary | None


@dataclass(frozen=True)
class TextSummary:
    """One text as every variant reads it; `truncated` says that it went on after its last token."""

    text: str
    text_pair: str
    tokens: list[str]
    truncated: bool
    variants: list[VariantSummary]

    def to_json(self) -> dict[str, Any]:
        """Return it in plain values, attentions as `AttentionSpec.to_json` writes them."""
        written = asdict(self)
        for variant, own in zip(written["variants"], self.variants, strict=True):
            variant["attention"] = own.attention.to_json()
        return written


def summarize(variants: tuple[Variant, ...], inspected: InspectedText) -> TextSummary:
    """Reduce maps to the numbers that are told about them."""
    text = inspected.text
    return TextSummary(
        text=text.text,
        text_pair=text.text_pair,
        tokens=list(text.tokens),
        truncated=text.truncated,
        variants=[
            _summarize(variant, maps, text.tokens)
            for variant, maps in zip(variants, inspected.maps, strict=True)
        ],
    )


def ranges(numbers: Iterable[int]) -> str:
    """Write ascending whole numbers for a reader: 0, 1, 2 and 7 as "0–2, 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def _summarize(variant: Variant, maps: AttentionMaps, tokens: Sequence[str]) -> VariantSummary:
    return VariantSummary(
        name=variant.name,
        checkpoint=variant.checkpoint,
        attention=variant.attention,
        as_trained=variant.as_trained,
        label=maps.prediction.label,
        scores=maps.prediction.scores,
        rho=list(maps.rho),
        support=maps.support.mean(axis=1).tolist(),
        read_by_head=maps.read_by_head.tolist(),
        received=maps.received.tolist(),
        pattern=None if maps.allowed is None else _pattern(maps.allowed, tokens),
    )


def _pattern(allowed: AllowedPairs, tokens: Sequence[str]) -> PatternSummary:
    return PatternSummary(
        rho=allowed.rho,
        rho_without_band=allowed.rho_without_band,
        rows_on=allowed.rows.mean(axis=1).tolist(),
        columns_on=allowed.columns.mean(axis=1).tolist(),
        rows=[_tokens_at(on, tokens) for on in allowed.rows],
        columns=[_tokens_at(on, tokens) for on in allowed.columns],
        diagonals=[list(offsets) for offsets in allowed.diagonals],
    )


def _tokens_at(on: Flags, tokens: Sequence[str]) -> list[TokenAt]:
    return [TokenAt(place, tokens[place]) for place in on.nonzero()[0].tolist()]
