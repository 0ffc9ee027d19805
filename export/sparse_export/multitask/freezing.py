"""Training a part of a model of several tasks, with all else left as it is."""

from collections.abc import Sequence

from transformers import PreTrainedModel

from sparse_export.encoders.extension import extension_modules
from sparse_export.encoders.projected_attention import ProjectedAttention
from sparse_export.encoders.several import SeveralTasksModel


def freeze_encoder(model: PreTrainedModel) -> None:
    """Train heads and what extensions have added alone."""
    model.base_model.requires_grad_(False)
    for module in extension_modules(model):
        module.requires_grad_(module.trains_when_frozen)


def freeze_all_but(model: SeveralTasksModel, tasks: Sequence[str]) -> None:
    """Train the heads and adapters of some tasks alone, so that the others answer as before."""
    model.requires_grad_(False)
    adapters = [module for module in model.modules() if isinstance(module, ProjectedAttention)]
    for task in tasks:
        for module in (model.tasks[task], *(own for adapter in adapters for own in adapter.of_task(task))):
            module.requires_grad_(True)
