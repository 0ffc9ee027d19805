"""The tables of BERT's tokenizer: what normalizer and splitter make of each code point, and its tokens."""

from collections.abc import Iterable, Sequence

import numpy as np
from tokenizers import Tokenizer

from sparse_export.graph.tokenizer.code_points import chunks, code_points, ranges
from sparse_export.graph.tokenizer.tables import Spec, Table, in_order_of_ids, unsupported

# Actions below the offsets of the pool, and bytes of its strings: `ops/README.md`, "Tokenizing".
_ITSELF, _WORD = -1, -2
_WORD_END, _UNKNOWN = b"\xf8", b"\xf9"

# A sign that stays what it is, that nothing else becomes, and across which nothing is normalized.
_SEPARATOR = "|"

# Marks of combining classes 226 and 9, which BERT's normalizer leaves in a text.
_HIGH_MARK, _LOW_MARK = "\U0001d16d", "\u1b44"

_SPACE, _WITHIN_WORD, _OWN_WORD = 0, 1, 2


def wordpiece(tokenizer: Tokenizer, model: Spec) -> tuple[dict[str, Table], dict[str, int | str]]:
    """Return constant inputs and attributes of `WordPieceTokenize`, without added tokens.

    Raises:
        UnsupportedTokenizerError: there is no token for unknown words, or the order of characters that the
            vocabulary has depends on their neighbours.
    """
    vocabulary = in_order_of_ids(model["vocab"])
    unknown = model["vocab"].get(model["unk_token"])
    if unknown is None:
        raise unsupported(
            f"its token for unknown words, {model['unk_token']!r}, is not in the vocabulary", "one that is"
        )
    alphabet = set().union(*vocabulary)
    points = code_points()
    normalized = _normalized(tokenizer, points)
    characters = sorted(set().union(*normalized))
    _refuse_moving(tokenizer, [character for character in characters if character in alphabet])
    actions, pool = _actions(points, normalized, _symbols(tokenizer, characters, alphabet))
    tables: dict[str, Table] = {
        "char_actions": ranges(actions),
        "char_pool": np.frombuffer(pool, np.uint8),
        "vocabulary": vocabulary,
    }
    return tables, {
        "unk_id": unknown,
        "continuing_prefix": model["continuing_subword_prefix"],
        "max_input_chars_per_word": model["max_input_chars_per_word"],
    }


def _normalized(tokenizer: Tokenizer, points: Sequence[str]) -> list[str]:
    """Return what the normalizer makes of each code point alone."""
    normalize = tokenizer.normalizer.normalize_str
    normalized: list[str] = []
    for chunk in chunks(points, 4096):
        together = normalize(_SEPARATOR.join(chunk)).split(_SEPARATOR)
        # One with the separator among them is asked one by one.
        normalized += together if len(together) == len(chunk) else map(normalize, chunk)
    return normalized


def _symbols(tokenizer: Tokenizer, characters: Sequence[str], alphabet: set[str]) -> dict[str, bytes]:
    """Return the bytes that stand for each normalized character in the pool.

    A character that no token has makes its word unknown, whichever it is.
    """
    symbols: dict[str, bytes] = {}
    for chunk in chunks(characters, 4096):
        text = "".join(f"a{character}" for character in chunk)
        kinds = np.full(len(text), _SPACE)
        for _, (begin, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text):
            kinds[begin:end] = _OWN_WORD if end - begin == 1 else _WITHIN_WORD
        for character, kind in zip(chunk, kinds[1::2].tolist(), strict=True):
            known = character.encode() if character in alphabet else _UNKNOWN
            symbols[character] = (_WORD_END, known, _WORD_END + known + _WORD_END)[kind]
    return symbols


def _actions(
    points: Sequence[str], normalized: Sequence[str], symbols: dict[str, bytes]
) -> tuple[list[int], bytes]:
    """Return the action of each code point, and the pool."""
    actions: list[int] = []
    offsets: dict[str, int] = {}
    pool = bytearray()
    for character, result in zip(points, normalized, strict=True):
        offset = offsets.get(result)
        if offset is None:
            string = b"".join(symbols[each] for each in result)
            own = character.encode()
            if string == own:
                actions.append(_ITSELF)
                continue
            if string == _WORD_END + own + _WORD_END:
                actions.append(_WORD)
                continue
            offset = _offset(string, pool)
            offsets[result] = offset
        actions.append(offset)
    return actions, bytes(pool)


def _offset(string: bytes, pool: bytearray) -> int:
    entry = bytes([len(string)]) + string
    offset = pool.find(entry)
    if offset < 0:
        offset = len(pool)
        pool += entry
    return offset


def _refuse_moving(tokenizer: Tokenizer, characters: Iterable[str]) -> None:
    """Refuse characters of the vocabulary that canonical ordering (Unicode, D109) moves among others.

    Code points are looked up one by one. Marks that the normalizer leaves in the text do move, but a word
    with one that no token has is unknown in any order.
    """
    normalize = tokenizer.normalizer.normalize_str
    moving = [
        character
        for character in characters
        if normalize(f"{_HIGH_MARK}{character}{_LOW_MARK}")
        != normalize(_HIGH_MARK) + normalize(character) + normalize(_LOW_MARK)
    ]
    if moving:
        named = ", ".join(f"U+{ord(character):04X}" for character in moving)
        raise unsupported(
            f"its vocabulary has characters whose order depends on their neighbours ({named})",
            "a vocabulary without",
        )
