"""A relational layer: one linear layer in front of the heads of tasks that are alike (PAL, section 4.1)."""

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from torch import Tensor, nn
from transformers import PreTrainedModel

from sparse_export.encoders.extension import Extension, ExtensionModule

if TYPE_CHECKING:
    from sparse_export.encoders.spec import ModelSpec

EXTENSION = "relational"


class RelationalLayer(nn.Linear, ExtensionModule):
    """What the heads of its tasks read, `(…, M)` to `(…, M)`."""

    parameter_group: ClassVar[str] = "relational layer"

    def __init__(self, width: int) -> None:
        super().__init__(width, width)

    def reset_parameters(self) -> None:
        """Begin as if it were not there."""
        nn.init.eye_(self.weight)
        nn.init.zeros_(self.bias)


class RelationalExtension(Extension):
    """`relational` beside the encoder, in front of the classifiers of its tasks."""

    settings: ClassVar[str | None] = EXTENSION

    def __init__(self, tasks: tuple[str, ...]) -> None:
        self._tasks = tasks

    @classmethod
    def of(cls, spec: "ModelSpec") -> Self | None:
        """Return it where any of the model's tasks share one."""
        shared = spec.extensions.get(EXTENSION, {}).get("tasks", ())
        tasks = tuple(name for name in shared if name in spec.tasks)
        return cls(tasks) if tasks else None

    def attach(self, model: PreTrainedModel) -> None:
        """Put it in front of the classifiers."""
        model.relational = RelationalLayer(model.config.hidden_size)
        for task in self._tasks:
            classifier = cast(Any, model).of(task).get_submodule("classifier")
            classifier.register_forward_pre_hook(partial(_first, model.relational))


def _first(layer: RelationalLayer, classifier: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
    return (layer(args[0]), *args[1:])
