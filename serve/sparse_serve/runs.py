"""How much is computed at a time; of the CPU's runs `onnxruntime_backend` has the numbers again."""

from collections.abc import Iterable

RUN_TOKENS = 1024
"""Of one run: from some hundred on a token costs the same, and far more of them leave the caches."""
RUN_TOKENS_ON = {"cpu": RUN_TOKENS, "cuda": 32 * RUN_TOKENS}
"""By what computes: a GPU is filled by tens of thousands, and has the memory for them."""
TOKEN_BYTES = 4
"""That are taken for a token of a text until it has been read."""


def run_borders(
    row_tokens: Iterable[int], most_rows: int | None = None, run_tokens: int = RUN_TOKENS
) -> list[int]:
    """Return where rows are divided so that each run has `run_tokens` at most, or one row."""
    borders: list[int] = []
    begin = tokens = 0
    for row, own in enumerate(row_tokens):
        if (tokens and tokens + own > run_tokens) or row - begin == most_rows:
            borders.append(row)
            begin, tokens = row, 0
        tokens += own
    return borders
