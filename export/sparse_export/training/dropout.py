"""Dropout as a run asks for it, whatever the encoder was pretrained with."""

from torch import nn


def set_dropout(model: nn.Module, dropout: float | None) -> None:
    """Drop this share of hidden states, attention weights and the head's input; None keeps it as it is."""
    if dropout is None:
        return
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
