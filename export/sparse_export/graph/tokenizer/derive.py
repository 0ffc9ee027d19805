"""From a `tokenizers.Tokenizer` to the tables of its node."""

import json
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from sparse_export.encoders.tokenizer import shared_id
from sparse_export.graph.tokenizer.byte_level_bpe import byte_level_bpe
from sparse_export.graph.tokenizer.offsets import offset_attributes
from sparse_export.graph.tokenizer.tables import Spec, Table, TokenizerTables, unsupported
from sparse_export.graph.tokenizer.template import templates
from sparse_export.graph.tokenizer.wordpiece import wordpiece
from sparse_serve.errors import UnsupportedTokenizerError

_BERT = ("BertNormalizer", "BertPreTokenizer", "WordPiece")
_ROBERTA = (None, "ByteLevel", "BPE")


def derive_tables(tokenizer: Tokenizer) -> TokenizerTables:
    """Ask a tokenizer all that it does, so that an op can do the same.

    Its padding and truncation do not count; it is not changed.

    Raises:
        UnsupportedTokenizerError: it does something that the ops do not; the message names it.
    """
    if tokenizer.encode_special_tokens:
        raise unsupported("it reads special tokens in a text as text", "encode_special_tokens false")
    if shared := shared_id(tokenizer.get_vocab()):
        raise unsupported(f"its tokens {shared}", "an id for each")
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.no_padding()
    tokenizer.no_truncation()
    spec = json.loads(tokenizer.to_str())
    added = spec["added_tokens"]
    kinds = tuple((spec[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model"))
    if kinds == _BERT:
        op = "WordPieceTokenize"
        _check_added(added, normalizes=True)
        tables, attributes = wordpiece(tokenizer, spec["model"])
    elif kinds == _ROBERTA:
        op = "ByteLevelBpeTokenize"
        _check_added(added, normalizes=False)
        tables, attributes = byte_level_bpe(tokenizer, spec["model"], spec["pre_tokenizer"])
    else:
        raise unsupported(
            f"normalizer, pre-tokenizer and model are {_named(kinds)}",
            f"{_named(_BERT)}, or {_named(_ROBERTA)}",
        )
    info = [(token["id"], token["lstrip"] + 2 * token["rstrip"]) for token in added]
    added_tables: dict[str, Table] = {
        "added": [token["content"] for token in added],
        "added_info": np.array(info, np.int32).reshape(-1, 2),
    }
    single, pair = templates(tokenizer, _word(tokenizer))
    return TokenizerTables(
        op,
        tables | added_tables,
        attributes | {"single_template": single, "pair_template": pair},
        tokenizer.num_special_tokens_to_add(True),
        _offsets(tokenizer, spec),
    )


def _offsets(tokenizer: Tokenizer, spec: Spec) -> dict[str, Any] | UnsupportedTokenizerError:
    try:
        return offset_attributes(tokenizer, spec)
    except UnsupportedTokenizerError as refusal:  # of whom it concerns: who asks for offsets
        return refusal


def _named(kinds: tuple[str | None, ...]) -> str:
    return ", ".join(map(str, kinds))


def _word(tokenizer: Tokenizer) -> str:
    """Return a text that has a token."""
    tokens = sorted(tokenizer.get_vocab(with_added_tokens=False))
    for text in ("a", *tokens):
        if tokenizer.encode(text, add_special_tokens=False).ids:
            return text
    raise unsupported("it has no token for any text", "a vocabulary of tokens")


def _check_added(added: list[Spec], *, normalizes: bool) -> None:
    """Refuse added tokens that are not found by their letters alone, in the text as it came."""
    for token in added:
        content = token["content"]
        if token["single_word"]:
            raise unsupported(f"the added token {content!r} matches whole words only", "single_word false")
        if token["normalized"] and normalizes:
            raise unsupported(f"the added token {content!r} matches normalized text", "normalized false")
        if content != content.strip():
            raise unsupported(f"the added token {content!r} has white space at an end", "tokens without")
    # The library looks for those that match normalized text among what the others leave.
    for first in (token["content"] for token in added if token["normalized"]):
        for second in (token["content"] for token in added if not token["normalized"]):
            if _overlap(first, second):
                raise unsupported(
                    f"the added tokens {first!r} (normalized) and {second!r} (not) overlap",
                    "the same of both, or no overlap",
                )


def _overlap(first: str, second: str) -> bool:
    """Whether a text can have both tokens at characters that both need."""
    if first in second or second in first:
        return True
    shorter = min(len(first), len(second))
    return any(first.endswith(second[:size]) or second.endswith(first[:size]) for size in range(1, shorter))
