"""What is common to all heads."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from sparse_export.encoders.packing import Packing
from sparse_serve.tasks import Columns, EncodedText, Task

Models = Mapping[type[PreTrainedConfig], type[PreTrainedModel]]
"""One head: each family's model that has it."""


class AnswerNode(NamedTuple):
    """A node of `graph.functions.answers`, from logits `(B, C)` to scores `(B, C)` and a label `(B, 1)`."""

    op: str
    attributes: Mapping[str, Any]


class Head(ABC):
    """What a task adds to an encoder.

    Attributes:
        models: Transformers' models with this head, by the class of their config.
        architecture: how the names of these models end, such as "ForSequenceClassification".
    """

    models: ClassVar[Models]
    architecture: ClassVar[str]

    def __init__(self, task: Task) -> None:
        self.task = task

    @classmethod
    def read(cls, config: PreTrainedConfig) -> Task | None:
        """Return the task of a plain Transformers checkpoint with this head; None where it has another.

        Raises:
            CheckpointError: the config says of the task what cannot be served.
        """
        names = config.architectures or ()
        return cls.read_own(config) if any(name.endswith(cls.architecture) for name in names) else None

    @classmethod
    @abstractmethod
    def read_own(cls, config: PreTrainedConfig) -> Task | None:
        """Return the task of a plain Transformers checkpoint whose architecture is this head's."""

    @abstractmethod
    def configure(self, config: PreTrainedConfig) -> None:
        """Write into a config what Transformers has to know of the task: labels, problem type."""

    @property
    def reads_layers(self) -> bool:
        """Whether the hidden states of all layers are read, not the last one's alone."""
        return False

    @property
    def reads_first_tokens(self) -> bool:
        """Whether nothing is read but the last layer's first tokens: no other row of it is computed then."""
        return False

    @abstractmethod
    def answer_packed(self, model: PreTrainedModel, states: Sequence[Tensor], packing: Packing) -> Tensor:
        """Answer a packed batch, as the exported graph does.

        Args:
            model: with this head, in evaluation mode.
            states: hidden states `(T + R, M)`, the last layer's at the end; where the head `reads_layers`
                those of the embeddings and of every layer; where it `reads_first_tokens` the last layer's of
                the first tokens, `(B, M)`.
            packing: how the tokens lie.

        Returns:
            `(B, width)` float32, or by token `(B, L, width)` with zeros where the mask is 0; zeros in a row
            without tokens.
        """

    @abstractmethod
    def answer_padded(self, outputs: Any, attention_mask: Tensor) -> Tensor:
        """Read the same answer off what Transformers' own model returns for a padded batch.

        Args:
            outputs: of the model, with `hidden_states` where the head `reads_layers`.
            attention_mask: `(B, L)`, nonzero for tokens.
        """

    def answer_node(self) -> AnswerNode | None:
        """Return what reads scores and label off the logits in a graph that takes text; None for none."""
        return None

    def same_answers(
        self, texts: Sequence[EncodedText], ours: Columns, theirs: Columns
    ) -> npt.NDArray[np.bool_] | None:
        """Tell which of N texts two runs answer alike, `(N,)`; None where the numbers are the answer.

        Alike are answers whose tensors of text and of whole numbers are the same.
        """
        said = [name for name, values in ours.items() if values.dtype.kind in "OiUS"]
        if not said:
            return None
        same: npt.NDArray[np.bool_] = np.all([ours[name] == theirs[name] for name in said], axis=(0, 2))
        return same

    def same_words(
        self, texts: Sequence[EncodedText], ours: Columns, theirs: Columns
    ) -> npt.NDArray[np.bool_] | None:
        """Tell of which of N texts the same numbers are put into words alike, `(N,)`; None where none are."""
        return self.same_answers(texts, ours, theirs)
