"""How sparse a model attends on given rows."""

from typing import Any

import torch
from transformers import DataCollatorWithPadding, PreTrainedModel

from sparse_export.attention import zero_shares
from sparse_export.training.records import LayerSparsity

MAX_ROWS = 512
_BATCH_SIZE = 4  # attention maps of all layers and heads are held at once


def layer_sparsity(
    model: PreTrainedModel, rows: list[dict[str, Any]], collator: DataCollatorWithPadding
) -> list[LayerSparsity]:
    """Measure each layer's attention on the first `MAX_ROWS` of `rows`, encoded and unpadded.

    ρ is the share of weights that are exactly zero within a row's true length (AAA, Eq. 9); the support of a
    query is the number of keys with a weight other than zero. Both are means: over heads and queries, then
    over rows.
    """
    shares, supports = [], []
    with torch.inference_mode():
        for start in range(0, min(len(rows), MAX_ROWS), _BATCH_SIZE):
            batch = collator(rows[start : start + _BATCH_SIZE])
            inputs = {name: tensor.to(model.device) for name, tensor in batch.items() if name != "labels"}
            maps = model(**inputs, output_attentions=True).attentions  # layers × (B, H, L, L)
            mask = inputs["attention_mask"]
            share = zero_shares(maps, mask)
            shares.append(share)
            supports.append((1 - share) * mask.sum(1, keepdim=True))
    rho, support = (torch.cat(figures).mean(0).tolist() for figures in (shares, supports))
    return [LayerSparsity(*figures) for figures in zip(rho, support, strict=True)]
