"""Training a part of a model of several tasks, with all else left as it is."""

from collections.abc import Sequence

from transformers import PreTrainedModel

from sparse_export.encoders.extension import ResidualModule, extension_modules
from sparse_export.tasks.several_model import SeveralTasksModel


def freeze_encoder(model: PreTrainedModel) -> None:
    """Train heads and what extensions have added alone.

    The pooler is a part of the heads: an encoder that was pretrained without one gets a random one.
    """
    base = model.base_model
    base.requires_grad_(False)
    if getattr(base, "pooler", None) is not None:
        base.pooler.requires_grad_(True)
    for module in extension_modules(model):
        module.requires_grad_(True)


def freeze_all_but(model: SeveralTasksModel, tasks: Sequence[str]) -> None:
    """Train the heads and adapters of some tasks alone, so that the others answer as before."""
    model.requires_grad_(False)
    added = [module for module in model.modules() if isinstance(module, ResidualModule)]
    for task in tasks:
        for own in (model.tasks[task], *(each for module in added for each in module.of_task(task))):
            own.requires_grad_(True)
