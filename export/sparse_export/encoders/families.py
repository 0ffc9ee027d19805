"""The encoder families: what of each the rest has to know.

Attention reaches all of them by Transformers' own interface (see `attention`) and their layers work on any
layout of tokens. What differs is the rest: what layers are called, how positions are counted, whether there
are segments, whether embeddings mix neighbouring tokens, and which head reads the first token.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from sparse_serve.errors import CheckpointError, OptionError


def _pooled(model: PreTrainedModel, first: Tensor) -> Tensor:
    return cast(Tensor, model.classifier(model.base_model.pooler(first)))


def _own_head(model: PreTrainedModel, first: Tensor) -> Tensor:
    return cast(Tensor, model.classifier(first))


def _pre_classified(model: PreTrainedModel, first: Tensor) -> Tensor:
    return cast(Tensor, model.classifier(model.pre_classifier(first[:, 0]).relu()))


def _keys_and_values(layer: nn.Module, hidden: Tensor) -> tuple[Tensor, Tensor]:
    attention: Any = layer.get_submodule("attention.self")
    return attention.key(hidden), attention.value(hidden)


def _distilbert_keys_and_values(layer: nn.Module, hidden: Tensor) -> tuple[Tensor, Tensor]:
    attention: Any = layer.get_submodule("attention")
    return attention.k_lin(hidden), attention.v_lin(hidden)


def _bottleneck_keys_and_values(layer: nn.Module, hidden: Tensor) -> tuple[Tensor, Tensor]:
    attention: Any = layer.get_submodule("attention.self")
    of_key, of_value = hidden, hidden
    if layer.use_bottleneck:
        _, of_key, of_value, _ = cast(Any, layer.bottleneck)(hidden)
    return attention.key(of_key), attention.value(of_value)


@dataclass(frozen=True)
class Family:
    """One encoder family of Transformers.

    Attributes:
        head: from the first tokens' hidden states `(B, 1, M)` to logits `(B, C)`, without dropout.
        keys_and_values: from a layer and its input `(1, T, M)` to the keys and values that its attention has
            of it, `(1, T, H·D)` each.
        counts_ids: positions count the ids that are not padding, from `pad_token_id + 1`; they are columns,
            from 0, otherwise.
        has_segments: takes `token_type_ids`, if its config has more than one type.
        joins_neighbours: the embedding of a token takes in its neighbours' (`trigram_input`).
        layers: name of the encoder's list of layers.
        attention_norm: name, within a layer, of the norm behind the attention, whose input is as wide as the
            layer's: where an extension may add to it. None where there is no such norm.
    """

    head: Callable[[PreTrainedModel, Tensor], Tensor]
    keys_and_values: Callable[[nn.Module, Tensor], tuple[Tensor, Tensor]] = _keys_and_values
    counts_ids: bool = False
    has_segments: bool = True
    joins_neighbours: bool = False
    layers: str = "encoder.layer"
    attention_norm: str | None = "attention.output.LayerNorm"


FAMILIES = {
    "bert": Family(_pooled),
    "roberta": Family(_own_head, counts_ids=True),
    "distilbert": Family(
        _pre_classified,
        _distilbert_keys_and_values,
        has_segments=False,
        layers="transformer.layer",
        attention_norm="sa_layer_norm",
    ),
    "electra": Family(_own_head),
    "xlm-roberta": Family(_own_head, counts_ids=True),
    "camembert": Family(_own_head, counts_ids=True),
    # Its attention works on a bottleneck, narrower than the layer.
    "mobilebert": Family(_pooled, _bottleneck_keys_and_values, joins_neighbours=True, attention_norm=None),
}


def family_of(config: PreTrainedConfig) -> Family:
    """Return the family a config belongs to.

    Raises:
        CheckpointError: it is none of the supported ones, attends in another way than Transformers and this
            package compute it, or lacks the padding id that the family reads; the message goes on from the
            checkpoint's name.
    """
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise CheckpointError(f"is a {config.model_type} model; supported families: {', '.join(FAMILIES)}")
    positions = getattr(config, "position_embedding_type", None) or "absolute"
    if positions != "absolute":
        raise CheckpointError(
            f"has the position_embedding_type '{positions}' in its config.json: Transformers computes "
            "absolute positions alone, and would leave its weights for others out"
        )
    if getattr(config, "is_decoder", False):
        raise CheckpointError(
            "has is_decoder in its config.json, so that tokens attend to earlier ones alone: an encoder is "
            "needed, whose tokens attend to all"
        )
    if config.pad_token_id is None and (family.counts_ids or family.joins_neighbours):
        raise CheckpointError(
            f"has no pad_token_id in its config.json: a {config.model_type} model tells padding by it"
        )
    return family


def input_names(config: PreTrainedConfig) -> tuple[str, ...]:
    """Return the names of the tensors, each `(B, L)` int64, that a classifier of this config takes."""
    segments = family_of(config).has_segments and config.type_vocab_size > 1
    return ("input_ids", "attention_mask", *(["token_type_ids"] if segments else []))


def max_tokens(config: PreTrainedConfig) -> int:
    """Return the most tokens of one text that the encoder has positions for."""
    positions = int(config.max_position_embeddings)
    return positions - int(config.pad_token_id) - 1 if family_of(config).counts_ids else positions


def joins_neighbours(config: PreTrainedConfig) -> bool:
    """Return whether the embedding of a token takes in its neighbours'."""
    return family_of(config).joins_neighbours and bool(config.trigram_input)


