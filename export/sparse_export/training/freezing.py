"""Leaving the lower part of an encoder as it was pretrained."""

from transformers import PreTrainedModel

from sparse_export.encoders.extension import extension_modules
from sparse_export.encoders.families import layers_of
from sparse_serve.errors import OptionError


def freeze(model: PreTrainedModel, layers: int) -> None:
    """Keep the embeddings and the first `layers` layers of a BERT-like model out of training.

    What extensions have in these layers is trained nevertheless: it was never pretrained.

    Raises:
        OptionError: the encoder has fewer layers.
    """
    count = model.config.num_hidden_layers
    if layers > count:
        raise OptionError(f"--freeze-layers is {layers}; the encoder has {count} layers")
    encoder = model.base_model
    # `embeddings`, and ELECTRA's `embeddings_project` where they are narrower than the layers.
    embeddings = [module for name, module in encoder.named_children() if name.startswith("embeddings")]
    for module in (*embeddings, *layers_of(model)[:layers]):
        module.requires_grad_(False)
    for module in extension_modules(model):
        module.requires_grad_(True)
