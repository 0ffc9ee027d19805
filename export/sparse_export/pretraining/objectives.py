"""What pre-training minimises."""

from torch import Tensor
from torch.nn import functional as F

from sparse_export.pretraining.judging import token_sums
from sparse_export.tasks.trained import IGNORED
from sparse_export.training.objectives import Inputs, Objective, Part


class MaskedTokens(Objective):
    """Tells masked tokens: the mean cross-entropy over all of a step, of which a part may even have none."""

    targets = ("labels",)

    def items(self, inputs: Inputs) -> Tensor:
        """Count the masked tokens."""
        return (inputs["labels"] != IGNORED).sum()

    def loss(self, part: Part) -> Tensor:
        """Return a part's share of the mean."""
        logits, *_ = part.outputs.values()
        return part.mean(token_sums(logits, part.inputs["labels"]).loss.sum())


class NextSentences(Objective):
    """Tells whether the second segment follows the first: the mean cross-entropy over the rows."""

    targets = ("next_sentence_label",)

    def loss(self, part: Part) -> Tensor:
        """Return a part's mean."""
        _, of_sentences = part.outputs.values()
        return F.cross_entropy(of_sentences, part.inputs["next_sentence_label"])
