"""A pattern in an encoder: the way that each layer's mask takes to its attention.

Transformers' attention interface sees queries, keys and values, never the hidden states that rows and columns
are learned from. So every encoder layer gets a hook that makes a `LayerMask` of its input and passes it on,
as the keyword `axis`, to the layer's attention.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

from torch import Tensor, nn
from transformers import PreTrainedModel

from sparse_export.attention.masks import LayerMask, Sampling
from sparse_export.attention.patterns import LayerPattern, Pattern
from sparse_export.encoders.extension import ExtensionModule
from sparse_export.encoders.families import layers_of, max_tokens
from sparse_serve.errors import OptionError

Decide = Callable[[Tensor], Tensor]
"""Makes indicators, on or off, of logits."""


class PatternModule(ExtensionModule):
    """What is learned of a pattern: logits, of which those above 0 are on."""

    parameter_group: ClassVar[str] = "pattern"

    @abstractmethod
    def mark(self, mask: LayerMask, hidden: Tensor, decide: Decide) -> None:
        """Put this module's part into a layer's mask.

        Args:
            mask: of the layer, with its fixed part.
            hidden: the layer's input, `(B, L, M)`.
            decide: makes indicators of logits.
        """

    @abstractmethod
    def thresholds(self) -> tuple[nn.Parameter, Tensor]:
        """Return what a shift of all thresholds moves, and by which factor each of its numbers goes along."""

    def offsets(self) -> tuple[int, ...]:
        """Return the distances that are on when served, for all texts alike."""
        return ()


@dataclass
class PatternState:
    """What all layers of a model share while it runs.

    Attributes:
        sampling: how indicators are drawn in training.
        recorded: where each layer's mask is put, if anywhere.
        forced: rows and columns `(B, L)` bool, by layer, in place of the learned ones.
    """

    sampling: Sampling = field(default_factory=Sampling)
    recorded: list[LayerMask] | None = None
    forced: Sequence[tuple[Tensor, Tensor]] | None = None


@dataclass
class _Link:
    """What a layer's hook knows: its pattern, and what is learned of it, which are submodules elsewhere."""

    pattern: LayerPattern
    index: int
    state: PatternState
    learned: Sequence[PatternModule]


def attach_pattern(model: PreTrainedModel, pattern: Pattern) -> None:
    """Have an encoder's layers attend by a pattern, of which its extensions have added what is learned.

    Raises:
        OptionError: the pattern has diagonals for another number of layers, or is larger than the encoder.
    """
    pattern.require_within(max_tokens(model.config))
    layers = layers_of(model)
    if len(pattern.offsets) not in (0, 1, len(layers)):
        raise OptionError(
            f"the pattern has diagonals for each of {len(pattern.offsets)} layers, the encoder has "
            f"{len(layers)}"
        )
    state = PatternState()
    shared = _learned(model.base_model.children())
    for index, layer in enumerate(layers):
        learned = (*_learned(layer.children()), *shared)
        layer.pattern_link = _Link(pattern.layer(index), index, state, learned)  # type: ignore[assignment]  # typed as if modules held modules alone
        layer.register_forward_pre_hook(_pass_mask, with_kwargs=True)


def _learned(modules: Iterator[nn.Module]) -> list[PatternModule]:
    return [module for module in modules if isinstance(module, PatternModule)]


def _links(model: PreTrainedModel) -> list[_Link]:
    return [cast(_Link, layer.pattern_link) for layer in layers_of(model)]


def pattern_modules(model: nn.Module) -> list[PatternModule]:
    """Return what is learned of a model's pattern."""
    return _learned(model.modules())


def set_sampling(model: PreTrainedModel, sampling: Sampling) -> None:
    """Have a model with a pattern draw its indicators in training as is said, in every layer."""
    _links(model)[0].state.sampling = sampling


@contextmanager
def recorded(model: PreTrainedModel) -> Iterator[list[LayerMask]]:
    """Collect the masks of every layer, in order, of the forward passes run meanwhile."""
    state = _links(model)[0].state
    masks: list[LayerMask] = []
    state.recorded = masks
    try:
        yield masks
    finally:
        state.recorded = None


@contextmanager
def forced(model: PreTrainedModel, indicators: Sequence[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Have every layer attend by given rows and columns `(B, L)` bool instead of the learned ones."""
    state = _links(model)[0].state
    state.forced = indicators
    try:
        yield
    finally:
        state.forced = None


def layer_patterns(model: PreTrainedModel) -> list[LayerPattern]:
    """Return each layer's pattern as it is served: fixed and learned diagonals as one."""
    patterns = []
    for link in _links(model):
        learned = {offset for module in link.learned for offset in module.offsets()}
        patterns.append(replace(link.pattern, diagonals=tuple(sorted({*link.pattern.diagonals, *learned}))))
    return patterns


def _pass_mask(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    link = cast(_Link, layer.pattern_link)
    state = link.state
    if state.sampling.dense:
        return args, kwargs | {"axis": None}
    hidden: Tensor = args[0] if args else kwargs["hidden_states"]
    mask = LayerMask(link.pattern)
    for module in link.learned:
        module.mark(mask, hidden, state.sampling.draw if _is_trained(module) else _hard)
    if state.forced is not None:
        mask.rows, mask.columns = state.forced[link.index]
    if state.recorded is not None:
        state.recorded.append(mask)
    return args, kwargs | {"axis": mask}


def _is_trained(module: PatternModule) -> bool:
    return module.training and any(weight.requires_grad for weight in module.parameters())


def _hard(logits: Tensor) -> Tensor:
    return logits > 0
