"""What a command line asks for, beside what a checkpoint has: one attention."""

from dataclasses import replace

from sparse_export.attention.spec import AttentionSpec
from sparse_serve.errors import OptionError

DEFAULT_LAMBD = -4.0
"""λ of sparsegen attention where a command line leaves it out: the SSAF paper's for SST-2."""


def resolve_attention(
    own: AttentionSpec,
    text: str | None,
    lambd: float | None,
    *,
    seed: int | None = None,
    default: AttentionSpec | None = None,
) -> AttentionSpec:
    """Return the attention that `--attention` and `--lambda` ask for.

    Args:
        own: the checkpoint's, of which everything is kept that is not asked for otherwise.
        text: the value of `--attention` (see `AttentionSpec.parse`); None where it was not given.
        lambd: the value of `--lambda`; None where it was not given, which with a pattern keeps that of the
            checkpoint's pattern, or is softmax where it has none.
        seed: of a pattern's random keys; None keeps the checkpoint's, or takes 0 where it has none.
        default: what takes the place of plain softmax where nothing was asked for, and tells λ where
            sparsegen was asked for without one; None where softmax stays, and λ must be given.

    Raises:
        OptionError: an unknown name, a contradiction, or a λ that is missing, out of range or not taken.
    """
    if text is None:
        kept = default if own.is_dense and default is not None else own
        if lambd is None:
            return kept
        if kept.is_dense:
            raise OptionError(f"--lambda {lambd:g} needs --attention sparsegen, or a pattern")
        return replace(kept, lambd=lambd)
    if lambd is None and default is not None and text.strip().lower() == default.name:
        lambd = default.lambd
    asked = AttentionSpec.parse(text, lambd)
    pattern = asked.pattern
    if pattern is None:
        return asked
    if pattern.random:
        if seed is None:
            seed = own.pattern.seed if own.pattern is not None and own.pattern.random else 0
        pattern = replace(pattern, seed=seed)
    return AttentionSpec(own.lambd if lambd is None and own.pattern is not None else lambd, pattern)
