"""Projected attention layers: beside each layer's attention a small one for each task (PAL, section 4.1).

    h' = LN(h + SA(h) + TS(h)),    TS(h) = V^D · MHA(V^E h)

V^E projects the hidden states of width M to d_s, MHA is multi-head softmax attention of that width without a
projection of its own behind it, V^D projects back. Its weights are a task's own: per layer, or with the
projections shared by all layers, as Stickland and Murray (2019) have them.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from sparse_export.encoders.extension import Extension, ExtensionModule, ResidualModule, add_residual
from sparse_export.encoders.families import layers_of
from sparse_export.encoders.routing import Part, Routing
from sparse_serve.errors import OptionError

if TYPE_CHECKING:
    from sparse_export.encoders.spec import ModelSpec

EXTENSION = "projected_attention"

# The papers' sizes: 12 heads of 17 beside an encoder of width 768.
_PAPERS_WIDTH, _PAPERS_HEADS, _HEAD_SIZE = 768, 12, 17


@dataclass(frozen=True)
class ProjectedAttentionSettings:
    """The sizes of the adapters, the same for every task.

    Attributes:
        size: d_s, the width of the small attention.
        heads: its heads, of which `size` is a multiple.
        share_projections: whether all layers have one V^E and one V^D.

    Raises:
        OptionError: a size is no whole number above 0, or `size` no multiple of `heads`.
    """

    size: int
    heads: int
    share_projections: bool = False

    def __post_init__(self) -> None:
        for name in ("size", "heads"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(f"--adapter-{name} is {value!r}; it must be a whole number above 0")
        if not isinstance(self.share_projections, bool):
            raise OptionError(f"share_projections is {self.share_projections!r}; it must be true or false")
        if self.size % self.heads:
            raise OptionError(
                f"--adapter-size is {self.size} and --adapter-heads {self.heads}; the size must be a "
                f"multiple of the heads, such as {self.heads * max(1, round(self.size / self.heads))}"
            )

    @classmethod
    def scaled(
        cls,
        config: PreTrainedConfig,
        size: int | None = None,
        heads: int | None = None,
        *,
        share_projections: bool = False,
    ) -> Self:
        """Return the papers' sizes in proportion to an encoder's width, where none are given.

        That is d_s = 204 in 12 heads beside a width of 768, and 102 in 6 beside 384. A `size` that so many
        heads do not divide has the divisor nearest to them, the larger of two: 200 beside 768 has 10.
        """
        if heads is None:
            heads = max(1, round(_PAPERS_HEADS * config.hidden_size / _PAPERS_WIDTH))
            if isinstance(size, int) and size >= 1:
                heads = _nearest_divisor(size, heads)
        return cls(_HEAD_SIZE * heads if size is None else size, heads, share_projections)

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> Self:
        """Read what `to_json` has written.

        Raises:
            OptionError: it is malformed.
        """
        try:
            return cls(**stored)
        except TypeError as error:
            raise OptionError(f"{EXTENSION}: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """Return it as a model's spec stores it."""
        return asdict(self)


def _nearest_divisor(size: int, wanted: int) -> int:
    divisors = [each for each in range(1, 2 * wanted) if size % each == 0]  # 1 is nearer than any above
    return min(divisors, key=lambda each: (abs(each - wanted), -each))


class Projections(ExtensionModule):
    """V^E and V^D of one task, without biases."""

    parameter_group: ClassVar[str] = "projected attention"

    def __init__(self, width: int, size: int, std: float) -> None:
        super().__init__()
        self.expand = nn.Linear(width, size, bias=False)
        self.contract = nn.Linear(size, width, bias=False)
        self._std = std
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Begin with V^D at zero: a task's layers add nothing until they have learned something."""
        nn.init.normal_(self.expand.weight, std=self._std)
        nn.init.zeros_(self.contract.weight)


