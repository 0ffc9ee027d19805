"""Position embeddings: learned ones, and the fixed sines and cosines of "Attention Is All You Need".

Fixed ones are written into the position embedding's weights, so that the checkpoint is an ordinary one of
its family, and are kept out of training, also where the checkpoint is trained further: its config remembers
them as `"sinusoidal_positions": true`.
"""

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from sparse_export.encoders.families import max_tokens

_CONFIG_KEY = "sinusoidal_positions"
_DISTILBERT_KEY = "sinusoidal_pos_embds"
_LONGEST_WAVE = 10_000


def sinusoidal_table(positions: int, width: int) -> Tensor:
    """Return the fixed position embeddings `(positions, width)` float32 (Vaswani et al. 2017, Section 3.5).

    PE(p, 2i) = sin(p / 10000^(2i / width)), PE(p, 2i + 1) = cos(p / 10000^(2i / width)).
    """
    position = torch.arange(positions, dtype=torch.float64)[:, None]
    even = torch.arange(0, width, 2, dtype=torch.float64)
    angle = position / _LONGEST_WAVE ** (even / width)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :width].float()


def is_sinusoidal(config: PreTrainedConfig) -> bool:
    """Tell whether the positions are the fixed ones."""
    return bool(getattr(config, _CONFIG_KEY, False) or getattr(config, _DISTILBERT_KEY, False))


def remember(config: PreTrainedConfig, *, sinusoidal: bool) -> None:
    """Write into a config, of which a model is to be made, whether its positions are the fixed ones."""
    if sinusoidal or hasattr(config, _CONFIG_KEY):
        setattr(config, _CONFIG_KEY, sinusoidal)
    if hasattr(config, _DISTILBERT_KEY):  # by which Transformers makes those of random models
        setattr(config, _DISTILBERT_KEY, sinusoidal)


def fix_positions(model: PreTrainedModel) -> None:
    """Where a model's config says so, give it the fixed positions and keep them out of training.

    Families that count positions from behind the padding id have the first one there; the rows before it stay
    as they are.
    """
    if not is_sinusoidal(model.config):
        return
    embedding: nn.Embedding = model.base_model.embeddings.position_embeddings
    count = max_tokens(model.config)
    with torch.no_grad():
        embedding.weight[-count:] = sinusoidal_table(count, embedding.embedding_dim)
    embedding.requires_grad_(False)
