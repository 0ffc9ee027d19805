"""Embeddings: a text's hidden states, of one layer or of several, as one vector.

The choices of layers are those that the BERT paper compares for feature extraction (Devlin et al. 2019,
Table 7), those of pooling and normalization sentence-transformers'.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import MODEL_MAPPING, PreTrainedConfig, PreTrainedModel

from sparse_export.encoders.packing import Packing
from sparse_export.tasks.head import Head, Models
from sparse_serve.tasks import Task
from sparse_serve.tasks.embedding import Embedding


class EmbeddingHead(Head):
    """Reads a pooled state; it adds no weights."""

    models: ClassVar[Models] = MODEL_MAPPING
    architecture: ClassVar[str] = "Model"

    @classmethod
    def read_own(cls, config: PreTrainedConfig) -> Task | None:
        """Return none: an encoder without a head embeds where that is asked for."""
        return None

    def configure(self, config: PreTrainedConfig) -> None:
        """Leave the config as it is."""

    @property
    def _embedding(self) -> Embedding:
        return cast(Embedding, self.task)

    @property
    def reads_layers(self) -> bool:
        """Whether another layer than the last is read."""
        return self._embedding.layers != "last"

    @property
    def reads_first_tokens(self) -> bool:
        """Whether the last layer's first tokens are the embedding."""
        return self._embedding.pooling == "first" and not self.reads_layers

    def answer_packed(self, model: PreTrainedModel, states: Sequence[Tensor], packing: Packing) -> Tensor:
        """Return embeddings `(B, M)`, or `(B, 4·M)` of concatenated layers."""
        values = self._combined(states)
        if self._embedding.pooling == "mean":
            values = packing.means(values)
        elif self.reads_layers:
            values = values.index_select(0, packing.first)
        return torch.where(packing.has_token, self._normalized(values), 0)

    def answer_padded(self, outputs: Any, attention_mask: Tensor) -> Tensor:
        """Return embeddings `(B, M)`, or `(B, 4·M)` of concatenated layers."""
        states = outputs.hidden_states if self.reads_layers else [outputs.last_hidden_state]
        values = self._combined(states)
        keep = (attention_mask != 0)[:, :, None]
        if self._embedding.pooling == "first":
            values = values[:, 0]
        else:
            values = torch.where(keep, values, 0).sum(1) / keep.sum(1).clamp_min(1)
        return torch.where(keep.any(1), self._normalized(values), 0)

    def _combined(self, states: Sequence[Tensor]) -> Tensor:
        """Return one hidden state of each token, float32, of those of all layers, the embeddings' first."""
        task = self._embedding
        if task.layers == "last":
            return states[-1].float()
        if task.layers == "second-to-last":
            return states[-2].float()
        last_four = [state.float() for state in states[-4:]]
        if task.layers == "concat-last-four":
            return torch.cat(last_four, -1)
        if task.layers == "sum-last-four":
            return reduce(torch.add, last_four)
        return reduce(torch.add, [state.float() for state in states[1:]]) / (len(states) - 1)

    def _normalized(self, values: Tensor) -> Tensor:
        return F.normalize(values, dim=-1) if self._embedding.normalize else values


HEAD = EmbeddingHead
