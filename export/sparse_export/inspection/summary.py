"""What an inspection says in numbers: the JSON on stdout, and what the page says in words and tables."""

from dataclasses import dataclass

from sparse_export.checkpoint import AttentionSpec
from sparse_export.inspection.inspecting import InspectedText, Variant
from sparse_export.inspection.maps import AttentionMaps


@dataclass(frozen=True)
class VariantSummary:
    """One variant's reading of one text of L tokens.

    Attributes:
        name: as in the pictures.
        checkpoint: whose weights.
        attention: which normaliser.
        as_trained: whether the checkpoint was trained with it.
        label: the answer, as the served model gives it.
        scores: one per label.
        rho: per layer the share of weights that are exactly zero.
        support: per layer the keys with a weight above zero per query, mean over heads and queries.
        read_by_head: the weight of each token for the first one in the last layer, mean over heads: what
            the classification head reads. L numbers that sum to 1.
        received: the weight of each token in the last layer, mean over heads and queries. The same shape.
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


@dataclass(frozen=True)
class TextSummary:
    """One text as every variant reads it; `truncated` says that it went on after its last token."""

    text: str
    text_pair: str
    tokens: list[str]
    truncated: bool
    variants: list[VariantSummary]


def summarize(variants: tuple[Variant, ...], inspected: InspectedText) -> TextSummary:
    """Reduce maps to the numbers that are told about them."""
    text = inspected.text
    return TextSummary(
        text=text.text,
        text_pair=text.text_pair,
        tokens=list(text.tokens),
        truncated=text.truncated,
        variants=[_summarize(*pair) for pair in zip(variants, inspected.maps, strict=True)],
    )


def _summarize(variant: Variant, maps: AttentionMaps) -> VariantSummary:
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
    )
