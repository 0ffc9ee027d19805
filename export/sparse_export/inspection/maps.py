"""Attention maps: the weights with which every token reads every other, per layer and head."""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sparse_export.attention.masks import LayerMask
from sparse_export.attention.measures import zero_shares
from sparse_export.attention.spec import AttentionSpec
from sparse_export.encoders.patterned import recorded
from sparse_export.encoders.spec import ModelSpec, store_attention
from sparse_export.inspection.allowed import AllowedPairs, allowed_pairs
from sparse_export.inspection.tokens import TokenizedText
from sparse_export.tasks import head_of
from sparse_serve.tasks import EncodedText, Task

Weights = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Prediction:
    """A model's answer to one text, as the served model gives it.

    Attributes:
        label: the best label; for several labels at once a JSON array of those with a score of at least
            0.5; for regression the value as text; the answer to a question; entities as a JSON array; empty
            for an embedding.
        scores: one per label of the checkpoint: softmax, sigmoid, or the values themselves; none of other
        tasks.
    """

    label: str
    scores: dict[str, float]


@dataclass(frozen=True)
class AttentionMaps:
    """What one model attends to in one text of L tokens.

    Attributes:
        weights: `(layers, H, L, L)` float32, `[layer, head, query, key]`; a query's weights sum to 1, or to
            0 where no key is allowed, and those off the support are exactly 0. Layers and heads are counted
            from 0.
        rho: per layer the share of weights that are exactly zero (Eq. 9 of the AAA paper).
        prediction: the model's answer.
        allowed: the pairs that the model's pattern allows, which tells a zero that was never allowed from
            one among the allowed pairs; None for full attention.
    """

    weights: Weights
    rho: tuple[float, ...]
    prediction: Prediction
    allowed: AllowedPairs | None = None

    @cached_property
    def support(self) -> npt.NDArray[np.float64]:
        """Keys with a weight above zero per query, mean over the queries: `(layers, H)`."""
        kept: npt.NDArray[np.float64] = (self.weights != 0).sum(axis=-1).mean(axis=-1)
        return kept

    @property
    def read_by_head(self) -> Weights:
        """What the classification head reads: the first token's weights in the last layer, `(L,)`."""
        first: Weights = self.view(-1, None)[0]
        return first

    @property
    def received(self) -> Weights:
        """Attention that each token receives in the last layer, mean over heads and queries: `(L,)`."""
        return received(self.view(-1, None))

    def view(self, layer: int, head: int | None) -> Weights:
        """Return the `(L, L)` map of a head, or of the layer: the mean over its heads."""
        weights: Weights = self.weights[layer].mean(axis=0) if head is None else self.weights[layer, head]
        return weights


def received(weights: Weights) -> Weights:
    """Return the attention each key receives in a map `(L, L)`, mean over queries: `(L,)`, summing to 1."""
    mean: Weights = weights.mean(axis=0)
    return mean


def select_attention(model: PreTrainedModel, attention: AttentionSpec) -> None:
    """Exchange a loaded model's attention, in place; its weights stay as they are.

    A model with a pattern may be given its own pattern or full attention. Softmax over all keys runs as
    "eager", the implementation that hands out its weights.
    """
    store_attention(model.config, attention)
    model.set_attn_implementation("eager" if attention.is_dense else attention.implementation)


@torch.no_grad()
def attention_maps(model: PreTrainedModel, text: TokenizedText) -> AttentionMaps:
    """Run a model on one text and keep its attention.

    Args:
        model: a classifier in evaluation mode whose attention `select_attention` has chosen.
        text: its tokens, none of them padding.
    """
    spec = ModelSpec.of(model.config)
    attention, task = spec.attention, spec.task
    head = head_of(task)
    no_masks: list[LayerMask] = []
    with nullcontext(no_masks) if attention.pattern is None else recorded(model) as masks:
        outputs = model(**text.inputs, output_attentions=True, output_hidden_states=head.reads_layers)
    weights: Tensor = torch.stack([layer[0] for layer in outputs.attentions])
    allowed = allowed_pairs(masks, len(text.tokens)) if masks else None
    if attention.lambd is None:
        # A weight of softmax is positive; one that underflows must not look like one of the support's zeros.
        weights = weights.clamp_min(torch.finfo(weights.dtype).tiny)
        if allowed is not None:
            weights = weights.where(torch.from_numpy(allowed.pairs)[:, None], 0)
    tokens = torch.ones(1, len(text.tokens))
    return AttentionMaps(
        weights=weights.numpy(),
        rho=tuple(zero_shares([*weights[:, None]], tokens)[0].tolist()),
        prediction=_predict(task, text.encoded, head.answer_padded(outputs, tokens)),
        allowed=allowed,
    )


def _predict(task: Task, encoded: EncodedText, output: Tensor) -> Prediction:
    """Read what the model answers as its served entry does."""
    columns = task.answer([encoded], output.numpy())
    names = [tensor.name for tensor in task.outputs if tensor.datatype == "BYTES"]
    label = columns[names[0]][0, 0].decode() if names else ""
    scores = columns.get("scores")
    if scores is None:
        return Prediction(label, {})
    return Prediction(label, dict(zip(task.labels, scores[0].tolist(), strict=True)))
