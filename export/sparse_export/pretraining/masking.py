"""Masked tokens: 15 % of a row, of which 80 % become the mask token, 10 % a random one, and 10 % stay."""

from collections.abc import Sequence

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

from sparse_export.tasks.trained import Encoded
from sparse_export.training.batches import PlannedBatches
from sparse_serve.errors import CheckpointError

_TRAINING, _EVALUATION = 0, 1


class Masking:
    """Masks rows, each by random numbers of its own.

    So a row's mask does not depend on what is computed beside it: it is the same in any number of processes
    and of accumulated parts, and in a run that was interrupted.

    Args:
        tokenizer: which encoded the rows.
        seed: seeds all masks.

    Raises:
        CheckpointError: the tokenizer has no mask token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        if tokenizer.mask_token is None:
            raise CheckpointError(
                "the encoder's tokenizer has no mask token; masks cannot be told without one"
            )
        self._collator = DataCollatorForLanguageModeling(tokenizer)
        self._special = torch.tensor(tokenizer.all_special_ids)
        self._seed = seed

    def training(self, row: Encoded, epoch: int, number: int) -> Encoded:
        """Mask training row `number` for an epoch; the rest as `evaluation`."""
        return self._masked(row, _TRAINING, epoch, number)

    def evaluation(self, row: Encoded, number: int) -> Encoded:
        """Mask evaluation row `number`.

        Returns:
            The row with other `input_ids` and with `labels`, each token's id where it is to be told and
            `IGNORED` elsewhere. Special tokens, the unknown one too, are never told and stay.
        """
        return self._masked(row, _EVALUATION, number)

    def _masked(self, row: Encoded, *key: int) -> Encoded:
        (seed,) = np.random.SeedSequence((self._seed, *key)).generate_state(1, np.uint64)
        self._collator.generator = torch.Generator().manual_seed(int(seed))
        ids = torch.tensor([row["input_ids"]])
        masked, labels = self._collator.torch_mask_tokens(ids, torch.isin(ids, self._special))
        return {**row, "input_ids": masked[0].tolist(), "labels": labels[0].tolist()}


class MaskedRows(Dataset[Encoded]):
    """Training rows, masked anew in each epoch.

    Args:
        rows: as they are.
        batches: which say what epoch it is.
        masking: masks them.
    """

    def __init__(self, rows: Sequence[Encoded], batches: PlannedBatches, masking: Masking) -> None:
        self._rows = rows
        self._batches = batches
        self._masking = masking

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Encoded:
        return self._masking.training(self._rows[number], self._batches.epoch, number)
