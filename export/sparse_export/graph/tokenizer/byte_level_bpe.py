"""The tables of RoBERTa's tokenizer: by which class of code points words are split, its tokens and merges."""

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from sparse_export.graph.tokenizer.code_points import (
    COUNT,
    after_each,
    chunks,
    code_points,
    points_of,
    ranges,
)
from sparse_export.graph.tokenizer.tables import Spec, Table, in_order_of_ids, unsupported

_SPACE, _LETTER, _NUMBER, _OTHER = range(4)
# A character that any of its class joins, by class; the class of most code points comes first.
_NEIGHBOURS = {_OTHER: "!", _LETTER: "a", _NUMBER: "1"}

_PLAIN = {
    "dropout": (None, 0.0),
    "unk_token": (None,),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "byte_fallback": (False,),
    "ignore_merges": (False,),
}


def byte_level_bpe(
    tokenizer: Tokenizer, model: Spec, splitter: Spec
) -> tuple[dict[str, Table], dict[str, int | str]]:
    """Return constant inputs and attributes of `ByteLevelBpeTokenize`, without added tokens.

    Raises:
        UnsupportedTokenizerError: the model merges otherwise than by rank alone, or words are split by
            another expression than GPT-2's.
    """
    for option, plain in _PLAIN.items():
        if model.get(option, plain[0]) not in plain:
            raise unsupported(f"its BPE model has {option} {model[option]!r}", f"a model without {option}")
    if not splitter["use_regex"]:
        raise unsupported("its ByteLevel pre-tokenizer has use_regex false", "true")
    tables: dict[str, Table] = {
        "char_classes": ranges(_classes(tokenizer)),
        "vocabulary": in_order_of_ids(model["vocab"]),
        "merges": _merges(model),
    }
    return tables, {"add_prefix_space": int(splitter["add_prefix_space"])}


def _classes(tokenizer: Tokenizer) -> npt.NDArray[np.int32]:
    """Return the class of each code point: that of the neighbour which it stays together with."""
    points = "".join(code_points())
    classes = np.full(COUNT, _SPACE, np.int32)
    left = points
    for kind, neighbour in _NEIGHBOURS.items():
        classes[points_of(left)] = kind
        left = _apart(tokenizer, left, neighbour)
    classes[points_of(left)] = _SPACE
    # What is left must stay together with white space.
    if len(tokenizer.pre_tokenizer.pre_tokenize_str("\n" + "\n".join(left) + "\n")) != 1:
        raise unsupported(
            "its pre-tokenizer knows other classes of characters", "letters, numbers, spaces and others"
        )
    return classes[points_of(points)]


def _apart(tokenizer: Tokenizer, characters: str, neighbour: str) -> str:
    """Return the characters that begin a word of their own behind a neighbour."""
    apart: list[str] = []
    for chunk in chunks(characters):
        text = after_each(neighbour, chunk)
        words = tokenizer.pre_tokenizer.pre_tokenize_str(text)
        apart += [text[begin] for _, (begin, _) in words if begin % 2]
    return "".join(apart)


def _merges(model: Spec) -> npt.NDArray[np.int32]:
    """Return `(M, 3)`: the ids of both tokens and of what they become, in the order of their ranks."""
    ids = model["vocab"]
    # Earlier versions of the library write "a b" for ["a", "b"].
    pairs = [merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"]]
    rows = [(ids[left], ids[right], ids[left + right]) for left, right in pairs]
    return np.array(rows, np.int32).reshape(-1, 3)
