"""What a tokenizer node needs beside its tables to say where in a text its tokens were."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers

from sparse_export.graph.tokenizer.code_points import chunks, code_points
from sparse_export.graph.tokenizer.marks import marks
from sparse_export.graph.tokenizer.tables import Spec, unsupported

_TRIM_ALL, _TRIM_ALL_BUT_FIRST = 1, 2

# Trimming takes this letter for the space that ByteLevel writes with it, wherever a token has it.
_SPACE_LETTER = "Ġ"


def offset_attributes(tokenizer: Tokenizer, spec: Spec) -> dict[str, Any]:
    """Return the attributes of a node that answers offsets, and of no other.

    Raises:
        UnsupportedTokenizerError: its post-processor trims offsets as the ops do not.
    """
    attributes: dict[str, Any] = {}
    trimming = _trimming(spec["post_processor"])
    if trimming:
        attributes["trim_offsets"] = trimming
        _refuse_space_letters(token["content"] for token in spec["added_tokens"])
    if spec["model"]["type"] == "WordPiece":
        if trimming:
            _refuse_space_letters(spec["model"]["vocab"])
        if any(token["lstrip"] or token["rstrip"] for token in spec["added_tokens"]):
            attributes["white_space"] = white_space()
        if tokenizer.normalizer.normalize_str("e\u0301") == "e":
            attributes["marks"] = marks()
    return attributes


def _trimming(processor: Spec | None) -> int:
    """Return how a post-processor trims offsets."""
    steps = _steps(processor)
    trimming = [index for index, step in enumerate(steps) if step.get("trim_offsets")]
    if not trimming:
        return 0
    if trimming != [0]:
        raise unsupported(
            "its post-processors trim offsets more than once, or after another one",
            "only the first of them to trim",
        )
    return _TRIM_ALL_BUT_FIRST if steps[0]["add_prefix_space"] else _TRIM_ALL


def _steps(processor: Spec | None) -> list[Spec]:
    if processor is None:
        return []
    if processor["type"] != "Sequence":
        return [processor]
    return [step for each in processor["processors"] for step in _steps(each)]


def _refuse_space_letters(tokens: Iterable[str]) -> None:
    for token in tokens:
        if token.strip() != token or token.strip(_SPACE_LETTER) != token:
            raise unsupported(
                f"its post-processor trims offsets, by {token!r} too, which begins or ends as a space does",
                f"tokens that do not begin or end with white space or {_SPACE_LETTER!r}, or no trimming",
            )


@cache
def white_space() -> list[int]:
    """Return the code points that the library takes for white space."""
    split = pre_tokenizers.WhitespaceSplit().pre_tokenize_str
    spaces: list[int] = []
    for chunk in chunks(code_points()):
        words = split("".join(chunk))
        ends = [0, *(end for _, (_, end) in words)]
        begins = [*(begin for _, (begin, _) in words), len(chunk)]
        for end, begin in zip(ends, begins, strict=True):
            spaces += map(ord, chunk[end:begin])
    return spaces
