"""What a model attends to, and with which weights: a normalizer, and the pairs of a pattern or all."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np

from sparse_export.attention.patterns import Pattern
from sparse_export.attention.sparsegen import check_lambd
from sparse_serve.errors import CheckpointError, OptionError

Normalizer = Literal["softmax", "sparsegen"]

CONFIG_KEY = "sparse_serve"
"""The entry of `config.json` that is ours; what lies in it besides the attention is `encoders.spec`'s."""

_EARLIER_KEY = "sparse_attention"


@dataclass(frozen=True)
class AttentionSpec:
    """The attention of every layer.

    Attributes:
        lambd: λ of sparsegen-lin, finite and below 1; None for softmax.
        pattern: which pairs may attend; None for all.
    """

    lambd: float | None = None
    pattern: Pattern | None = None

    def __post_init__(self) -> None:
        if self.lambd is None:
            return
        if isinstance(self.lambd, bool) or not isinstance(self.lambd, int | float):
            raise OptionError(f"lambda must be a number below 1, got {self.lambd!r}")
        try:
            # ONNX attributes are float32: 0.999999999 would be 1 there.
            with np.errstate(over="ignore"):
                check_lambd(float(np.float32(self.lambd)))
        except ValueError as error:
            raise OptionError(str(error)) from None

    @classmethod
    def parse(cls, text: str, lambd: float | None, seed: int = 0) -> Self:
        """Read an attention by its name: softmax, sparsegen, or a pattern's (see `Pattern.parse`).

        Args:
            text: the name.
            lambd: λ; with a pattern it makes sparsegen-lin the normalizer over the allowed keys.
            seed: of a pattern's random keys.

        Raises:
            OptionError: an unknown name, a contradiction, or a λ that is missing, out of range or not taken.
        """
        text = text.strip().lower()
        if text == "softmax":
            if lambd is not None:
                raise OptionError(
                    f"softmax attention takes no lambda, got {lambd}: leave it out, or use sparsegen"
                )
            return cls()
        if text == "sparsegen":
            if lambd is None:
                raise OptionError("sparsegen attention needs a lambda below 1, for example -4")
            return cls(lambd)
        if normalizer := {"softmax", "sparsegen"}.intersection(text.split("+")):
            raise OptionError(
                f"attention {text!r}: {min(normalizer)} is not joined to a pattern; name the pattern alone, "
                "and for sparsegen's weights give λ by --lambda: --attention local2 --lambda -4"
            )
        return cls(lambd, Pattern.parse(text, seed))

    @property
    def normalizer(self) -> Normalizer:
        """What makes weights of scores."""
        return "softmax" if self.lambd is None else "sparsegen"

    @property
    def name(self) -> str:
        """What `parse` reads it by, λ aside."""
        return self.normalizer if self.pattern is None else self.pattern.name

    @property
    def is_dense(self) -> bool:
        """Whether every token attends to all others with a weight above zero: plain softmax."""
        return self == AttentionSpec()

    @property
    def learns(self) -> bool:
        """Whether a part of its pattern is learned."""
        return self.pattern is not None and self.pattern.learns

    @property
    def implementation(self) -> str:
        """The name under which Transformers knows this attention (see `implementations`)."""
        if self.pattern is not None:
            return "axis"
        return "sdpa" if self.lambd is None else "sparsegen"

    def to_json(self) -> dict[str, Any]:
        """Return it as `of_json` reads it."""
        pattern = None if self.pattern is None else asdict(self.pattern)
        return {"normalizer": self.normalizer, "lambd": self.lambd, "pattern": pattern}

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> Self:
        """Read what `to_json` returned, or what versions before it stored, with a `kind`.

        Raises:
            OptionError: the attention contradicts itself, or a value is out of its range.
            TypeError: an entry is unknown, or of another type.
        """
        entries = dict(stored)
        lambd, pattern = entries.pop("lambd", None), entries.pop("pattern", None)
        kind = entries.pop("kind", None)
        normalizer = entries.pop("normalizer", "softmax" if lambd is None else "sparsegen")
        if entries:
            raise TypeError(f"unknown entries {', '.join(sorted(entries))}")
        spec = cls(lambd, None if pattern is None else Pattern(**pattern))
        if kind is not None and kind != ("axis" if pattern is not None else spec.normalizer):
            raise OptionError(f"attention of kind {kind!r} cannot have lambda {lambd} and pattern {pattern}")
        if normalizer != spec.normalizer:
            raise OptionError(f"normalizer {normalizer!r} cannot have lambda {lambd}")
        return spec


def attention_of(config: Any) -> AttentionSpec:
    """Return the attention that a Transformers config records; softmax over all keys where it records none.

    Raises:
        CheckpointError: the entry is malformed.
    """
    entry = getattr(config, CONFIG_KEY, None)
    key, stored = f"{CONFIG_KEY}.attention", None
    if entry is None:
        key, stored = _EARLIER_KEY, getattr(config, _EARLIER_KEY, None)
    elif isinstance(entry, Mapping):
        stored = entry.get("attention")
    if stored is None:
        return AttentionSpec()
    try:
        return AttentionSpec.of_json(stored)
    except (ArithmeticError, AttributeError, TypeError, ValueError, OptionError) as error:
        raise CheckpointError(f"config.json: {key} is {stored!r:.200}: {error}") from None
