"""What correctness.py asks: the case tables of the op tests, long problems, and hostile values."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from axis_cases import AXIS_CASES, LOCAL2, AxisCase
from cases import ATTENTION_CASES, AttentionCase, Element
from cross_cases import AskedQueries, asked_queries

ELEMENTS: dict[Element, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
# Cross-attention asks for rows of self-attention's answer.
CROSS = {
    "SparsegenCrossAttention": "SparsegenAttention",
    "SoftmaxCrossAttention": "SoftmaxAttention",
    "AxisCrossAttention": "AxisAttention",
}
PACKED = ("SparsegenAttention", "SoftmaxAttention")

# More keys than a block keeps scores of, few candidates and all of them, by every width of kernels.
LISTED = tuple(
    AttentionCase(f"listed_{length}_{size}_{scores}", (length,), 1, size, scores=scores, seed=length)
    for length in (513, 600)
    for size in (64, 80, 128)
    for scores in ("trained", "equal")
)
# Around the keys that a block keeps, and far above them.
LONG = (
    *(
        AttentionCase(f"long_{length}", (length, length // 3, 1), 2, 64, scores="trained", seed=length)
        for length in (255, 256, 257, 448, 511, 512, 513, 1024, 2048, 4096, 8192)
    ),
    *(
        AttentionCase(f"long_{length}_equal", (length,), 1, 64, scores="equal", seed=length)
        for length in (1024, 4096)
    ),
)
SHORT_TOKENS = 600


class OneSign(AttentionCase):
    """A case whose queries are above 0 and whose keys below: an infinite query scores one infinity alone."""

    def inputs(self) -> tuple[npt.NDArray[np.float32], ...]:
        query, key, value = super().inputs()
        signed = (np.abs(query) + np.float32(0.125), -np.abs(key) - np.float32(0.125), value)
        return tuple(tensor.astype(self.element).astype(np.float32) for tensor in signed)


HOSTILE = tuple(
    OneSign(f"hostile_{length}", (length, 40), 1, 64, seed=length) for length in (100, 200, 300, 550)
)


@dataclass(frozen=True)
class Question:
    """One op on one problem.

    Of a hostile one, the first queries are NaN, −inf and +inf: with keys below 0 they score NaN, +inf, −inf.
    """

    op: str
    case: AttentionCase | AxisCase
    element: Element
    is_hostile: bool = False

    @property
    def attention(self) -> AttentionCase:
        return self.case.attention if isinstance(self.case, AxisCase) else self.case

    @property
    def name(self) -> str:
        sparse = isinstance(self.case, AxisCase) and self.case.normalizer == "sparsegen"
        return f"{self.attention.name}_sparsegen" if sparse else self.attention.name

    @property
    def tokens(self) -> int:
        return sum(self.attention.lengths)

    @property
    def queries(self) -> AskedQueries:
        return asked_queries("some", self.attention.cu_seqlens, seed=self.tokens)

    @property
    def of(self) -> str:
        """The op of self-attention."""
        return CROSS.get(self.op, self.op)


def questions() -> Iterator[Question]:
    """Yield all that is asked."""
    for element in ELEMENTS:
        for case in _typed((*ATTENTION_CASES, *LISTED, *LONG), element):
            for op in PACKED:
                yield from (Question(own, case, element) for own in (op, _crossed(op)))
        for case in _typed(HOSTILE, element):
            yield from (Question(op, case, element, is_hostile=True) for op in PACKED)
        for axis in _both_normalizers(AXIS_CASES, element):
            yield from (Question(own, axis, element) for own in ("AxisAttention", "AxisCrossAttention"))
        hostile = [AxisCase(case, 0.01, 0.05, LOCAL2, 1) for case in HOSTILE[:2]]
        hostile += [AxisCase(case, 1.0) for case in HOSTILE[:2]]
        for axis in _both_normalizers(hostile, element):
            yield Question("AxisAttention", axis, element, is_hostile=True)


def _crossed(op: str) -> str:
    return next(cross for cross, own in CROSS.items() if own == op)


def _typed(cases: Iterable[AttentionCase], element: Element) -> Iterator[AttentionCase]:
    """Yield the cases whose numbers the type has."""
    typed = (replace(case, element=element) for case in cases)
    yield from (case for case in typed if case.fits_element)


def _both_normalizers(cases: Iterable[AxisCase], element: Element) -> Iterator[AxisCase]:
    for axis in cases:
        for attention in _typed([axis.attention], element):
            yield replace(axis, attention=attention)
            yield replace(axis, attention=attention, normalizer="sparsegen")
