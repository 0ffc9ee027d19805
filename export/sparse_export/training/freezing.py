"""Leaving the lower part of an encoder as it was pretrained."""

from torch import nn
from transformers import PreTrainedModel

from sparse_serve.errors import OptionError


def freeze(model: PreTrainedModel, layers: int) -> None:
    """Keep the embeddings and the first `layers` layers of a BERT-like classifier out of training.

    Raises:
        OptionError: the encoder has fewer layers.
    """
    count = model.config.num_hidden_layers
    if layers > count:
        raise OptionError(f"--freeze-layers is {layers}; the encoder has {count} layers")
    encoder = model.base_model
    stack = next(
        module for module in encoder.modules() if isinstance(module, nn.ModuleList) and len(module) == count
    )
    # `embeddings`, and ELECTRA's `embeddings_project` where they are narrower than the layers.
    embeddings = [module for name, module in encoder.named_children() if name.startswith("embeddings")]
    for module in (*embeddings, *stack[:layers]):
        module.requires_grad_(False)
