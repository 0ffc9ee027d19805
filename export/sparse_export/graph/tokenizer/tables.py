"""What a tokenizer node is made of."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sparse_serve.errors import UnsupportedTokenizerError

Spec = dict[str, Any]
"""A `tokenizer.json`, or a part of it."""

Table = Sequence[str] | npt.NDArray[np.int32] | npt.NDArray[np.uint8]


@dataclass(frozen=True)
class TokenizerTables:
    """One tokenizer, for texts of any length.

    Attributes:
        op: "WordPieceTokenize" or "ByteLevelBpeTokenize".
        tables: the constant inputs of the node by name, in order.
        attributes: of the node, but for `max_length`.
        special_tokens: how many special tokens a pair has: the least `max_length`.
        offsets: attributes of a node that answers offsets too, or why none can.
    """

    op: str
    tables: dict[str, Table]
    attributes: dict[str, Any]
    special_tokens: int
    offsets: dict[str, Any] | UnsupportedTokenizerError = field(default_factory=dict)


def unsupported(found: str, accepted: str) -> UnsupportedTokenizerError:
    """Return the error that says what the ops cannot reproduce."""
    return UnsupportedTokenizerError(
        f"the graph cannot tokenize as this tokenizer does: {found}; accepted: {accepted}; leave it to the "
        "server-side tokenizer"
    )


def in_order_of_ids(vocabulary: dict[str, int]) -> list[str]:
    """Return the tokens by their ids; an id without a token is empty."""
    tokens = [""] * (max(vocabulary.values(), default=-1) + 1)
    for token, token_id in vocabulary.items():
        tokens[token_id] = token
    return tokens
