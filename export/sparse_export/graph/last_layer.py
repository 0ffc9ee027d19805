"""The last layer of an encoder of which a head reads first tokens alone.

Queries, attention output, feed-forward and norms are computed for these rows only; keys and values are those
of all tokens. The layer itself is Transformers' own, and is given fewer rows.
"""

from dataclasses import replace
from typing import Any, cast

from torch import nn
from transformers import PreTrainedModel

from sparse_export.encoders.families import Family, family_of, layers_of
from sparse_export.encoders.packing import PackedPass
from sparse_export.graph.routing import PackedRouting


def compute_first_tokens_alone(model: PreTrainedModel) -> None:
    """Have the last layer of a model that runs packed answer `(1, B, M)`, the first tokens of the B rows."""
    link = _LastLayer(family_of(model.config))
    layer = layers_of(model)[-1]
    # What an extension takes of the layer's input is taken between the two: rows and columns that are on, and
    # what joins the residual, are made of all tokens.
    layer.register_forward_pre_hook(link.route, with_kwargs=True, prepend=True)
    layer.register_forward_pre_hook(link.cut, with_kwargs=True)


class _LastLayer:
    """The hooks; bound methods, of which a copy of the model has copies."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def route(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Tell extensions which rows are computed, and have those of several tasks attend alone."""
        kwargs = kwargs | {"computed_rows": cast(PackedPass, kwargs["packed"]).packing.first}
        if "routing" in kwargs:
            kwargs["routing"] = cast(PackedRouting, kwargs["routing"]).of_first_tokens()
        return args, kwargs

    def cut(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Give the layer first tokens, and its attention the keys and values of all."""
        hidden, *others = args
        packed = cast(PackedPass, kwargs["packed"])
        key, value = self._family.keys_and_values(layer, hidden)
        of_first = replace(packed, keys_and_values=(key[0], value[0]))
        return (hidden.index_select(1, packed.packing.first), *others), kwargs | {"packed": of_first}
