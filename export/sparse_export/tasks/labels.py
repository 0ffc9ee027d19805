"""Labels in a Transformers config, in the order of the logits."""

from collections.abc import Sequence

from transformers import PreTrainedConfig

from sparse_serve.errors import CheckpointError
from sparse_serve.tasks import Task


def labelled_task(kind: type[Task], config: PreTrainedConfig) -> Task:
    """Return a task with the labels of a config.

    Raises:
        CheckpointError: one is missing, or they cannot be served.
    """
    try:
        return kind(tuple(str(config.id2label[index]) for index in range(config.num_labels)))
    except KeyError as error:
        raise CheckpointError(f"config.json: id2label has no label {error}") from None
    except ValueError as error:
        raise CheckpointError(f"config.json: {error}") from None


def write_labels(config: PreTrainedConfig, labels: Sequence[str]) -> None:
    """Write labels into a config, in the order of the logits."""
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: index for index, label in enumerate(labels)}
