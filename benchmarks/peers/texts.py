"""The texts that are asked: short ones, long ones, and a mix; none has more tokens than the models read."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from sparse_serve.data import read_data
from sparse_serve.errors import DataError

MAX_LENGTH = 512
EVERY = 10
SHORT, MIXED, LONG = "short", "mixed", "512 tokens"
BATCH = 32
COUNTS: Mapping[str, int] = {SHORT: 320, MIXED: 160, LONG: 64}
"""How many texts of a set a measurement asks: of any load the same ones, whole tens and requests of them."""


def text_sets(rows: Path, long_rows: Path, tokenizer: Path) -> Mapping[str, Sequence[str]]:
    """Return the three sets of texts; in the mix every tenth is long.

    Long texts are cut before they are sent: Infinity's ONNX engine refuses longer ones.

    Raises:
        DataError: a file is unreadable, or has fewer than 32 texts that are long enough.
    """
    tokens = Tokenizer.from_file(str(tokenizer))
    tokens.no_truncation()
    tokens.no_padding()
    short, uncut = ([row.text for row in read_data(path).rows] for path in (rows, long_rows))
    long = [text for text in (cut(tokens, each) for each in uncut) if count(tokens, text) == MAX_LENGTH]
    for path, texts in ((rows, short), (long_rows, long)):
        if len(texts) < BATCH:
            raise DataError(f"{path} has {len(texts)} texts of the length: at least {BATCH} are needed")
    mixed = [
        long[at // EVERY % len(long)] if at % EVERY == EVERY - 1 else text for at, text in enumerate(short)
    ]
    return {SHORT: short, MIXED: mixed, LONG: long}


def longest(long_rows: Path) -> str:
    """Return the longest text of a file, uncut."""
    return max((row.text for row in read_data(long_rows).rows), key=len)


def cut(tokens: Tokenizer, text: str) -> str:
    """Return the beginning of a text that has at most 512 tokens."""
    ends = [end for _, end in tokens.encode(text).offsets[1:-1]]
    for end in reversed(ends[: MAX_LENGTH - 2]):
        if count(tokens, text[:end]) <= MAX_LENGTH:
            return text[:end]
    return text


def count(tokens: Tokenizer, text: str) -> int:
    return len(tokens.encode(text).ids)
