"""What attention patterns add to an encoder: learned indicators, and the way they reach the attention.

Transformers' attention interface sees queries, keys and values, never the hidden states that indicators are
learned from. So every encoder layer gets a hook that makes a `LayerMask` of its input and passes it on, as
the keyword `axis`, to the layer's attention. Learned weights are submodules and live in the checkpoint:
`….layer.3.axis` (adaptive axis attention) and `….diagonals` (adaptive diagonals).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sparse_export.attention.patterns import LayerPattern, Pattern
from sparse_export.encoders.families import layers_of, max_tokens
from sparse_export.graph.nodes import axis_mask_node
from sparse_serve.errors import OptionError


@dataclass
class Sampling:
    """How indicators are drawn in training: Gumbel-sigmoid, straight-through (AAA, Eq. 11).

    An indicator is 1 where logit + noise · g > 0 with g logistic, which is a hard Gumbel-sigmoid at any
    temperature; backwards it counts as sigmoid((logit + noise · g) / temperature).

    Attributes:
        temperature: of the sigmoid, above 0: the lower, the steeper.
        noise: scale of the noise; at 0 training sees the mask that is served.
        dense: attend to everything, as if there were no pattern, in evaluation too.
    """

    temperature: float = 0.3
    noise: float = 1.0
    dense: bool = False

    def draw(self, logits: Tensor) -> Tensor:
        """Return indicators of the shape of `logits`: 0 or 1, with a gradient."""
        uniform = torch.rand_like(logits).clamp(1e-6, 1 - 1e-6)
        noisy = logits + self.noise * (uniform.log() - (1 - uniform).log())
        soft = torch.sigmoid(noisy / self.temperature)
        return (noisy > 0).to(soft.dtype) + soft - soft.detach()


@dataclass
class LayerMask:
    """Which pairs one layer may attend to in a batch.

    In training the indicators are 0.0 or 1.0 with gradients, in evaluation they are bool.

    Attributes:
        pattern: the fixed part.
        rows: `(B, L)` indicators of learned rows; None where they are not learned.
        columns: `(B, L)` indicators of learned columns.
        diagonals: `(W,)` indicators of the offsets 0 … W − 1; None where they are not learned.
        rho: `(B,)`, the share of pairs that is not allowed (Eq. 9), which training's attention notes here.
    """

    pattern: LayerPattern
    rows: Tensor | None = None
    columns: Tensor | None = None
    diagonals: Tensor | None = None
    rho: Tensor | None = None

    def pairs(self, ranks: Tensor, lengths: Tensor) -> Tensor:
        """Return the allowed pairs `(B, L, L)`, `[sequence, query, key]` (Eq. 12 and its like for more).

        Args:
            ranks: `(B, L)` int64, each token's number within its sequence.
            lengths: `(B,)` int64, tokens of each sequence.

        Returns:
            bool; in training, where a part is learned, 0.0 and 1.0 with gradients.
        """
        learned = [each for each in (self.rows, self.columns, self.diagonals) if each is not None]
        if all(each.dtype == torch.bool for each in learned):
            pairs = self.pattern.allowed(ranks, lengths, self.rows, self.columns)
            return pairs if self.diagonals is None else pairs | self._on_diagonals(ranks)
        off = (~self.pattern.allowed(ranks, lengths)).to(learned[0].dtype)
        if self.rows is not None and self.columns is not None:
            off = off * (1 - self.rows)[:, :, None] * (1 - self.columns)[:, None, :]
        if self.diagonals is not None:
            off = off * (1 - self._on_diagonals(ranks))
        return 1 - off

    def without_fixed(self) -> "LayerMask":
        """Return what the learned part allows by itself, without the fixed one."""
        return LayerMask(LayerPattern(), self.rows, self.columns, self.diagonals)

    def _on_diagonals(self, ranks: Tensor) -> Tensor:
        assert self.diagonals is not None
        distance = (ranks[:, :, None] - ranks[:, None, :]).abs()
        # Offsets that were never learned are off.
        return nn.functional.pad(self.diagonals, (0, 1))[distance.clamp_max(len(self.diagonals))]


class AxisLayer(nn.Linear):
    """The learned layer of adaptive axis attention: hidden states `(…, M)` to a row and a column logit."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size, 2)

    def reset_parameters(self) -> None:
        """Begin with logits near 0: each indicator is on as often as off."""
        nn.init.normal_(self.weight, std=0.02)
        nn.init.zeros_(self.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits `(…, 2)` float32, the row's first."""
        return nn.functional.linear(hidden.float(), self.weight.float(), self.bias.float())


class AdaptiveDiagonals(nn.Module):
    """Learned offsets (the AAA paper's generalisation of SparseBERT): a logit for each distance."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Begin at 0: drawn on as often as off, and off for good where no text is long enough to tell."""
        nn.init.zeros_(self.logits)

    def offsets(self) -> tuple[int, ...]:
        """Return the distances that are on when served."""
        return tuple((self.logits > 0).nonzero().flatten().tolist())


@dataclass
class AxisState:
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
    """What a layer's hook knows: its pattern, and the learned parts, which are submodules elsewhere."""

    pattern: LayerPattern
    index: int
    state: AxisState
    axis: AxisLayer | None
    diagonals: AdaptiveDiagonals | None


def attach(model: PreTrainedModel, pattern: Pattern) -> None:
    """Give an encoder's layers a pattern: its learned weights and the hooks that pass it on.

    Raises:
        OptionError: the pattern has diagonals for another number of layers, or is larger than the encoder.
    """
    pattern.require_within(max_tokens(model.config))
    count = model.config.num_hidden_layers
    if len(pattern.offsets) not in (0, 1, count):
        raise OptionError(
            f"the pattern has diagonals for each of {len(pattern.offsets)} layers, the encoder has {count}"
        )
    state = AxisState()
    width = max_tokens(model.config)
    shared = AdaptiveDiagonals(width) if pattern.diagonal == "task" else None
    if shared is not None:
        model.base_model.diagonals = shared
    for index, layer in enumerate(layers_of(model)):
        link = _Link(pattern.layer(index), index, state, None, shared)
        if pattern.axis:
            layer.axis = link.axis = AxisLayer(model.config.hidden_size)
        if pattern.diagonal == "layer":
            layer.diagonals = link.diagonals = AdaptiveDiagonals(width)
        layer.axis_link = link  # type: ignore[assignment]  # typed as if modules held modules alone
        layer.register_forward_pre_hook(_pass_mask, with_kwargs=True)


def _links(model: PreTrainedModel) -> list[_Link]:
    return [cast(_Link, layer.axis_link) for layer in layers_of(model)]


def learned_modules(model: nn.Module) -> list[AxisLayer | AdaptiveDiagonals]:
    """Return the modules whose weights `attach` added."""
    return [module for module in model.modules() if isinstance(module, AxisLayer | AdaptiveDiagonals)]


def sampling_of(model: PreTrainedModel) -> Sampling:
    """Return how a model with a pattern draws its indicators in training, to be set there."""
    return _links(model)[0].state.sampling


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
        learned = link.diagonals.offsets() if link.diagonals is not None else ()
        patterns.append(replace(link.pattern, diagonals=tuple(sorted({*link.pattern.diagonals, *learned}))))
    return patterns


def _pass_mask(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    link = cast(_Link, layer.axis_link)
    state = link.state
    if state.sampling.dense:
        return args, kwargs | {"axis": None}
    draw = state.sampling.draw if layer.training else _hard
    mask = LayerMask(link.pattern)
    if state.forced is not None:
        mask.rows, mask.columns = state.forced[link.index]
    elif link.axis is not None:
        hidden: Tensor = args[0] if args else kwargs["hidden_states"]
        if torch.onnx.is_in_onnx_export():
            mask.rows, mask.columns = axis_mask_node(hidden[0], link.axis.weight, link.axis.bias)
        else:
            mask.rows, mask.columns = draw(link.axis(hidden)).unbind(-1)
    if link.diagonals is not None:
        mask.diagonals = draw(link.diagonals.logits)
    if state.recorded is not None:
        state.recorded.append(mask)
    return args, kwargs | {"axis": mask}


def _hard(logits: Tensor) -> Tensor:
    return logits > 0