class TaskAttention(ExtensionModule):
    """The small attention of one task in one layer: queries, keys and values of width d_s."""

    parameter_group: ClassVar[str] = "projected attention"

    def __init__(self, size: int, heads: int, std: float, dropout: float) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))
        self.dropout = nn.Dropout(dropout)
        self._heads, self._std = heads, std
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Begin as an encoder's own attention does."""
        for linear in (self.query, self.key, self.value):
            nn.init.normal_(linear.weight, std=self._std)
            nn.init.zeros_(linear.bias)

    def weights(self, projected: Tensor) -> Tensor:
        """Return the attention weights `(B, H, L, L)` of rows without padding, `(B, L, d_s)`."""
        split = (*projected.shape[:2], self._heads, -1)
        query, key = (each(projected).view(split).transpose(1, 2) for each in (self.query, self.key))
        scores: Tensor = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
        return scores.softmax(-1)

    def forward(self, projected: Tensor, part: Part, queries: Tensor | None = None) -> Tensor:
        """Attend among the tokens of each row of a part, `(…, d_s)` to `(…, d_s)`; from `queries` if any."""
        dropout = self.dropout.p if self.training else 0.0
        query = self.query(projected if queries is None else queries)
        return part.attend(query, self.key(projected), self.value(projected), self._heads, dropout)


class ProjectedAttention(ResidualModule):
    """TS(h) of one layer: each task's on the rows that are its own."""

    follows_routing: ClassVar[bool] = True

    def __init__(
        self, attention: Mapping[str, TaskAttention], projections: Mapping[str, Projections], *, own: bool
    ) -> None:
        """Take each task's weights; `own` are projections of this layer, others are registered elsewhere."""
        super().__init__()
        self.attention = nn.ModuleDict(attention)
        if own:
            self.projections: Any = nn.ModuleDict(projections)
        else:
            self.projections = dict(projections)

    def of_task(self, task: str) -> tuple[nn.Module, ...]:
        """Return what one task has here."""
        return self.attention[task], self.projections[task]

    def forward(self, hidden: Tensor, routing: Routing | None = None) -> Tensor:
        """Return TS(h), of the shape of `hidden`, or of the routing's queries alone."""
        if routing is None:
            raise ValueError("a model with projected attention has to be told which task its rows are of")
        outputs = []
        for task, part in routing.parts.items():
            projections = self.projections[task]
            queries = part.take_queries(hidden)
            if queries is not None:
                queries = projections.expand(queries)
            attended = self.attention[task](projections.expand(part.take(hidden)), part, queries)
            outputs.append(projections.contract(attended))
        return routing.join(outputs)


class ProjectedAttentionExtension(Extension):
    """`….layer.3.projected_attention` in every layer, with shared projections beside the layers."""

    settings: ClassVar[str | None] = EXTENSION

    def __init__(self, settings: ProjectedAttentionSettings, tasks: tuple[str, ...]) -> None:
        self._settings = settings
        self._tasks = tasks

    @classmethod
    def of(cls, spec: "ModelSpec") -> Self | None:
        """Return it where the spec has its settings."""
        stored = spec.extensions.get(EXTENSION)
        return None if stored is None else cls(ProjectedAttentionSettings.of_json(stored), tuple(spec.tasks))

    def attach(self, model: PreTrainedModel) -> None:
        """Give every layer an attention of each task, and each task its projections."""
        shared = self._projections(model.config) if self._settings.share_projections else None
        for index in range(len(layers_of(model))):
            module = ProjectedAttention(
                {task: self._attention(model.config) for task in self._tasks},
                self._projections(model.config) if shared is None else shared,
                own=shared is None,
            )
            add_residual(model, index, EXTENSION, module)
        if shared is not None:
            model.base_model.shared_projections = nn.ModuleDict(shared)

    def _projections(self, config: PreTrainedConfig) -> dict[str, Projections]:
        std = config.initializer_range
        return {task: Projections(config.hidden_size, self._settings.size, std) for task in self._tasks}

    def _attention(self, config: PreTrainedConfig) -> TaskAttention:
        name = "attention_dropout" if config.model_type == "distilbert" else "attention_probs_dropout_prob"
        dropout = float(getattr(config, name))
        return TaskAttention(self._settings.size, self._settings.heads, config.initializer_range, dropout)
