"""A text as a model reads it: its tokens, under the names a reader knows them by."""

from dataclasses import dataclass

import torch
from tokenizers.models import BPE
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sparse_export.encoders.families import input_names
from sparse_export.encoders.spec import ModelSpec
from sparse_serve.tasks import EncodedText
from sparse_serve.tasks.encoding import Window, encode_cut


@dataclass(frozen=True)
class TokenizedText:
    """One text, or pair of texts, as it enters a model.

    Attributes:
        text: as it was given.
        text_pair: the second text; empty for a single text.
        tokens: what is written on the axes of a map, one per token.
        truncated: whether the text went on after its last token.
        inputs: the model's inputs, `(1, L)` int64 each.
        encoded: the same for the model's task, which reads offsets from it.
    """

    text: str
    text_pair: str
    tokens: tuple[str, ...]
    truncated: bool
    inputs: dict[str, Tensor]
    encoded: EncodedText


def tokenize(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, text: str, text_pair: str, max_length: int
) -> TokenizedText:
    """Tokenise a text and, where not empty, its second text, cut to `max_length` tokens as the task cuts
    them.

    Of a text that the task reads in several windows it is the first.
    """
    task = ModelSpec.of(model.config).task
    (encoded,) = task.encode(tokenizer.backend_tokenizer, [text], [text_pair or None], max_length)
    window = encoded.windows[0]
    if len(encoded.windows) == 1:
        # The task asked for numbers alone.
        (named,) = encode_cut(
            tokenizer.backend_tokenizer, [text], [text_pair or None], max_length, offsets=True
        )
        (window,) = named.windows
    arrays = {
        "input_ids": window.ids,
        "attention_mask": [1] * len(window),
        "token_type_ids": window.type_ids,
    }
    return TokenizedText(
        text=text,
        text_pair=text_pair,
        tokens=_names(tokenizer, window, (text, text_pair)),
        truncated=encoded.truncated or len(encoded.windows) > 1,
        inputs={name: torch.tensor([arrays[name]]) for name in input_names(model.config)},
        encoded=EncodedText(encoded.text, (window,), encoded.truncated),
    )


def _names(tokenizer: PreTrainedTokenizerFast, encoding: Window, texts: tuple[str, str]) -> tuple[str, ...]:
    """Name tokens; WordPiece's and SentencePiece's can be read, those made of bytes become their text."""
    if not isinstance(tokenizer.backend_tokenizer.model, BPE):
        return tuple(token.removeprefix("▁") or token for token in encoding.tokens)
    spans = zip(encoding.tokens, encoding.sequence_ids, encoding.offsets, strict=True)
    return tuple(
        token if sequence is None else texts[sequence][start:end].strip() or token
        for token, sequence, (start, end) in spans
    )
