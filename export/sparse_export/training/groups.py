"""Groups of the optimiser: weights beside the encoder's and the head's are trained in their own way."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn


def set_apart(
    optimizer: torch.optim.Optimizer,
    groups: Mapping[str, Sequence[nn.Parameter]],
    learning_rates: Mapping[str, float],
) -> None:
    """Move weights into groups of their own, by name, without weight decay.

    Args:
        optimizer: which has them.
        groups: the weights by the name of their group.
        learning_rates: of groups, by name, where it is not that of all.
    """
    own = {id(weight) for weights in groups.values() for weight in weights}
    for group in optimizer.param_groups:
        group["params"] = [weight for weight in group["params"] if id(weight) not in own]
    for name, weights in groups.items():
        trained = [weight for weight in weights if weight.requires_grad]
        if trained:
            rate = {"lr": learning_rates[name]} if name in learning_rates else {}
            optimizer.add_param_group({"params": trained, "weight_decay": 0.0, "name": name, **rate})


def group_of(optimizer: torch.optim.Optimizer, name: str) -> dict[str, Any]:
    """Return the group of a name."""
    group: dict[str, Any] = next(each for each in optimizer.param_groups if each.get("name") == name)
    return group
