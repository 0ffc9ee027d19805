"""What each task adds to an encoder: its head, its rows, its loss and its figures, one file a task.

`sparse_serve.tasks` has a file of the same name for each, which says what is answered, and the table of all
of them. A new task is two files of one name and a line in that table.
"""

from importlib import import_module

from transformers import PreTrainedConfig, PreTrainedModel

from sparse_export.encoders.spec import ModelSpec
from sparse_export.tasks.head import Head
from sparse_serve.tasks import TASKS, Task

__all__ = ["Head", "head_class", "head_of", "head_of_spec", "model_head", "task_by_architecture"]


def head_class(kind: type[Task]) -> type[Head]:
    """Return what a kind of task, a class of `sparse_serve.tasks`, adds to an encoder."""
    name = kind.__module__.rpartition(".")[2]
    head: type[Head] = import_module(f"{__name__}.{name}").HEAD
    return head


def head_of(task: Task) -> Head:
    """Return what a task adds to an encoder."""
    return head_class(type(task))(task)


def head_of_spec(spec: ModelSpec) -> Head:
    """Return what reads the answers of a model: the head of its task, or those of tasks by name.

    Raises:
        CheckpointError: it answers nothing.
        ValueError: its tasks cannot be answered together.
    """
    if not spec.names_tasks:
        return head_of(spec.task)
    from sparse_export.tasks.several import SeveralHeads  # noqa: PLC0415  which stands on this table

    return SeveralHeads({name: head_of(task) for name, task in spec.tasks.items()})


def model_head(model: PreTrainedModel) -> Head:
    """Return what reads the answers of a model whose config tells what it answers: see `head_of_spec`."""
    return head_of_spec(ModelSpec.of(model.config))


def task_by_architecture(config: PreTrainedConfig) -> Task | None:
    """Return the task of a plain Transformers checkpoint, which its architecture names; None without a head.

    Raises:
        CheckpointError: the config says of the task what cannot be served.
    """
    heads = (head_class(kind) for kind in TASKS.values())
    return next((task for head in heads if (task := head.read(config)) is not None), None)
