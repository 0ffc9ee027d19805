"""Token classification: the entities in a text, read from a tag for each of its words (CoNLL)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from sparse_serve.errors import DataError
from sparse_serve.rows import RowFormat, Tag, TaggedRows, TextData
from sparse_serve.tags import OUTSIDE, chunks, continued, split_tag
from sparse_serve.tasks.encoding import (
    Columns,
    EncodedText,
    Pairs,
    Truncation,
    Window,
    encode_cut,
    softmax,
    text_column,
)
from sparse_serve.tasks.labels import label_index, sorted_labels
from sparse_serve.tasks.task import OutputTensor, Task

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class TokenClassification(Task):
    """Which words of a text are entities, of which type.

    Words are the pre-tokenizer's; a word has the tag with the largest logit at its first piece. Tags are read
    as `sparse_serve.tags` says. An entity reaches from its first word's start to its last word's end, and its
    score is the mean of its words' probabilities of the tags they have.
    """

    type: ClassVar[str] = "token_classification"
    option: ClassVar[str] = "token-classification"
    by_token: ClassVar[bool] = True
    text_pair = "refused"
    rows: ClassVar[RowFormat] = TaggedRows()
    metrics: ClassVar[tuple[str, ...]] = ("f1", "precision", "recall")
    fewest_labels: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for label in self.labels:
            try:
                split_tag(label)
            except ValueError as error:
                raise ValueError(f"tag {label!r:.80} {error}") from None

    @classmethod
    def of(cls, data: TextData) -> Self:
        """Return the task with the tags of a training file: O first, the others in order.

        With each tag are those by which its entity goes on: the tokenizer may split what is one token there.
        """
        tags = {name for name in data.labels if name != OUTSIDE}
        if not tags:
            raise DataError(f"data file {data.source} tags no word with anything but {OUTSIDE}")
        return cls((OUTSIDE, *sorted_labels(each for tag in tags for each in continued(tag))))

    @property
    def outputs(self) -> tuple[OutputTensor, ...]:
        """The `entities` of a text, as JSON."""
        return (OutputTensor("entities", "BYTES", (1,)),)

    def encode(
        self,
        tokenizer: "Tokenizer",
        texts: Sequence[str],
        pairs: Pairs,
        max_length: int,
        truncation: Truncation = "right",
    ) -> list[EncodedText]:
        """Return texts in one row each, cut from the left, or the right.

        Raises:
            TaskError: there is a second text.
        """
        self.check_pairs(pairs)
        return encode_cut(tokenizer, texts, None, max_length, truncation, offsets=True)

    def answer(self, encoded: Sequence[EncodedText], output: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Read logits `(N, L, C)` as JSON arrays of `{"label", "start", "end", "text", "score"}`, one a text.

        Offsets are code points of the text as sent.
        """
        rows = [self._entities(text, logits) for text, logits in zip(encoded, output, strict=True)]
        return {"entities": text_column([json.dumps(row, ensure_ascii=False) for row in rows])}

    def _entities(self, text: EncodedText, logits: npt.NDArray[Any]) -> list[dict[str, Any]]:
        words = words_of(text.windows[0])
        at_first = logits[[word.token for word in words]]
        chosen = at_first.argmax(axis=1)
        probabilities = softmax(at_first)[np.arange(len(words)), chosen]
        return [
            {
                "label": label,
                "start": words[first].start,
                "end": words[after - 1].end,
                "text": text.text[words[first].start : words[after - 1].end],
                "score": float(probabilities[first:after].mean()),
            }
            for label, first, after in chunks([self.labels[index] for index in chosen])
        ]

    def targets(self, data: TextData) -> npt.NDArray[np.object_]:
        """Return each row's tags, `(N,)` of tuples of `Tag`, by the model's names (`labels.label_index`)."""
        index = label_index(self.labels, data)
        targets = np.empty(len(data.rows), dtype=np.object_)
        for number, row in enumerate(data.rows):
            tags = row.label if isinstance(row.label, tuple) else ()
            targets[number] = tuple(
                tag._replace(name=self.labels[index[tag.name]]) for tag in tags if isinstance(tag, Tag)
            )
        return targets

    def evaluate(self, columns: Columns, targets: npt.NDArray[Any]) -> dict[str, float]:
        """Return micro F1, precision and recall of whole entities: same type, same start, same end."""
        from sparse_serve.metrics import entity_metrics  # noqa: PLC0415

        found = [
            {(each["label"], each["start"], each["end"]) for each in json.loads(row)}
            for row in columns["entities"][:, 0]
        ]
        wanted = [
            {
                (label, tags[first].start, tags[after - 1].end)
                for label, first, after in chunks([tag.name for tag in tags])
            }
            for tags in targets
        ]
        return entity_metrics(found, wanted)


class Word(NamedTuple):
    """A word of the pre-tokenizer: the code points `start` to `end`, and the index of its first piece."""

    token: int
    start: int
    end: int


def words_of(encoding: Window) -> list[Word]:
    """Return the words of a text, as far as the encoding reaches."""
    words: list[Word] = []
    former = None
    for token, (word, (start, end)) in enumerate(zip(encoding.word_ids, encoding.offsets, strict=True)):
        if word is None:
            former = None
        elif word == former:
            words[-1] = words[-1]._replace(end=end)
        else:
            former = word
            words.append(Word(token, start, end))
    return words
