"""What a model is, besides its architecture: the entry `sparse_serve` of `config.json`.

    "sparse_serve": {
      "version": 1,
      "attention": {"normalizer": "sparsegen", "lambd": -4.0, "pattern": null},
      "tasks": {"default": {"type": "single_label_classification", "labels": ["negative", "positive"]}},
      "extensions": {},
      "positions": "learned"
    }

Several tasks go by their names and, in a graph, by numbers in the order of `task_order`.

Everything that makes, loads, trains or exports a model reads it here. Checkpoints without the entry are plain
Transformers ones, or of earlier versions (`sparse_attention`, `sinusoidal_positions`): they are read alike,
with the task that their architecture and `problem_type` name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, get_args

from transformers import PreTrainedConfig

from sparse_export.attention.spec import CONFIG_KEY, AttentionSpec, attention_of
from sparse_export.encoders.positions import configure_positions, were_fixed
from sparse_serve.errors import CheckpointError, SparseServeError
from sparse_serve.tasks import DEFAULT_TASK, Task, read_task

Positions = Literal["learned", "sinusoidal"]

_VERSION = 1
_ENTRIES = frozenset({"version", "attention", "tasks", "task_order", "extensions", "positions", "note"})
# For who opens config.json: the weights load anywhere, and are then run as something else than was trained.
_NOTE = (
    "Load with sparse_export.load_checkpoint. Transformers' own AutoModel classes ignore this entry and "
    "attend with dense softmax."
)


@dataclass(frozen=True)
class ModelSpec:
    """What a model attends to, answers, and has besides its encoder.

    Attributes:
        attention: of every layer.
        tasks: what it answers, by name, in the order of their numbers; none of an encoder without a head.
        extensions: settings of the extensions that are not part of the attention, by their names.
        positions: whether the position embeddings were learned, or are fixed sines and cosines.
    """

    attention: AttentionSpec = field(default_factory=AttentionSpec)
    tasks: Mapping[str, Task] = field(default_factory=dict)
    extensions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    positions: Positions = "learned"

    @classmethod
    def of(cls, config: PreTrainedConfig) -> Self:
        """Read what a config records.

        Raises:
            CheckpointError: the entry is malformed, or of a later version.
        """
        stored = getattr(config, CONFIG_KEY, None)
        if stored is None:
            return cls(attention_of(config), positions="sinusoidal" if were_fixed(config) else "learned")
        if not isinstance(stored, Mapping) or stored.get("version") != _VERSION:
            version = stored.get("version") if isinstance(stored, Mapping) else stored
            raise CheckpointError(
                f"config.json: {CONFIG_KEY} has version {version!r}, this package reads version {_VERSION}: "
                "use the package that wrote it, or a later one"
            )
        if unknown := stored.keys() - _ENTRIES:
            raise CheckpointError(
                f"config.json: {CONFIG_KEY} has unknown entries {', '.join(sorted(unknown))}"
            )
        positions = stored.get("positions", "learned")
        if positions not in get_args(Positions):
            raise CheckpointError(
                f"config.json: {CONFIG_KEY}.positions is {positions!r}; known are "
                f"{', '.join(get_args(Positions))}"
            )
        try:
            tasks = _in_order(stored.get("tasks") or {}, stored.get("task_order"))
            extensions = {str(name): dict(each) for name, each in (stored.get("extensions") or {}).items()}
        except SparseServeError as error:
            raise CheckpointError(f"config.json: {CONFIG_KEY}.tasks: {error}") from None
        except (AttributeError, TypeError, ValueError) as error:
            raise CheckpointError(f"config.json: {CONFIG_KEY} is malformed: {error}") from None
        return cls(attention_of(config), tasks, extensions, positions)

    def store(self, config: PreTrainedConfig) -> None:
        """Record it in a config, in place of whatever that says."""
        entry = {
            "version": _VERSION,
            "attention": self.attention.to_json(),
            "tasks": {name: task.to_json() for name, task in self.tasks.items()},
            "extensions": {name: dict(settings) for name, settings in self.extensions.items()},
            "positions": self.positions,
        }
        if self.names_tasks:
            entry["task_order"] = list(self.tasks)
        if not self.attention.is_dense or self.extensions:
            entry["note"] = _NOTE
        setattr(config, CONFIG_KEY, entry)
        if hasattr(config, "sparse_attention"):
            del config.sparse_attention
        configure_positions(config, sinusoidal=self.positions == "sinusoidal")

    @property
    def task(self) -> Task:
        """The only task.

        Raises:
            CheckpointError: there is none, or there are several.
        """
        if len(self.tasks) != 1:
            found = f"the tasks {', '.join(self.tasks)}" if self.tasks else "no task"
            raise CheckpointError(f"the model has {found}, and one is needed")
        return next(iter(self.tasks.values()))

    @property
    def names_tasks(self) -> bool:
        """Whether each task has a head of its own, by name, even if there is only one."""
        return bool(self.tasks) and set(self.tasks) != {DEFAULT_TASK}

    def with_attention(self, attention: AttentionSpec) -> Self:
        """Return the same with another attention."""
        return replace(self, attention=attention)

    def with_tasks(self, tasks: Task | Mapping[str, Task]) -> Self:
        """Return the same with one task alone, or with others by name."""
        return replace(self, tasks={DEFAULT_TASK: tasks} if isinstance(tasks, Task) else dict(tasks))

    def without_tasks(self) -> Self:
        """Return the encoder's alone: of several tasks it has no head, and no extension either."""
        return replace(self, tasks={}, extensions={} if self.names_tasks else self.extensions)


def _in_order(stored: Mapping[str, Any], order: Sequence[str] | None) -> dict[str, Task]:
    """Return the tasks in the order of their numbers: Transformers sorts the entries of a config.

    Raises:
        ValueError: the order is not one of these tasks.
    """
    names = list(stored) if order is None else [str(name) for name in order]
    if sorted(names) != sorted(map(str, stored)):
        raise ValueError(f"task_order is {order!r:.80}, and the tasks are {', '.join(map(str, stored))}")
    return {name: read_task(stored[name]) for name in names}


def no_head(checkpoint: object, config: PreTrainedConfig) -> CheckpointError:
    """Return the error of a checkpoint that answers no task."""
    names = ", ".join(config.architectures or ["no architecture"])
    return CheckpointError(
        f"{checkpoint} has no head that answers a task ({names}): fine-tune it first with "
        "`sparse-serve finetune`, or export it with --task embedding"
    )


def store_attention(config: PreTrainedConfig, attention: AttentionSpec) -> None:
    """Record an attention in a config, whose other entries stay."""
    ModelSpec.of(config).with_attention(attention).store(config)
