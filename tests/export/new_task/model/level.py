"""How far a text goes, from 0 to 10: what the task adds to an encoder."""

from collections.abc import Mapping
from typing import cast

from sparse_serve.tasks.level import Level  # type: ignore[import-not-found]  # which the test puts there
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedConfig

from sparse_export.tasks.first_token import FirstTokenHead
from sparse_export.tasks.labels import write_labels


class LevelHead(FirstTokenHead):
    """One logit of the first token."""

    kind = Level

    @classmethod
    def read_own(cls, config: PreTrainedConfig) -> None:
        return None

    def configure(self, config: PreTrainedConfig) -> None:
        write_labels(config, ("level",))
        config.problem_type = None

    def loss(self, answer: Tensor, inputs: Mapping[str, Tensor], smoothing: float = 0.0) -> Tensor:
        steps = cast(Level, self.task).steps
        return F.mse_loss(answer[:, 0].sigmoid(), inputs["labels"].to(answer.dtype) / steps)


HEAD = LevelHead
