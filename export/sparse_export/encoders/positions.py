"""Position embeddings: learned ones, and the fixed sines and cosines of "Attention Is All You Need".

Fixed ones are written into the position embedding's weights, so that the checkpoint is an ordinary one of its
family, and are kept out of training, also where the checkpoint is trained further: its spec remembers them.
"""

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.distilbert.modeling_distilbert import create_sinusoidal_embeddings

from sparse_export.encoders.families import max_tokens

_EARLIER_KEY = "sinusoidal_positions"
_DISTILBERT_KEY = "sinusoidal_pos_embds"
# Of values up to 1 in bfloat16.
_ROUNDING = 2**-8


def sinusoidal_table(positions: int, width: int) -> Tensor:
    """Return the fixed position embeddings `(positions, width)` float32 (Vaswani et al. 2017, Section 3.5).

    PE(p, 2i) = sin(p / 10000^(2i / width)), PE(p, 2i + 1) = cos(p / 10000^(2i / width)).
    """
    table = torch.empty(positions, width)
    create_sinusoidal_embeddings(positions, width, table)
    return table.detach()


def were_fixed(config: PreTrainedConfig) -> bool:
    """Tell whether a config without a spec says that the positions are fixed ones."""
    return bool(getattr(config, _EARLIER_KEY, False) or getattr(config, _DISTILBERT_KEY, False))


def has_fixed_positions(model: PreTrainedModel) -> bool:
    """Tell whether a model's positions are the fixed ones, to the rounding of half precision.

    What a config says of them is how they began: those of a DistilBERT may be a teacher's, learned ones.
    """
    embedding: nn.Embedding = model.base_model.embeddings.position_embeddings
    count = max_tokens(model.config)
    table = sinusoidal_table(count, embedding.embedding_dim)
    return torch.allclose(embedding.weight[-count:], table, rtol=0, atol=_ROUNDING)


def configure_positions(config: PreTrainedConfig, *, sinusoidal: bool) -> None:
    """Tell Transformers, which makes the positions of random DistilBERT models."""
    if hasattr(config, _DISTILBERT_KEY):
        setattr(config, _DISTILBERT_KEY, sinusoidal)
    if hasattr(config, _EARLIER_KEY):
        delattr(config, _EARLIER_KEY)


def fix_positions(model: PreTrainedModel) -> None:
    """Give a model the fixed positions, and keep them out of training.

    Families that count positions from behind the padding id have the first one there; the rows before it stay
    as they are.
    """
    embedding: nn.Embedding = model.base_model.embeddings.position_embeddings
    count = max_tokens(model.config)
    with torch.no_grad():
        embedding.weight[-count:] = sinusoidal_table(count, embedding.embedding_dim)
    embedding.requires_grad_(False)
