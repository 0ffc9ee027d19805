"""What an exported model is to answer: the checkpoint's own task, or what a command line says instead."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from sparse_export.encoders.sentence_transformers import embedding_settings
from sparse_export.encoders.spec import ModelSpec, no_head
from sparse_export.tasks.first_token import FirstTokenHead
from sparse_serve.errors import CheckpointError, OptionError
from sparse_serve.tasks import DEFAULT_TASK, TASKS, Embedding, Task, answered

# Of how many layers the hidden states are read.
_LAYERS_READ = {"second-to-last": 2, "sum-last-four": 4, "concat-last-four": 4}


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """What a command line says of the task; None where it says nothing.

    Attributes:
        task: its name, `Task.option`.
        single_task: the name of the one task that is exported, of a model of several.
        stride: of question answering: by how many tokens windows overlap.
        max_answer_tokens: of question answering: the longest answer.
        no_answer: of question answering: whether a question may have none.
        layers: of embeddings: whose states are read.
        pooling: of embeddings: what of them makes the vector.
        normalize: of embeddings: whether vectors have length 1.
        paired: whether texts come in pairs.
    """

    task: str | None = None
    single_task: str | None = None
    stride: int | None = None
    max_answer_tokens: int | None = None
    no_answer: bool | None = None
    layers: str | None = None
    pooling: str | None = None
    normalize: bool | None = None
    paired: bool | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the task that it says, by their names."""
        said = {name: value for name, value in asdict(self).items() if value is not None}
        return {name: value for name, value in said.items() if name not in ("task", "single_task")}


def asked_tasks(checkpoint: str | Path, config: PreTrainedConfig, options: TaskOptions) -> dict[str, Task]:
    """Return what the exported model is to answer, by name.

    Args:
        checkpoint: a Transformers folder, or the id of a model on the hub.
        config: its config, as `checkpoint.load_config` gives it.
        options: what takes the place of what the checkpoint says.

    Raises:
        CheckpointError: the checkpoint answers nothing, or not what is asked.
        OptionError: an unknown task, or a setting that is out of range or not this task's.
    """
    spec = ModelSpec.of(config)
    if spec.names_tasks:
        return _named(checkpoint, dict(spec.tasks), options)
    if options.single_task is not None:
        raise OptionError(
            f"--single-task {options.single_task} is for a model of several tasks, and {checkpoint} has one: "
            "leave it out"
        )
    return {DEFAULT_TASK: _asked(checkpoint, config, spec, options)}


def _named(checkpoint: str | Path, tasks: dict[str, Task], options: TaskOptions) -> dict[str, Task]:
    """Return all tasks of a model that names them, or the one that is chosen, with its settings."""
    chosen = options.single_task
    if chosen is not None:
        if chosen not in tasks:
            raise OptionError(
                f"--single-task {chosen!r:.80} is no task of {checkpoint}: choose one of {', '.join(tasks)}"
            )
        tasks = {chosen: _with_settings(checkpoint, tasks[chosen], options.settings)}
    elif options.settings:
        name, value = next(iter(options.settings.items()))
        raise OptionError(
            f"{_option(name, value)} is for one task, and {checkpoint} has {', '.join(tasks)}: choose one "
            "with --single-task"
        )
    if options.task is not None:
        raise OptionError(
            f"--task {options.task} is for a model of one task, and {checkpoint} names its own "
            f"({', '.join(tasks)}): leave it out"
        )
    try:
        answered(tasks)
    except ValueError as error:
        raise OptionError(f"{checkpoint}: {error}") from None
    return tasks


def _asked(checkpoint: str | Path, config: PreTrainedConfig, spec: ModelSpec, options: TaskOptions) -> Task:
    own = spec.task if spec.tasks else None
    kind = None if options.task is None else _kind(options.task)
    task = _embedding(checkpoint, config, own, options) if kind is Embedding else own
    if task is None:
        raise no_head(checkpoint, config)
    if kind is not None and not isinstance(task, kind):
        task = _with_same_head(checkpoint, task, kind)
    task = _with_settings(checkpoint, task, options.settings)
    if isinstance(task, Embedding):
        needed = _LAYERS_READ.get(task.layers, 1)
        if config.num_hidden_layers < needed:
            raise OptionError(
                f"--layers {task.layers} reads {needed} layers, {checkpoint} has {config.num_hidden_layers}: "
                "choose last or weighted-all"
            )
        task = replace(task, size=_size(config, task.layers))
    return task


def _kind(option: str) -> type[Task]:
    for kind in TASKS.values():
        if kind.option == option:
            return kind
    known = ", ".join(kind.option for kind in TASKS.values())
    raise OptionError(f"--task {option} is not known: choose one of {known}")


def _embedding(
    checkpoint: str | Path, config: PreTrainedConfig, own: Task | None, options: TaskOptions
) -> Embedding:
    """Return the embedding that a checkpoint records, or that it makes by default."""
    if isinstance(own, Embedding):
        return own
    is_pooling_known = options.pooling is not None
    is_known = is_pooling_known and options.normalize is not None
    settings = {} if is_known else embedding_settings(checkpoint, is_pooling_known=is_pooling_known)
    return Embedding(size=_size(config, "last"), **settings)


def _size(config: PreTrainedConfig, layers: str) -> int:
    return int(config.hidden_size) * (4 if layers == "concat-last-four" else 1)


def _with_same_head(checkpoint: str | Path, task: Task, kind: type[Task]) -> Task:
    """Return a task of another kind, of which the checkpoint has the same head."""
    from sparse_export.tasks import head_class  # noqa: PLC0415  which reads the tasks' own modules

    if not all(issubclass(head_class(each), FirstTokenHead) for each in (kind, type(task))):
        raise CheckpointError(
            f"{checkpoint} answers {task.option}, not {kind.option}: fine-tune it for that first with "
            f"`sparse-serve finetune --task {kind.option}`"
        )
    try:
        return kind(task.labels, task.paired)
    except ValueError as error:
        raise OptionError(f"--task {kind.option} does not fit {checkpoint}: {error}") from None


def _with_settings(checkpoint: str | Path, task: Task, settings: Mapping[str, Any]) -> Task:
    own = {each.name for each in fields(task)}
    for name in settings:
        if name not in own:
            raise OptionError(
                f"{_option(name, settings[name])} is not for {task.option}, which is what {checkpoint} is "
                "exported for: leave it out"
            )
    try:
        return replace(task, **settings)
    except ValueError as error:
        raise OptionError(str(error)) from None


def _option(name: str, value: object) -> str:
    """Return the option of a setting as a command line has it."""
    if name == "no_answer":
        return "--no-answer" if value else "--answers-only"
    if name == "normalize":
        return "--normalize" if value else "--no-normalize"
    if name == "paired":
        return "--text-pair" if value else "--single-text"
    return f"--{name.replace('_', '-')}"
