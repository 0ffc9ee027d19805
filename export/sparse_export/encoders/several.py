"""One encoder with the heads of several tasks, each of which is Transformers' own.

    bert.…                                  the encoder, with what extensions have of each task in it
    tasks.sentiment.classifier.weight …     the head of a task

The heads stand on the one encoder: `model.of("sentiment")` is the Transformers model of that task, which
answers as a model of its own with the same weights would.
"""

from collections.abc import Iterator
from typing import Any, cast

from torch import Tensor, nn
from transformers import MODEL_MAPPING, PreTrainedConfig, PreTrainedModel

from sparse_export.encoders.families import FAMILIES
from sparse_export.encoders.routing import OneTask
from sparse_export.encoders.spec import ModelSpec
from sparse_export.tasks.head import Models
from sparse_serve.errors import OptionError
from sparse_serve.tasks import Task


class SeveralTasksModel(PreTrainedModel):  # type: ignore[misc]  # Transformers is untyped
    """An encoder and the heads of its spec's tasks; `models_of_several_tasks` has each family's.

    Attributes:
        tasks: each task's head: what its Transformers model has beside the encoder.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        encoder = MODEL_MAPPING[type(config)](config)
        setattr(self, self.base_model_prefix, encoder)
        self._models = {
            name: _on_encoder(task, config, encoder) for name, task in ModelSpec.of(config).tasks.items()
        }
        self.tasks = nn.ModuleDict()
        for name, model in self._models.items():
            refuse_unsafe(name)
            own = {key: each for key, each in model.named_children() if each is not encoder}
            self.tasks[name] = nn.ModuleDict(own)
        self.post_init()

    def of(self, task: str) -> PreTrainedModel:
        """Return the model of one task, which shares its weights with this one."""
        return self._models[task]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        task_ids: Tensor,
        **more: Any,
    ) -> Any:
        """Have a task's model answer rows that are all of that task.

        Args:
            input_ids: `(B, L)` int64.
            attention_mask: `(B, L)`, nonzero for tokens; None without padding.
            token_type_ids: `(B, L)` int64, for families with segments.
            task_ids: `(B,)` or `(B, 1)` int64, the task's number among the spec's, the same in every row.
            more: for the task's model.

        Raises:
            ValueError: the rows are of several tasks.
        """
        numbers = task_ids.unique().tolist()
        if len(numbers) != 1:
            raise ValueError(f"the rows are of the tasks {numbers}; answer those of each by themselves")
        return self.answer(list(self._models)[numbers[0]], input_ids, attention_mask, token_type_ids, **more)

    def answer(
        self,
        task: str,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **more: Any,
    ) -> Any:
        """Return what the model of one task returns for a padded batch; arguments as those of `forward`."""
        segments = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        routing = OneTask(task, attention_mask)
        return self.of(task)(
            input_ids=input_ids, attention_mask=attention_mask, routing=routing, **segments, **more
        )


class _ModelsOfSeveralTasks(Models):
    """The class of a model of several tasks, by the class of its config; made when it is asked for."""

    def __init__(self) -> None:
        self._made: dict[type[PreTrainedConfig], type[PreTrainedModel]] = {}

    def __getitem__(self, config: type[PreTrainedConfig]) -> type[PreTrainedModel]:
        if config.model_type not in FAMILIES:
            raise KeyError(config)
        if config not in self._made:
            family = MODEL_MAPPING[config].__mro__[1]  # such as BertPreTrainedModel
            name = f"{family.__name__.removesuffix('PreTrainedModel')}ForSeveralTasks"
            self._made[config] = type(name, (SeveralTasksModel, family), {"__module__": __name__})
        return self._made[config]

    def __iter__(self) -> Iterator[type[PreTrainedConfig]]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


SEVERAL_TASKS_MODELS = _ModelsOfSeveralTasks()


def refuse_unsafe(name: str) -> None:
    """Refuse a task's name that weights cannot go by.

    Raises:
        OptionError: it is no such name.
    """
    if hasattr(nn.ModuleDict(), name):
        raise OptionError(f"a task cannot be called {name!r}, which means something to torch; rename it")


def _on_encoder(task: Task, config: PreTrainedConfig, encoder: PreTrainedModel) -> PreTrainedModel:
    """Return the Transformers model of a task on an encoder that is there already."""
    from sparse_export.tasks import head_of  # noqa: PLC0415  whose table imports what has the models

    head = head_of(task)
    own = type(config).from_dict(config.to_dict())
    head.configure(own)
    # Its own encoder is thrown away: one without layers and words costs nothing to make.
    small = type(config).from_dict(own.to_dict() | {"num_hidden_layers": 0, "vocab_size": 8})
    model = cast(PreTrainedModel, head.models[type(config)](small))
    model.config = own
    setattr(model, model.base_model_prefix, encoder)
    return model
