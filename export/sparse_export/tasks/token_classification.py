"""Token classification: a logit of every tag for every token."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import (
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    DataCollatorForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from sparse_export.encoders.packing import Packing
from sparse_export.tasks.head import Models
from sparse_export.tasks.labels import labelled_task, write_labels
from sparse_export.tasks.trained import IGNORED, TrainedHead
from sparse_serve.data import Row, TextData
from sparse_serve.errors import DataError
from sparse_serve.records import place
from sparse_serve.rows import Tag
from sparse_serve.tags import split_tag
from sparse_serve.tasks import Columns, Task
from sparse_serve.tasks.encoding import EncodedText
from sparse_serve.tasks.labels import label_index
from sparse_serve.tasks.token_classification import TokenClassification, words_of


class TokenClassificationHead(TrainedHead):
    """Reads every token."""

    models: ClassVar[Models] = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
    architecture: ClassVar[str] = "ForTokenClassification"
    can_smooth: ClassVar[bool] = True

    @classmethod
    def read_own(cls, config: PreTrainedConfig) -> Task | None:
        """Return the task, with the config's labels as tags."""
        return labelled_task(TokenClassification, config)

    def configure(self, config: PreTrainedConfig) -> None:
        """Write the tags."""
        write_labels(config, self.task.labels)
        config.problem_type = None

    def answer_packed(self, model: PreTrainedModel, states: Sequence[Tensor], packing: Packing) -> Tensor:
        """Return logits `(B, L, tags)`."""
        return packing.unpack(model.classifier(states[-1]).float())

    def answer_padded(self, outputs: Any, attention_mask: Tensor) -> Tensor:
        """Return logits `(B, L, tags)`."""
        return torch.where((attention_mask != 0)[:, :, None], outputs.logits.float(), 0)

    def same_answers(
        self, texts: Sequence[EncodedText], ours: Columns, theirs: Columns
    ) -> npt.NDArray[np.bool_]:
        """Tell which of N texts have the same entities in the same places, whatever their scores."""
        pairs = zip(ours["entities"][:, 0], theirs["entities"][:, 0], strict=True)
        return np.array([_places(mine) == _places(other) for mine, other in pairs])

    def window_targets(
        self, data: TextData, encoded: Sequence[EncodedText]
    ) -> list[Sequence[Mapping[str, Any]]]:
        """Return the `labels` of each row's tokens: the tag of a word at its first piece, elsewhere none.

        Words are the pre-tokenizer's. Where a token of the data is several of them, those after the first go
        on with its entity.
        """
        index = label_index(self.task.labels, data)
        return [
            [{"labels": self._labels(data, row, text, index)}]
            for row, text in zip(data.rows, encoded, strict=True)
        ]

    def collator(self, tokenizer: PreTrainedTokenizerFast) -> Any:
        """Return what makes a batch of rows, whose labels are filled up with what is ignored."""
        return DataCollatorForTokenClassification(tokenizer, label_pad_token_id=IGNORED)

    def items(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Count the words."""
        return (inputs["labels"] != IGNORED).sum()

    def loss(self, answer: Tensor, inputs: Mapping[str, Tensor], smoothing: float = 0.0) -> Tensor:
        """Return the sum of the words' cross-entropies, of logits `(B, L, tags)` and `labels` `(B, L)`."""
        told = inputs["labels"] != IGNORED
        return F.cross_entropy(
            answer[told], inputs["labels"][told], reduction="sum", label_smoothing=smoothing
        )

    def _labels(self, data: TextData, row: Row, text: EncodedText, index: Mapping[str, int]) -> list[int]:
        window = text.windows[0]
        tags = [each for each in row.label if isinstance(each, Tag)] if isinstance(row.label, tuple) else []
        pieces: dict[Tag, list[int]] = {}
        for word in words_of(window):
            content = text.text[word.start : word.end]
            start = word.start + len(content) - len(content.lstrip())
            own = [tag for tag in tags if tag.start < word.end and tag.end > start]
            if len(own) > 1:
                raise DataError(
                    f"{place(data.source, row.line)}: the tokenizer reads {content.strip()!r:.80} as one "
                    f"word, but it is {len(own)} tokens with a tag each; use an encoder whose tokenizer "
                    "splits at blanks"
                )
            if own:
                pieces.setdefault(own[0], []).append(word.token)
        labels = [IGNORED] * len(window)
        for tag, tokens in pieces.items():
            labels[tokens[0]] = index[tag.name]
            known = self.task.labels[index[tag.name]]
            for token, name in zip(tokens, tags_of_words(known, len(tokens)), strict=True):
                if name in self.task.labels:
                    labels[token] = self.task.labels.index(name)
        return labels


def tags_of_words(tag: str, count: int) -> list[str]:
    """Return the tags of the words that a token of the data consists of: its entity goes on to the last."""
    if count == 1:
        return [tag]
    prefix, _ = split_tag(tag)
    prefixes = {"B": ("B", "I", "I"), "S": ("B", "I", "E"), "E": ("I", "I", "E")}
    if prefix not in prefixes:
        return [tag] * count  # outside, inside, or a type without a prefix
    first, middle, last = prefixes[prefix]
    return [f"{each}{tag[1:]}" for each in (first, *[middle] * (count - 2), last)]


def _places(entities: bytes) -> list[tuple[str, int, int]]:
    return [(each["label"], each["start"], each["end"]) for each in json.loads(entities)]


HEAD = TokenClassificationHead
