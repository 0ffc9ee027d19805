"""Span question answering: the part of a context that answers a question (SQuAD)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from sparse_serve.rows import QuestionRows, RowFormat, TextData
from sparse_serve.tasks.encoding import (
    Columns,
    EncodedText,
    Pairs,
    Truncation,
    Window,
    encode_windows,
    text_column,
)
from sparse_serve.tasks.task import OutputTensor, Task, require_boolean, require_integer

if TYPE_CHECKING:
    from tokenizers import Tokenizer


CONTEXT_SEQUENCE = 1
"""Of a pair of texts, the context is the second."""


@dataclass(frozen=True)
class QuestionAnswering(Task):
    """Where in a context, the second text, the answer to a question stands.

    A context of any length is read in windows. The answer is the best span of all windows by the sum of its
    start's and its end's logit, the first of equal ones; both are in the context, in order, and with what is
    between them at most `max_answer_tokens` tokens. Its score is the product of their probabilities, each a
    softmax over the window's tokens of the context.

    With `no_answer` the first token of each window, [CLS], stands for none: the least sum of its two logits
    is that of no answer, which wins if it is above the best span's. Its probabilities are over [CLS] and the
    tokens of the context in that window.

    Attributes:
        max_answer_tokens: the longest answer.
        stride: by how many tokens windows overlap; half of the room for the context where that is less.
        no_answer: whether a question may have none (SQuAD 2.0).
    """

    type: ClassVar[str] = "question_answering"
    option: ClassVar[str] = "question-answering"
    by_token: ClassVar[bool] = True
    in_windows: ClassVar[bool] = True
    text_pair = "required"
    rows: ClassVar[RowFormat] = QuestionRows()
    metrics: ClassVar[tuple[str, ...]] = ("f1", "exact_match")

    max_answer_tokens: int = 30
    stride: int = 128
    no_answer: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labels:
            raise ValueError(f"{self.type} has no labels, got {list(self.labels)}")
        require_integer(self, "max_answer_tokens", self.max_answer_tokens, 1)
        require_integer(self, "stride", self.stride, 0)
        require_boolean(self, "no_answer", self.no_answer)

    @classmethod
    def of(cls, data: TextData) -> Self:
        """Return the task that a training file poses: with `no_answer` where a question of it has none."""
        return cls(no_answer=any(not row.label for row in data.rows))

    @property
    def width(self) -> int:
        """A start's and an end's logit."""
        return 2

    @property
    def outputs(self) -> tuple[OutputTensor, ...]:
        """The `answer`, its `start` and `end` in code points of the context, its `score`."""
        return (
            OutputTensor("answer", "BYTES", (1,)),
            OutputTensor("start", "INT32", (1,)),
            OutputTensor("end", "INT32", (1,)),
            OutputTensor("score", "FP32", (1,)),
        )

    def encode(
        self,
        tokenizer: "Tokenizer",
        texts: Sequence[str],
        pairs: Pairs,
        max_length: int,
        truncation: Truncation = "right",
    ) -> list[EncodedText]:
        """Return questions with their contexts, as many windows as each takes; see `encode_windows`.

        Only a question can be cut, from the right.

        Raises:
            TaskError: a question has no context.
        """
        self.check_pairs(pairs)
        contexts = [pair for pair in pairs or () if pair is not None]
        return encode_windows(tokenizer, texts, contexts, max_length, self.stride)

    def answer(self, encoded: Sequence[EncodedText], output: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Read start and end logits `(W, L, 2)`; without an answer it is empty, from −1 to −1.

        A context of no tokens has no answer, whose score is 0.
        """
        windows = _Windows.read([window for text in encoded for window in text.windows], output)
        spans = windows.best_spans(self.max_answer_tokens)
        answers, first = [], 0
        for text in encoded:
            own = slice(first, first + len(text.windows))
            first = own.stop
            answers.append(self._best(text, windows, spans, own))
        texts, starts, ends, scores = zip(*answers, strict=True)
        return {
            "answer": text_column(texts),
            "start": np.array(starts, dtype=np.int32)[:, None],
            "end": np.array(ends, dtype=np.int32)[:, None],
            "score": np.array(scores, dtype=np.float32)[:, None],
        }

    def _best(
        self, text: EncodedText, windows: "_Windows", spans: "_Spans", own: slice
    ) -> tuple[str, int, int, float]:
        """Return the answer to the question whose windows are `own`: text, start, end, score."""
        best = own.start + int(spans.sums[own].argmax())
        if not np.isfinite(spans.sums[best]):
            return "", -1, -1, 0.0
        if self.no_answer:
            sums = windows.logits[own, 0].sum(axis=1)
            null = own.start + int(sums.argmin())
            if sums.min() > spans.sums[best]:
                return "", -1, -1, windows.score(null, 0, 0, with_first=True)
        first, last = int(spans.first[best]), int(spans.last[best])
        offsets = windows.encodings[best].offsets
        start, end = offsets[first][0], offsets[last][1]
        return text.text[start:end], start, end, windows.score(best, first, last)

    def evaluate(self, columns: Columns, targets: npt.NDArray[Any]) -> dict[str, float]:
        """Return F1 and exact match in [0, 1] as the official SQuAD scripts count them."""
        from sparse_serve.metrics import squad_metrics  # noqa: PLC0415

        found = [answer.decode() for answer in columns["answer"][:, 0]]
        return squad_metrics(found, [[span.text for span in spans] for spans in targets])


