"""What an exported graph takes, as named tensors of known rank."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from sparse_export.encoders.families import input_names
from sparse_export.encoders.spec import ModelSpec
from sparse_serve.tasks import TASK_IDS

BATCH, SEQUENCE, TOKENS, BORDERS = "batch", "sequence", "tokens", "borders"


@dataclass(frozen=True)
class GraphInput:
    """One input of whole numbers.

    Attributes:
        name: of the tensor.
        axes: its axes, the batch first: the names of those that are free, the sizes of the others.
        dtype: int64 or int32.
    """

    name: str
    axes: tuple[str | int, ...]
    dtype: torch.dtype = torch.int64

    def example(self, sizes: dict[str, int]) -> Tensor:
        """Return zeros with the given sizes of the free axes."""
        shape = [axis if isinstance(axis, int) else sizes[axis] for axis in self.axes]
        return torch.zeros(shape, dtype=self.dtype)

    @property
    def free_axes(self) -> dict[int, str]:
        """The names of the free axes by their number."""
        return {number: axis for number, axis in enumerate(self.axes) if isinstance(axis, str)}


def graph_inputs(config: PreTrainedConfig) -> tuple[GraphInput, ...]:
    """Return what the graph of a model of this config takes of a padded batch, in order."""
    return (*(GraphInput(name, (BATCH, SEQUENCE)) for name in input_names(config)), *_task_inputs(config))


def token_inputs(config: PreTrainedConfig) -> tuple[GraphInput, ...]:
    """Return what the graph of a model of this config takes of packed tokens, in order."""
    names = [*(name for name in input_names(config) if name != "attention_mask"), "positions"]
    tokens = (GraphInput(name, (TOKENS,)) for name in names)
    return (*tokens, GraphInput("cu_seqlens", (BORDERS,), torch.int32), *_task_inputs(config))


def _task_inputs(config: PreTrainedConfig) -> tuple[GraphInput, ...]:
    return (GraphInput(TASK_IDS, (BATCH, 1)),) if len(ModelSpec.of(config).tasks) > 1 else ()
