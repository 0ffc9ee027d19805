"""One encoder with the heads of several tasks, each of which is Transformers' own.

    bert.…                                  the encoder, with what extensions have of each task in it
    tasks.sentiment.classifier.weight …     the head of a task

The heads stand on the one encoder: `model.of("sentiment")` is the Transformers model of that task, which
answers as a model of its own with the same weights would.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import MODEL_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from sparse_export.encoders.families import FAMILIES, family_of
from sparse_export.encoders.routing import ByRows, OneTask, Partition
from sparse_export.encoders.spec import ModelSpec
from sparse_export.tasks.head import Models
from sparse_serve.errors import OptionError
from sparse_serve.tasks import Task


class SeveralTasksModel(PreTrainedModel):  # type: ignore[misc]  # Transformers is untyped
    """An encoder and the heads of its spec's tasks; `SEVERAL_TASKS_MODELS` has each family's.

    Attributes:
        tasks: each task's head: what its Transformers model has beside the encoder.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        encoder = MODEL_MAPPING[type(config)](config)
        setattr(self, self.base_model_prefix, encoder)
        self._models = {
            name: _on_encoder(name, task, config, encoder)
            for name, task in ModelSpec.of(config).tasks.items()
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
        task_ids: Tensor | None = None,
        **more: Any,
    ) -> Any:
        """Answer padded rows, each by the model of its task.

        Args:
            input_ids: `(B, L)` int64.
            attention_mask: `(B, L)`, nonzero for tokens; None without padding.
            token_type_ids: `(B, L)` int64, for families with segments.
            task_ids: `(B,)` or `(B, 1)` int64, each row's task by its number among the spec's; None where
                the model has one.
            more: for Transformers.

        Returns:
            What the task's model returns, where all rows are of one; else `logits` `(B, width)` as wide as
            the widest task's, −inf where a row's task has none.
        """
        segments = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, **segments, **more}
        names = list(self._models)
        numbers = [0] if task_ids is None and len(names) == 1 else _numbers(task_ids, len(names))
        if len(set(numbers)) == 1:
            return self.of(names[numbers[0]])(**inputs)
        return self._mixed(inputs, Partition.of(torch.tensor(numbers, device=input_ids.device), len(names)))

    def _mixed(self, inputs: dict[str, Any], rows: Partition) -> SequenceClassifierOutput:
        routing = ByRows(rows, list(self._models), inputs["attention_mask"])
        outputs = self.base_model(**inputs, routing=routing)
        first = outputs.last_hidden_state[:, :1]
        head = family_of(self.config).head
        answers = [
            head(model, first.index_select(0, part))
            for model, part in zip(self._models.values(), rows.parts, strict=True)
        ]
        width = max(answer.shape[1] for answer in answers)
        return SequenceClassifierOutput(
            logits=rows.join([as_wide_as(width, each) for each in answers]),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def as_wide_as(width: int, logits: Tensor) -> Tensor:
    """Fill logits `(B, C)` up to `(B, width)`: what a task has no label for is −inf."""
    return nn.functional.pad(logits, (0, width - logits.shape[1]), value=-torch.inf)


def _numbers(task_ids: Tensor | None, count: int) -> list[int]:
    """Return the number of each row's task.

    Raises:
        ValueError: there are none, or numbers that no task has.
    """
    if task_ids is None:
        raise ValueError(f"the model has {count} tasks: give task_ids")
    numbers: list[int] = task_ids.reshape(-1).tolist()
    if unknown := {number for number in numbers if not 0 <= number < count}:
        raise ValueError(f"task_ids has {sorted(unknown)}, the model's {count} tasks go by 0 to {count - 1}")
    return numbers


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


def _on_encoder(name: str, task: Task, config: PreTrainedConfig, encoder: PreTrainedModel) -> PreTrainedModel:
    """Return the Transformers model of a task on an encoder that is there already."""
    from sparse_export.tasks import head_of  # noqa: PLC0415  whose table imports what has the models

    head = head_of(task)
    own = type(config).from_dict(config.to_dict())
    ModelSpec.of(own).with_tasks({name: task}).store(own)
    head.configure(own)
    # Its own encoder is thrown away: one without layers and words costs nothing to make.
    words = (config.pad_token_id or 0) + 1
    small = type(config).from_dict(own.to_dict() | {"num_hidden_layers": 0, "vocab_size": words})
    model = cast(PreTrainedModel, head.models[type(config)](small))
    model.config = own
    setattr(model, model.base_model_prefix, encoder)
    model.register_forward_pre_hook(partial(_routed, name), with_kwargs=True)
    return model


def _routed(
    task: str, model: PreTrainedModel, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Have what the encoder has of several tasks work by this one's weights."""
    mask = args[1] if len(args) > 1 else kwargs.get("attention_mask")
    return args, kwargs | {"routing": OneTask(task, mask)}
