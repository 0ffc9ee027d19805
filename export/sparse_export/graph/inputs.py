"""What an exported graph takes, as named tensors of known rank."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from sparse_export.encoders.families import input_names
from sparse_export.encoders.spec import ModelSpec
from sparse_serve.tasks import TASK_IDS

BATCH, SEQUENCE = "batch", "sequence"


@dataclass(frozen=True)
class GraphInput:
    """One int64 input.

    Attributes:
        name: of the tensor.
        axes: its axes, the batch first: the names of those that are free, the sizes of the others.
    """

    name: str
    axes: tuple[str | int, ...]

    def example(self, sizes: dict[str, int]) -> Tensor:
        """Return zeros with the given sizes of the free axes."""
        shape = [axis if isinstance(axis, int) else sizes[axis] for axis in self.axes]
        return torch.zeros(shape, dtype=torch.int64)

    @property
    def free_axes(self) -> dict[int, str]:
        """The names of the free axes by their number."""
        return {number: axis for number, axis in enumerate(self.axes) if isinstance(axis, str)}


def graph_inputs(config: PreTrainedConfig) -> tuple[GraphInput, ...]:
    """Return what the graph of a model of this config takes, in order."""
    texts = tuple(GraphInput(name, (BATCH, SEQUENCE)) for name in input_names(config))
    return (*texts, GraphInput(TASK_IDS, (BATCH, 1))) if len(ModelSpec.of(config).tasks) > 1 else texts
