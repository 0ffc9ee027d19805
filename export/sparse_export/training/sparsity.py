"""How sparse a model attends on given rows."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sparse_export.attention.measures import mask_shares, zero_shares
from sparse_export.encoders.patterned import layer_patterns, recorded
from sparse_export.encoders.spec import ModelSpec
from sparse_export.graph.inputs import graph_inputs
from sparse_export.tasks.trained import Encoded
from sparse_export.training.batches import evaluation_batches
from sparse_export.training.records import LayerSparsity, MaskSparsity

MAX_ROWS = 512

Collator = Callable[[Sequence[Encoded]], dict[str, Tensor]]

# The most rows at once: attention maps are held of all layers and heads; masks are the same for all heads.
_ROWS_WITH_MAPS, _ROWS_WITHOUT = 4, 16


def spread(rows: Sequence[Encoded], most: int) -> Sequence[Encoded]:
    """Return rows at equal distances, `most` at most: rows may lie by label, or by task."""
    return rows[:: max(1, math.ceil(len(rows) / most))]


def mean_rho(model: PreTrainedModel, rows: Sequence[Encoded], collator: Collator) -> float:
    """Return ρ of a model's pattern as it is served (AAA, Eq. 9): the mean over rows and layers."""
    was_training = model.training
    model.eval()
    rhos = []
    with torch.inference_mode():
        for inputs in _batches(model, rows, collator, _ROWS_WITHOUT):
            rhos.append(_shares(model, inputs, by_maps=False)[:, :, 0])
    model.train(was_training)
    return torch.cat(rhos).mean(dtype=torch.float64).item()


def layer_sparsity(
    model: PreTrainedModel, rows: Sequence[Encoded], collator: Collator
) -> list[LayerSparsity]:
    """Measure each layer's attention on `MAX_ROWS` of `rows` at most, encoded and unpadded.

    ρ is the share of weights that are exactly zero within a row's true length (AAA, Eq. 9); the support of a
    query is the number of keys with a weight other than zero. Both are means: over heads and queries, then
    over rows.
    """
    attention = ModelSpec.of(model.config).attention
    pattern = attention.pattern
    # Weights may be zero where attention is allowed.
    by_maps = attention.lambd is not None
    shares, lengths = [], []
    with torch.inference_mode():
        for inputs in _batches(
            model, spread(rows, MAX_ROWS), collator, _ROWS_WITH_MAPS if by_maps else _ROWS_WITHOUT
        ):
            shares.append(_shares(model, inputs, by_maps=by_maps))
            lengths.append(inputs["attention_mask"].sum(1))
    measured, count = (
        torch.cat(shares),
        torch.cat(lengths)[:, None, None],
    )  # (rows, layers, 1 or 5), (rows, 1, 1)
    zero, masks = measured[:, :, :1], measured[:, :, 1:]
    figures = torch.cat([zero, (1 - zero) * count, masks, masks[:, :, 2:] * count], dim=2).mean(0).tolist()
    if pattern is None:
        return [LayerSparsity(*each) for each in figures]
    layers = []
    for each, served in zip(figures, layer_patterns(model), strict=True):
        zeros, support, rho, rho_without_band, rows_on, columns_on, rows_on_count, columns_on_count = each
        mask = MaskSparsity(
            rho=rho,
            rho_without_band=rho_without_band if pattern.learns else None,
            rows_on=rows_on,
            columns_on=columns_on,
            rows_on_count=rows_on_count,
            columns_on_count=columns_on_count,
            diagonals=served.diagonals,
        )
        layers.append(LayerSparsity(zeros, support, mask))
    return layers


def _batches(
    model: PreTrainedModel, rows: Sequence[Encoded], collator: Collator, most: int
) -> Iterator[dict[str, Tensor]]:
    for chosen in evaluation_batches(rows, most):
        batch = collator([rows[row] for row in chosen])
        yield {each.name: batch[each.name].to(model.device) for each in graph_inputs(model.config)}


def _shares(model: PreTrainedModel, inputs: dict[str, Tensor], *, by_maps: bool) -> Tensor:
    """Return each row's and layer's share of zeros `(B, layers, 1)`; of a pattern also its `mask_shares`."""
    tokens = inputs["attention_mask"]
    if ModelSpec.of(model.config).attention.pattern is None:
        return zero_shares(model(**inputs, output_attentions=True).attentions, tokens)[:, :, None]
    with recorded(model) as masks:
        answer = model(**inputs, output_attentions=by_maps)
    shares = torch.stack([mask_shares(mask, tokens) for mask in masks], dim=1)
    zeros = zero_shares(answer.attentions, tokens) if by_maps else shares[:, :, 0]
    return torch.cat([zeros[:, :, None], shares], dim=2)
