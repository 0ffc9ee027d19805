"""From checkpoints and texts to attention maps, side by side: the paper's Figures 1 and 3 for any text."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from sparse_export.checkpoint import AttentionSpec, cut_length, load_classifier, load_tokenizer
from sparse_export.inspection.maps import AttentionMaps, attention_maps, select_attention
from sparse_export.inspection.tokens import TokenizedText, tokenize
from sparse_serve.errors import CheckpointError, OptionError

# A map has L² weights per head: what a model of long positions could read is cut here unless asked for.
_DEFAULT_LONGEST = 512


@dataclass(frozen=True)
class InspectOptions:
    """What to show.

    Attributes:
        checkpoint: a Transformers folder, or a hub id.
        lambdas: λ of the SSAF variants to show beside softmax; the weights stay as they were trained.
        beside: further checkpoints of the same vocabulary, each shown with its own attention.
        layer: the layer to draw, counted from 0; None for the one at two thirds of the depth, which is the
            eighth of twelve as in the paper's figures.
        head: the head to draw, counted from 0; None for the mean over heads.
        max_length: tokens at which texts are cut; None for the encoder's positions, at most 512.
    """

    checkpoint: str
    lambdas: tuple[float, ...] = ()
    beside: tuple[str, ...] = ()
    layer: int | None = None
    head: int | None = None
    max_length: int | None = None


@dataclass(frozen=True)
class Variant:
    """One column of the comparison: a checkpoint with an attention.

    Attributes:
        name: what it is called in tables and titles.
        checkpoint: whose weights.
        attention: which normaliser.
        as_trained: whether the checkpoint was trained with this attention.
    """

    name: str
    checkpoint: str
    attention: AttentionSpec
    as_trained: bool


@dataclass(frozen=True)
class InspectedText:
    """One text in the eyes of every variant; `maps` are in the order of the variants."""

    text: TokenizedText
    maps: tuple[AttentionMaps, ...]


class Inspector:
    """Loaded checkpoints and the variants of them that are compared.

    Attributes:
        variants: what is compared, in the order it is shown.
        layers: number of layers of the checkpoint.
        heads: number of heads per layer.
        layer: the layer to draw, counted from 0.
        head: the head to draw, counted from 0, or None for the mean over heads.
    """

    def __init__(self, options: InspectOptions) -> None:
        """Load what `options` name.

        Raises:
            OptionError: a layer, head, length or λ out of range.
            CheckpointError: a checkpoint cannot be loaded, or another has other layers or heads than the
                first.
        """
        first = options.checkpoint
        names = tuple(dict.fromkeys((first, *options.beside)))
        self._models = {name: load_classifier(name) for name in names}
        self._tokenizers = {name: load_tokenizer(name) for name in names}
        self.variants = _variants(first, options.lambdas, self._models)
        self.layers, self.heads = _shape(self._models[first])
        for name, model in self._models.items():
            if _shape(model) != (self.layers, self.heads):
                raise CheckpointError(
                    f"{name} has {' × '.join(map(str, _shape(model)))} layers and heads, {first} has "
                    f"{self.layers} × {self.heads}: only equal ones can be shown side by side"
                )
        default_layer = -(-2 * self.layers // 3) - 1
        self.layer = default_layer if options.layer is None else options.layer
        self.head = options.head
        _require_within("--layer", self.layer, self.layers, "layers")
        _require_within("--head", self.head or 0, self.heads, "heads")
        lengths = [
            cut_length(model.config, self._tokenizers[name], options.max_length)
            for name, model in self._models.items()
        ]
        self._max_length = options.max_length or min(*lengths, _DEFAULT_LONGEST)

    def inspect(self, text: str, text_pair: str = "") -> InspectedText:
        """Run every variant on a text, or on a pair of texts.

        Raises:
            CheckpointError: the checkpoints do not read the text as the same tokens.
        """
        read = {
            name: tokenize(model, self._tokenizers[name], text, text_pair, self._max_length)
            for name, model in self._models.items()
        }
        first, *others = read.items()
        for name, tokenized in others:
            if tokenized.tokens != first[1].tokens:
                raise CheckpointError(
                    f"{name} reads the text as other tokens than {first[0]}: only checkpoints of one "
                    "vocabulary can be shown side by side"
                )
        return InspectedText(first[1], tuple(self._maps(read)))

    def _maps(self, read: dict[str, TokenizedText]) -> Iterator[AttentionMaps]:
        for variant in self.variants:
            model = self._models[variant.checkpoint]
            select_attention(model, variant.attention)
            yield attention_maps(model, read[variant.checkpoint])


def _variants(
    first: str, lambdas: Iterable[float], models: Mapping[str, PreTrainedModel]
) -> tuple[Variant, ...]:
    """Softmax and SSAF from dense to sparse in the first checkpoint, then the others as they are."""
    trained = {name: AttentionSpec.from_config(model.config) for name, model in models.items()}
    shown = [AttentionSpec("sparsegen", lambd) for lambd in sorted(set(lambdas))]
    if shown:
        shown.insert(0, AttentionSpec())
    pairs = [(first, attention) for attention in _by_density({trained[first], *shown})]
    pairs += [(name, attention) for name, attention in trained.items() if name != first]
    folders = [Path(name).name for name in models]
    prefix = dict.fromkeys(models, "")
    if len(models) > 1:
        titles = folders if len(set(folders)) == len(folders) else list(models)
        prefix = {name: f"{title}: " for name, title in zip(models, titles, strict=True)}
    return tuple(
        Variant(prefix[name] + _title(attention), name, attention, attention == trained[name])
        for name, attention in pairs
    )


def _by_density(attentions: Iterable[AttentionSpec]) -> list[AttentionSpec]:
    return sorted(attentions, key=lambda attention: -math.inf if attention.lambd is None else attention.lambd)


def _title(attention: AttentionSpec) -> str:
    return "softmax" if attention.lambd is None else f"SSAF, λ = {attention.lambd:g}".replace("-", "−")


def _shape(model: PreTrainedModel) -> tuple[int, int]:
    return int(model.config.num_hidden_layers), int(model.config.num_attention_heads)


def _require_within(option: str, index: int, size: int, what: str) -> None:
    if not 0 <= index < size:
        raise OptionError(f"{option} {index + 1} is out of range: the checkpoint has {what} 1 to {size}")
