"""The tables of BERT's tokenizer: what normalizer and splitter make of each code point, and its tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import ne

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from sparse_export.graph.tokenizer.code_points import (
    COUNT,
    Points,
    after_each,
    chunks,
    code_points,
    points_of,
    ranges,
)
from sparse_export.graph.tokenizer.marks import HIGH_MARK, LOW_MARK
from sparse_export.graph.tokenizer.tables import Spec, Table, in_order_of_ids, unsupported

# Actions below the offsets of the pool, and bytes of its strings: `ops/README.md`, "Tokenizing".
_ITSELF, _WORD = -1, -2
_WORD_END, _UNKNOWN = b"\xf8", b"\xf9"

# What a normalized character is to the words around it.
_SPACE, _WITHIN_WORD, _OWN_WORD = range(3)

# A sign that stays what it is, that nothing else becomes, and across which nothing is normalized.
_SEPARATOR = "|"


@dataclass(frozen=True)
class _Characters:
    """What words are made of, after normalizing.

    Attributes:
        kinds: of each code point, `(COUNT,)`.
        are_known: whether a token has it, `(COUNT,)` bool. One that none has makes its word unknown,
            whichever it is.
    """

    kinds: npt.NDArray[np.int8]
    are_known: npt.NDArray[np.bool_]

    def symbol(self, character: str) -> bytes:
        """Return the bytes that stand for a character in the pool."""
        point = ord(character)
        own = character.encode() if self.are_known[point] else _UNKNOWN
        return (_WORD_END, own, _WORD_END + own + _WORD_END)[self.kinds[point]]


@dataclass
class _Pool:
    """Strings behind their length, each once."""

    content: bytearray = field(default_factory=bytearray)
    offsets: dict[bytes, int] = field(default_factory=dict)

    def offset(self, string: bytes) -> int:
        """Return where a string is; it is added where it is new."""
        if string not in self.offsets:
            self.offsets[string] = len(self.content)
            self.content += bytes([len(string)]) + string
        return self.offsets[string]


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
    points = code_points()
    normalized = normalized_points(tokenizer)
    of_texts, of_tokens = points_of("".join(normalized)), points_of("".join(vocabulary))
    characters = _characters(tokenizer, of_texts, of_tokens)
    _refuse_moving(tokenizer, map(chr, np.intersect1d(of_texts, of_tokens).tolist()))
    actions, pool = _actions(points, normalized, characters)
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


def normalized_points(tokenizer: Tokenizer) -> list[str]:
    """Return what the normalizer makes of each of `code_points` alone."""
    normalize = tokenizer.normalizer.normalize_str
    normalized: list[str] = []
    for chunk in chunks(code_points()):
        together = normalize(_SEPARATOR.join(chunk)).split(_SEPARATOR)
        # One with the separator among them is asked one by one.
        normalized += together if len(together) == len(chunk) else map(normalize, chunk)
    return normalized


def _characters(tokenizer: Tokenizer, of_texts: Points, of_tokens: Points) -> _Characters:
    """Ask the pre-tokenizer about all characters of normalized texts."""
    kinds = np.full(COUNT, _SPACE, np.int8)
    for chunk in chunks("".join(map(chr, np.unique(of_texts).tolist()))):
        text = after_each("a", chunk)
        of_text = np.full(len(text), _SPACE, np.int8)
        for _, (begin, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text):
            of_text[begin:end] = _OWN_WORD if end - begin == 1 else _WITHIN_WORD
        kinds[points_of("".join(chunk))] = of_text[1::2]
    are_known = np.zeros(COUNT, np.bool_)
    are_known[of_tokens] = True
    return _Characters(kinds, are_known)


def _actions(
    points: Sequence[str], normalized: Sequence[str], characters: _Characters
) -> tuple[npt.NDArray[np.int32], bytes]:
    """Return the action of each code point, and the pool."""
    pool = _Pool()
    numbers = points_of("".join(points))
    # Most code points stay what they are; [kind, is known]:
    unchanged = np.array(
        [
            [pool.offset(_WORD_END)] * 2,
            [pool.offset(_UNKNOWN), _ITSELF],
            [pool.offset(_WORD_END + _UNKNOWN + _WORD_END), _WORD],
        ],
        np.int32,
    )
    actions = unchanged[characters.kinds[numbers], characters.are_known[numbers].astype(np.int8)]
    for index in np.flatnonzero(np.fromiter(map(ne, points, normalized), np.bool_, len(points))).tolist():
        string = b"".join(map(characters.symbol, normalized[index]))
        is_word = string == _WORD_END + points[index].encode() + _WORD_END
        actions[index] = _WORD if is_word else pool.offset(string)
    return actions, bytes(pool.content)


def _refuse_moving(tokenizer: Tokenizer, characters: Iterable[str]) -> None:
    """Refuse characters of the vocabulary that canonical ordering (Unicode, D109) moves among others.

    Code points are looked up one by one. Marks that the normalizer leaves in the text do move, but a word
    with one that no token has is unknown in any order.
    """
    normalize = tokenizer.normalizer.normalize_str
    high, low = normalize(HIGH_MARK), normalize(LOW_MARK)
    moving = [
        character
        for character in characters
        if normalize(f"{HIGH_MARK}{character}{LOW_MARK}") != high + normalize(character) + low
    ]
    if moving:
        named = ", ".join(f"U+{ord(character):04X}" for character in moving)
        raise unsupported(
            f"its vocabulary has characters whose order depends on their neighbours ({named})",
            "a vocabulary without",
        )
