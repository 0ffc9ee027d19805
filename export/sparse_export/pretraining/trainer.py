"""The trainer of a language model."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparse_export.pretraining.judging import token_sums
from sparse_export.pretraining.masking import IGNORED
from sparse_export.training.trainer import RunTrainer


class MaskedTrainer(RunTrainer):
    """The trainer, whose steps are means over all their masked tokens.

    Parts of a batch have different numbers of them: the mean of their means would be another one, and depend
    on how many processes and accumulated parts share the batch. A part may even have none.
    """

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor]:
        """Return the parts of a step that this process computes, and the masked tokens of all processes'."""
        parts, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        masked = torch.stack([(part["labels"] != IGNORED).sum() for part in parts]).sum()
        return parts, self.accelerator.reduce(masked.to(device), "sum")

    def task_loss(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Return a part's loss, of which the step's is the mean, and the model's outputs."""
        targets = ("labels", "next_sentence_label")
        outputs = model(**{name: each for name, each in inputs.items() if name not in targets})
        logits, *of_sentences = outputs.values()
        told = token_sums(logits, inputs["labels"])
        if num_items_in_batch is None:  # in evaluation, whose figures are computed elsewhere
            loss = told.loss.sum() / told.count.sum().clamp_min(1)
        else:
            parts = self.current_gradient_accumulation_steps * self.args.world_size
            loss = told.loss.sum() * parts / num_items_in_batch.clamp_min(1)
        if of_sentences:
            loss = loss + F.cross_entropy(of_sentences[0], inputs["next_sentence_label"])
        return loss, outputs