@dataclass(frozen=True)
class _Spans:
    """The best span of each of W windows: its tokens, and the sum of its logits, −inf where there is none."""

    first: npt.NDArray[np.intp]
    last: npt.NDArray[np.intp]
    sums: npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Windows:
    """W windows: encodings, `logits` `(W, L, 2)` float64, and which tokens `(W, L)` are the context's."""

    encodings: Sequence[Window]
    logits: npt.NDArray[np.float64]
    in_context: npt.NDArray[np.bool_]

    @classmethod
    def read(cls, encodings: Sequence[Window], output: npt.NDArray[Any]) -> Self:
        in_context = np.zeros(output.shape[:2], dtype=np.bool_)
        for row, encoding in enumerate(encodings):
            sequences = encoding.sequence_ids
            in_context[row, : len(sequences)] = [each == CONTEXT_SEQUENCE for each in sequences]
        # Sums of two float32 are exact in float64: ties are those of the model, not of rounding.
        return cls(encodings, output.astype(np.float64), in_context)

    def best_spans(self, longest: int) -> _Spans:
        masked = np.where(self.in_context[:, :, None], self.logits, -np.inf)
        starts, ends = masked[:, :, 0], masked[:, :, 1]
        length = starts.shape[1]
        sums = np.full_like(starts, -np.inf)
        extra = np.zeros(starts.shape, dtype=np.intp)
        for more in range(min(longest, length)):
            longer = starts[:, : length - more] + ends[:, more:]
            is_better = longer > sums[:, : length - more]
            np.copyto(sums[:, : length - more], longer, where=is_better)
            extra[:, : length - more][is_better] = more
        first = sums.argmax(axis=1)
        rows = np.arange(len(first))
        return _Spans(first, first + extra[rows, first], sums[rows, first])

    def score(self, row: int, first: int, last: int, *, with_first: bool = False) -> float:
        """Return the product of two softmax probabilities over a window's context, and its first token."""
        tokens = self.in_context[row].copy()
        tokens[0] |= with_first
        logits = self.logits[row]
        highest = logits[tokens].max(axis=0)
        exponentials = np.exp(logits - highest)
        totals = exponentials[tokens].sum(axis=0)
        return float(exponentials[first, 0] / totals[0] * exponentials[last, 1] / totals[1])
