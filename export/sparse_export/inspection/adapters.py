"""The attention of a task's own projected attention layers, beside that of the encoder."""

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from sparse_export.encoders.projected_attention import TaskAttention
from sparse_export.inspection.maps import AttentionMaps, Weights, attention_maps
from sparse_export.inspection.tokens import TokenizedText


def adapters_of(model: PreTrainedModel) -> list[TaskAttention]:
    """Return the adapters of a model of one task, layer by layer; none where it has none."""
    return [module for module in model.modules() if isinstance(module, TaskAttention)]


def adapter_maps(model: PreTrainedModel, text: TokenizedText) -> AttentionMaps:
    """Run a model of one task on one text and keep the attention of its adapters: softmax over all tokens.

    An adapter has heads of its own. Where their number divides that of the encoder's heads, each stands for
    as many; elsewhere their mean stands for all: so that maps of one size lie side by side.
    """
    layers: list[Weights] = []

    def keep(module: TaskAttention, args: tuple[Any, ...], output: Tensor) -> None:
        layers.append(module.weights(args[0])[0].numpy())

    hooks = [module.register_forward_hook(keep) for module in adapters_of(model)]
    try:
        maps = attention_maps(model, text)
    finally:
        for hook in hooks:
            hook.remove()
    weights = np.stack(layers)
    heads, own = maps.weights.shape[1], weights.shape[1]
    if heads % own:
        weights, own = weights.mean(axis=1, keepdims=True), 1
    return replace(
        maps,
        weights=np.repeat(weights, heads // own, axis=1),
        rho=(0.0,) * len(weights),
        allowed=None,
    )
