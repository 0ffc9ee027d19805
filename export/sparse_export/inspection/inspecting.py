"""From checkpoints and texts to attention maps, side by side: the paper's Figures 1 and 3 for any text."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import PreTrainedModel

from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint, load_config
from sparse_export.encoders.spec import ModelSpec
from sparse_export.encoders.tokenizer import cut_length, load_tokenizer, require_embedded
from sparse_export.inspection.adapters import adapter_maps, adapters_of
from sparse_export.inspection.maps import AttentionMaps, attention_maps, select_attention
from sparse_export.inspection.tokens import TokenizedText, tokenize
from sparse_serve.errors import CheckpointError, OptionError

# A map has L² weights per head: what a model of long positions could read is cut here unless asked for.
_DEFAULT_LONGEST = 512
_DEFAULT_LAMBDAS = (-7.0, -4.0, 0.0)


@dataclass(frozen=True)
class InspectOptions:
    """What to show.

    Attributes:
        checkpoint: a Transformers folder, or a hub id.
        lambdas: λ of the SSAF variants to show beside softmax, over the allowed keys where the checkpoint has
            a pattern; the weights stay as they were trained. None for what says most: full attention beside
            a pattern, a few λ otherwise, and nothing more where other checkpoints stand beside this one.
        beside: further checkpoints of the same vocabulary, each shown with its own attention.
        layer: the layer to draw, counted from 0; None for the one at two thirds of the depth, which is the
            eighth of twelve as in the paper's figures.
        head: the head to draw, counted from 0; None for the mean over heads.
        max_length: tokens at which texts are cut; None for the encoder's positions, at most 512.
        task: of a checkpoint of several tasks the one whose answer is shown, and its own attention.
    """

    checkpoint: str
    lambdas: tuple[float, ...] | None = ()
    beside: tuple[str, ...] = ()
    layer: int | None = None
    head: int | None = None
    max_length: int | None = None
    task: str | None = None


@dataclass(frozen=True)
class Variant:
    """One column of the comparison: a checkpoint with an attention.

    Attributes:
        name: what it is called in tables and titles.
        checkpoint: whose weights.
        attention: which keys it may read, and with which normaliser.
        as_trained: whether the checkpoint was trained with this attention.
        of_task: whether it is the attention of the task's own layers, beside the encoder's.
    """

    name: str
    checkpoint: str
    attention: AttentionSpec
    as_trained: bool
    of_task: bool = False


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
            CheckpointError: a checkpoint cannot be loaded, does not embed all tokens of its tokenizer, or
                has other layers or heads than the first.
        """
        first = options.checkpoint
        names = tuple(dict.fromkeys((first, *options.beside)))
        specs = {name: ModelSpec.of(load_config(name)) for name in names}
        if options.task is not None and not any(spec.names_tasks for spec in specs.values()):
            raise OptionError(
                f"--task {options.task!r:.80} is no task of {first}; there is one, which has no name: "
                "leave it out"
            )
        self._models = {name: _load(name, specs[name], options.task) for name in names}
        self._tokenizers = {name: load_tokenizer(name) for name in names}
        for name, tokenizer in self._tokenizers.items():
            require_embedded(name, tokenizer, self._models[name].config)
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
            maps = adapter_maps if variant.of_task else attention_maps
            yield maps(model, read[variant.checkpoint])


def _variants(
    first: str, lambdas: tuple[float, ...] | None, models: Mapping[str, PreTrainedModel]
) -> tuple[Variant, ...]:
    """The first checkpoint's attentions from dense to sparse, then the others as they are."""
    trained = {name: ModelSpec.of(model.config).attention for name, model in models.items()}
    if lambdas is None and len(models) > 1:
        lambdas = ()
    shown = {trained[first], *_exchanged(trained[first], lambdas)}
    pairs = [(first, attention) for attention in _by_density(shown)]
    pairs += [(name, attention) for name, attention in trained.items() if name != first]
    folders = [Path(name).name for name in models]
    prefix = dict.fromkeys(models, "")
    if len(models) > 1:
        titles = folders if len(set(folders)) == len(folders) else list(models)
        prefix = {name: f"{title}: " for name, title in zip(models, titles, strict=True)}
    return (
        *(
            Variant(prefix[name] + _title(attention), name, attention, attention == trained[name])
            for name, attention in pairs
        ),
        *(
            Variant(f"{prefix[name]}{task}'s own", name, trained[name], as_trained=True, of_task=True)
            for name, model in models.items()
            if adapters_of(model)
            for task in ModelSpec.of(model.config).tasks
        ),
    )


def _load(checkpoint: str, spec: ModelSpec, task: str | None) -> PreTrainedModel:
    """Load a checkpoint; of tasks with names one alone.

    Raises:
        OptionError: `task` is none of its tasks, or is missing where it has several.
        CheckpointError: it cannot be loaded.
    """
    tasks = spec.tasks
    if not spec.names_tasks or (task is None and len(tasks) == 1):
        return load_checkpoint(checkpoint)
    if task is None:
        raise OptionError(f"{checkpoint} has several tasks: say with --task which one, {', '.join(tasks)}")
    if task not in tasks:
        raise OptionError(f"--task {task!r:.80} is no task of {checkpoint}; there is {', '.join(tasks)}")
    return load_checkpoint(checkpoint, task={task: tasks[task]})


def _exchanged(own: AttentionSpec, lambdas: tuple[float, ...] | None) -> list[AttentionSpec]:
    """Return what to show beside a checkpoint's own attention."""
    if lambdas is None:
        if own.pattern is not None:
            return [AttentionSpec()]
        lambdas = _DEFAULT_LAMBDAS
    return [replace(own, lambd=lambd) for lambd in (None, *lambdas)] if lambdas else []


def _by_density(attentions: Iterable[AttentionSpec]) -> list[AttentionSpec]:
    def sparsity(attention: AttentionSpec) -> tuple[bool, float]:
        return attention.pattern is not None, -math.inf if attention.lambd is None else attention.lambd

    return sorted(attentions, key=sparsity)


def _title(attention: AttentionSpec) -> str:
    lambd = "" if attention.lambd is None else f", λ = {attention.lambd:g}".replace("-", "−")
    if attention.pattern is None:
        return f"SSAF{lambd}" if lambd else "softmax"
    return (f"AAA ({attention.name})" if attention.pattern.axis else attention.name) + lambd


def _shape(model: PreTrainedModel) -> tuple[int, int]:
    return int(model.config.num_hidden_layers), int(model.config.num_attention_heads)


def _require_within(option: str, index: int, size: int, what: str) -> None:
    if not 0 <= index < size:
        raise OptionError(f"{option} {index + 1} is out of range: the checkpoint has {what} 1 to {size}")
