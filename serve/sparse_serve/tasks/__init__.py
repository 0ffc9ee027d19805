"""What a model answers: one description for checkpoint, manifest and server, one file a task.

    type                          a row's label in a data file       the model's answer
    single_label_classification   a name or a whole number           the label with the largest logit
    multi_label_classification    a JSON array of names, [] too      every label with sigmoid(logit) ≥ 0.5
    regression                    a finite number                    the logit itself
    question_answering            answers in the context, or none    the best span of the context
    token_classification          a tag for each word                the entities of the text
    embedding                     how alike two texts are            a vector

`sparse_export.tasks` has a file of the same name for each, with what it adds to an encoder. A new task is two
files of one name and a line in `TASKS`. Triton's Python stub imports this package: the standard library,
numpy and tokenizers are all that it needs until something is evaluated.
"""

from collections.abc import Mapping

from sparse_serve.errors import TaskError
from sparse_serve.tasks.classification import Classification
from sparse_serve.tasks.embedding import Embedding
from sparse_serve.tasks.encoding import TASK_IDS, Columns, EncodedText, Pairs
from sparse_serve.tasks.labels import json_array, sorted_labels
from sparse_serve.tasks.multi_label import MultiLabel
from sparse_serve.tasks.question_answering import QuestionAnswering
from sparse_serve.tasks.regression import Regression
from sparse_serve.tasks.several import Several, answered, require_task_name, require_task_named_once
from sparse_serve.tasks.task import OutputTensor, Task
from sparse_serve.tasks.token_classification import TokenClassification

__all__ = [
    "DEFAULT_TASK",
    "TASKS",
    "TASK_IDS",
    "Classification",
    "Columns",
    "Embedding",
    "EncodedText",
    "MultiLabel",
    "OutputTensor",
    "Pairs",
    "QuestionAnswering",
    "Regression",
    "Several",
    "Task",
    "TokenClassification",
    "answered",
    "json_array",
    "read_task",
    "read_tasks",
    "require_task_name",
    "require_task_named_once",
    "sorted_labels",
]

DEFAULT_TASK = "default"
"""The name of the task of a model that has one."""

TASKS: dict[str, type[Task]] = {
    task.type: task
    for task in (
        Classification,
        MultiLabel,
        Regression,
        QuestionAnswering,
        TokenClassification,
        Embedding,
    )
}
"""Every task, by its type."""


def read_task(description: object) -> Task:
    """Return the task that `Task.to_json` describes.

    Raises:
        TaskError: its type is unknown here, or the description is malformed.
    """
    if not isinstance(description, Mapping):
        raise TaskError(f"the description of a task is {description!r:.80}; a JSON object is needed")
    kind = description.get("type")
    if not isinstance(kind, str) or kind not in TASKS:
        raise TaskError(
            f"task {kind!r:.80} is not known here, known are {', '.join(TASKS)}: upgrade sparse-serve"
        )
    try:
        return TASKS[kind].of_json(description)
    except ValueError as error:
        raise TaskError(str(error)) from None


def read_tasks(descriptions: object) -> dict[str, Task]:
    """Return the tasks that descriptions by name describe, one or more.

    Raises:
        TaskError: there is none, or one is unknown here or malformed.
    """
    if not isinstance(descriptions, Mapping) or not descriptions:
        raise TaskError(f"tasks are {descriptions!r:.80}; descriptions by name are needed, one or more")
    return {str(name): read_task(description) for name, description in descriptions.items()}
