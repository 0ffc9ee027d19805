"""What a head needs to be fine-tuned: the targets of its rows, and its loss."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor
from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast

from sparse_export.tasks.head import Head
from sparse_serve.data import TextData
from sparse_serve.tasks.encoding import EncodedText

Encoded = dict[str, Any]
"""A row of the encoder's: token ids (and segment ids), unpadded, and the targets of its head."""

IGNORED = -100
"""The target of what is not asked, as in torch and Transformers."""


class TrainedHead(Head):
    """A head that can be fine-tuned.

    Attributes:
        targets: the names of a batch's tensors that hold its targets.
        can_smooth: whether its loss is a cross-entropy over labels, which label smoothing applies to.
    """

    targets: ClassVar[tuple[str, ...]] = ("labels",)
    can_smooth: ClassVar[bool] = False

    @abstractmethod
    def window_targets(
        self, data: TextData, encoded: Sequence[EncodedText]
    ) -> list[Sequence[Mapping[str, Any]]]:
        """Return the targets of each window of each row.

        Args:
            data: the N rows, labelled.
            encoded: their texts, each in one or more windows.

        Raises:
            DataError: a label that the model does not know, or that does not fit the tokens of its text.
        """

    def collator(self, tokenizer: PreTrainedTokenizerFast) -> Any:
        """Return what makes a batch of rows."""
        return DataCollatorWithPadding(tokenizer)

    def items(self, inputs: Mapping[str, Tensor]) -> Tensor | None:
        """Count what the loss of a batch is a mean over; None where that is its rows."""
        return None

    @abstractmethod
    def loss(self, answer: Tensor, inputs: Mapping[str, Tensor], smoothing: float = 0.0) -> Tensor:
        """Return the loss of a batch: the mean over its rows, or where it has `items` the sum over them.

        Args:
            answer: as `answer_padded` gives it.
            inputs: the batch, with its targets and `attention_mask` `(B, L)`.
            smoothing: share of each target that is spread over all labels, where the head `can_smooth`.
        """
