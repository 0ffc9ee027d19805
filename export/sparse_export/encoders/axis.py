"""Adaptive axis attention: a linear layer in each layer turns rows and columns on (AAA, Eq. 11-12)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sparse_export.attention.masks import LayerMask
from sparse_export.encoders.extension import Extension
from sparse_export.encoders.families import layers_of
from sparse_export.encoders.patterned import Decide, PatternModule
from sparse_serve.op_library import DOMAIN, OPSET_VERSION

if TYPE_CHECKING:
    from sparse_export.encoders.spec import ModelSpec


class AxisLayer(nn.Linear, PatternModule):
    """The learned layer of adaptive axis attention: hidden states `(…, M)` to a row and a column logit."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size, 2)

    def reset_parameters(self) -> None:
        """Begin with logits near 0: each indicator is on as often as off."""
        nn.init.normal_(self.weight, std=0.02)
        nn.init.zeros_(self.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits `(…, 2)` float32, the row's first, whatever else is computed in."""
        with torch.autocast(hidden.device.type, enabled=False):
            return nn.functional.linear(hidden.float(), self.weight.float(), self.bias.float())

    def mark(self, mask: LayerMask, hidden: Tensor, decide: Decide) -> None:
        """Say which rows and columns are on; in an exported graph the op `AxisMask` does."""
        if torch.onnx.is_in_onnx_export():
            mask.rows, mask.columns = _axis_mask_node(hidden[0], self.weight, self.bias)
        else:
            mask.rows, mask.columns = decide(self(hidden)).unbind(-1)

    def thresholds(self) -> tuple[nn.Parameter, Tensor]:
        """Return the bias, all of which a shift of the thresholds moves."""
        return self.bias, torch.ones_like(self.bias)


class AxisExtension(Extension):
    """A layer `….layer.3.axis` in every encoder layer."""

    @classmethod
    def of(cls, spec: "ModelSpec") -> Self | None:
        """Return it where the model's pattern learns rows and columns."""
        pattern = spec.attention.pattern
        return cls() if pattern is not None and pattern.axis else None

    def attach(self, model: PreTrainedModel) -> None:
        """Give every layer its own."""
        for layer in layers_of(model):
            layer.axis = AxisLayer(model.config.hidden_size)


@contextmanager
def axis_logits(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """Collect the logits `(B, L, 2)` that each layer has of its rows and columns, imposed ones or not.

    Of a model without learned rows and columns there are none.
    """
    logits: list[Tensor] = []

    def collect(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        axis = getattr(layer, "axis", None)
        if isinstance(axis, AxisLayer):
            logits.append(axis(args[0] if args else kwargs["hidden_states"]))

    hooks = [layer.register_forward_pre_hook(collect, with_kwargs=True) for layer in layers_of(model)]
    try:
        yield logits
    finally:
        for hook in hooks:
            hook.remove()


def _axis_mask_node(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Emit `AxisMask`: hidden `(T, M)`, weight `(2, M)`, bias `(2,)` to rows and columns `(T,)` bool."""
    rows, columns = torch.onnx.ops.symbolic_multi_out(
        f"{DOMAIN}::AxisMask",
        (hidden, weight, bias),
        {},
        dtypes=(torch.bool, torch.bool),
        shapes=(hidden.shape[:1], hidden.shape[:1]),
        version=OPSET_VERSION,
    )
    return rows, columns
