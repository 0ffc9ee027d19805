"""How well a language model tells masked tokens, and what follows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import EvalPrediction

from sparse_export.pretraining.options import ACCURACY, PERPLEXITY, SENTENCE_ACCURACY
from sparse_export.tasks.trained import IGNORED
from sparse_export.training.options import LOSS


@dataclass(frozen=True)
class TokenSums:
    """Sums over the masked tokens of each row `(B,)`: losses in nats, how many, and how many told right."""

    loss: Tensor
    count: Tensor
    right: Tensor


def token_sums(logits: Tensor, labels: Tensor) -> TokenSums:
    """Sum over each row's masked tokens.

    Args:
        logits: `(B, L, V)`.
        labels: `(B, L)` int64, `IGNORED` where nothing is to be told.
    """
    rows, _ = told = (labels != IGNORED).nonzero(as_tuple=True)
    chosen, expected = logits[told].float(), labels[told]
    each = (
        F.cross_entropy(chosen, expected, reduction="none"),
        torch.ones_like(rows, dtype=torch.float32),
        (chosen.argmax(-1) == expected).float(),
    )
    empty = torch.zeros(len(labels), device=logits.device)
    return TokenSums(*(empty.index_add(0, rows, values) for values in each))


def answer(outputs: Any, attention_mask: Tensor) -> Tensor | tuple[Tensor, ...]:
    """Return the logits of a model's outputs: `(B, L, V)`, or these and `(B, 2)` of sentences."""
    of_tokens, *of_sentences = outputs.values()
    return (of_tokens, *of_sentences) if of_sentences else of_tokens


def reduced(logits: Tensor | Sequence[Tensor], labels: Tensor | Sequence[Tensor]) -> Tensor:
    """Return what `figures` needs of a batch: `(B, 3)` sums over tokens, or `(B, 5)` with sentences.

    Args:
        logits: `(B, L, V)`, or these and `(B, 2)`.
        labels: `(B, L)`, or these and `(B,)`.
    """
    if isinstance(logits, Tensor) and isinstance(labels, Tensor):
        return torch.stack(_of_tokens(logits, labels), dim=1)
    of_tokens, of_sentences = logits
    labels, follows = labels
    right = (of_sentences.argmax(-1) == follows).float()
    loss = F.cross_entropy(of_sentences.float(), follows, reduction="none")
    return torch.stack((*_of_tokens(of_tokens, labels), loss, right), dim=1)


def _of_tokens(logits: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    sums = token_sums(logits, labels)
    return sums.loss, sums.count, sums.right


def figures(prediction: EvalPrediction) -> dict[str, float]:
    """Return the loss over all evaluation rows, and the metrics.

    The loss is the mean over the masked tokens and, with sentences, the mean over the rows besides; the
    perplexity is of the tokens' alone. `prediction.predictions` are what `reduced` made of all batches.
    """
    rows = torch.from_numpy(prediction.predictions).double()
    loss, count, right, *of_sentences = rows.sum(0).unbind()
    of_tokens = loss / count
    metrics = {LOSS: of_tokens, ACCURACY: right / count, PERPLEXITY: of_tokens.exp()}
    if of_sentences:
        sentence_loss, sentences_right = of_sentences
        metrics[LOSS] = of_tokens + sentence_loss / len(rows)
        metrics[SENTENCE_ACCURACY] = sentences_right / len(rows)
    return {name: value.item() for name, value in metrics.items()}