def position_ids(config: PreTrainedConfig, input_ids: Tensor) -> Tensor:
    """Return the positions `(B, L)` int64 that Transformers gives ids `(B, L)`, whatever their mask."""
    if not family_of(config).counts_ids:
        return torch.arange(input_ids.shape[1], device=input_ids.device).expand(input_ids.shape)
    pad_id = int(config.pad_token_id)
    counted = (input_ids != pad_id).to(torch.int64)
    return counted.cumsum(1) * counted + pad_id


def packed_position_ids(config: PreTrainedConfig, input_ids: Tensor, ranks: Tensor) -> Tensor:
    """Return the positions `(T,)` int64 of packed ids `(T,)`, whose numbers within their rows are `ranks`."""
    if not family_of(config).counts_ids:
        return ranks
    pad_id = int(config.pad_token_id)
    counted = (input_ids != pad_id).to(torch.int64)
    running = counted.cumsum(0)
    first = torch.arange(ranks.shape[0], device=ranks.device) - ranks
    before = (running - counted).index_select(0, first)
    return (running - before) * counted + pad_id


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """Return the encoder's layers, whose forward passes take the hidden states `(B, L, M)` first."""
    return cast(nn.ModuleList, model.base_model.get_submodule(family_of(model.config).layers))


def attention_norm(model: PreTrainedModel, index: int) -> nn.Module:
    """Return the norm behind the attention of layer `index`: its input is h + attention(h), `(B, L, M)`.

    Raises:
        OptionError: the family's layers have none of the layer's width.
    """
    name = family_of(model.config).attention_norm
    if name is None:
        possible = ", ".join(each for each, family in FAMILIES.items() if family.attention_norm is not None)
        raise OptionError(
            f"the layers of a {model.config.model_type} model have no norm behind the attention that an "
            f"extension could add to; families that have: {possible}"
        )
    return layers_of(model)[index].get_submodule(name)


def silence_padding(model: PreTrainedModel) -> None:
    """Make padding weigh nothing in the embedding of the token beside it.

    A family that joins neighbours reads what stands behind a row's last token: zeros where the batch ends
    there, the embedding of the padding id where a longer row stands beside it. Transformers makes and keeps
    that embedding zero, so that both are the same. A checkpoint converted from elsewhere may have another,
    and would answer one text differently in different company; with zeros each is answered as if alone.
    """
    if joins_neighbours(model.config):
        with torch.no_grad():
            model.get_input_embeddings().weight[model.config.pad_token_id] = 0
