"""How to pre-train: the options of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from sparse_export.encoders.spec import Positions
from sparse_export.training.options import LOSS, TrainingOptions
from sparse_serve.errors import OptionError

ACCURACY, PERPLEXITY, SENTENCE_ACCURACY = "accuracy", "perplexity", "nsp_accuracy"


@dataclass(frozen=True)
class PretrainOptions(TrainingOptions):
    """How to train an encoder on texts without labels, as BERT was (Devlin et al. 2019, Section 3.1).

    15 % of a row's tokens, anew in each epoch, are to be told from the others: 80 % of them are replaced by
    the mask token, 10 % by a random one, 10 % stay. Evaluation rows are masked once and for all. The best
    epoch has the smallest loss.

    Attributes:
        nsp: also tell whether a row's second segment follows its first (next-sentence prediction).
        positions: learned, or fixed sines and cosines; None keeps what the encoder has, and learns random
            ones.
    """

    nsp: bool = False
    positions: Positions | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions not in (None, *get_args(Positions)):
            raise OptionError(
                f"--positions is {self.positions}; it must be {' or '.join(get_args(Positions))}"
            )
        if self.nsp and self.columns is not None and self.columns.text_pair is not None:
            raise OptionError(
                f"--text-pair-column {self.columns.text_pair} with --nsp: it pairs rows that follow each "
                "other itself; leave one of the two out"
            )

    @property
    def metrics(self) -> Sequence[str]:
        """`accuracy` and `perplexity` of the masked tokens; `nsp_accuracy`."""
        return (ACCURACY, PERPLEXITY, *((SENTENCE_ACCURACY,) if self.nsp else ()))

    @property
    def headline(self) -> str:
        """The loss."""
        return LOSS

    @property
    def shown_metric(self) -> str:
        """A figure that says more than the loss."""
        return ACCURACY if self.selection_metric == LOSS else self.selection_metric

    @property
    def greater_is_better(self) -> bool:
        """Whether a larger `selection_metric` is a better one."""
        return self.selection_metric not in (LOSS, PERPLEXITY)
