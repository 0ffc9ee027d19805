"""Random texts of many kinds, none of them friendly: what a tokenizer in a graph is held to as well."""

import random
import unicodedata
from collections.abc import Callable, Sequence

from tokenizers import Tokenizer

from sparse_export.graph.tokenizer.code_points import code_points


def hostile_texts(tokenizer: Tokenizer, texts: Sequence[str], count: int) -> list[str]:
    """Return about so many random texts, the same at every call, of each kind as many."""
    kinds = random_kinds(tokenizer, texts, code_points())
    return [make() for make in kinds for _ in range(count // len(kinds))]


def random_kinds(
    tokenizer: Tokenizer, texts: Sequence[str], points: Sequence[str]
) -> list[Callable[[], str]]:
    """Return functions that make one random text each; `points` are all code points."""
    rng = random.Random(7)
    marks = [point for point in points if unicodedata.category(point)[0] == "M"]
    letters = [point for point in points[:0x3000] if unicodedata.category(point)[0] == "L"]
    tokens = [token.removeprefix("##").replace("Ġ", " ") for token in sorted(tokenizer.get_vocab())]
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    controls = [
        *map(chr, range(33)),
        *map(chr, range(127, 162)),
        *"\u200b\u200d\u2028\u2029\u00ad\ufeff\ufffd",
    ]
    odd = [
        *added,
        *(token[:-1] for token in added),
        *(token.lower() for token in added),
        *("[", "]", "<", ">", "[[", "'s", "'ll", " '", "\n", "  ", " ", "a", "é", "\u0301", "中"),
    ]
    asian = [*points[0x1100:0x1200], *points[0x3040:0x3100], *points[0xAC00:0xAD00], *points[0x4E00:0x4F00]]

    def of(choices: Sequence[str], most: int = 40) -> Callable[[], str]:
        return lambda: "".join(rng.choices(choices, k=rng.randrange(most)))

    def odd_case() -> str:
        text = rng.choice(texts)[:200]
        return "".join(rng.choice((c, c.upper(), c, c + rng.choice(("\u0301", " ", "")))) for c in text)

    return [
        of(points),
        of(points[:0xF800]),
        of(points[:128], 80),
        of([*letters, *marks, *marks]),
        of(marks),
        of([*controls, "a", "b", "!"]),
        of([*tokens, *[" "] * (len(tokens) // 2)], 30),
        of([*odd, *texts[:20]], 12),
        of([*" \t\n\r\u00a0\u3000\u2003a1'!é٣", "'re", "'VE"], 30),
        of([*asian, " ", "a"]),
        of([*"abcdeß", "'", "中", "\u0301"], 300),
        odd_case,
    ]
