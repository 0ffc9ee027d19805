"""The case table of axis attention: packed problems with their rows, columns and fixed pairs."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from cases import PRODUCT_SIZES, AttentionCase

Indicators = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class AxisCase:
    """One packed problem of axis attention.

    `rows` and `columns` are the chances of a token's row and column to be on; where `at_least_one` is set
    every sequence has one of each. The first `global_size` of every sequence are on in any case. `attention`
    holds the tensors and λ, which counts for "sparsegen" alone.
    """

    attention: AttentionCase
    rows: float = 0.0
    columns: float = 0.0
    diagonals: tuple[int, ...] = ()
    random_keys: int = 0
    seed: int = 0
    normalizer: Literal["softmax", "sparsegen"] = "softmax"
    at_least_one: bool = False
    global_size: int = 0

    @property
    def name(self) -> str:
        """What identifies the case among others."""
        return self.attention.name

    def indicators(self) -> tuple[Indicators, Indicators]:
        """`rows` and `columns`, each `(T,)` bool."""
        rng = np.random.default_rng(self.attention.seed)
        tokens = sum(self.attention.lengths)
        rows, columns = (rng.random(tokens) < chance for chance in (self.rows, self.columns))
        for begin, end in pairwise(self.attention.cu_seqlens):
            if self.at_least_one and begin < end:
                rows[rng.integers(begin, end)] = columns[rng.integers(begin, end)] = True
            first = slice(begin, min(begin + self.global_size, end))
            rows[first] = columns[first] = True
        return rows, columns


def _case(
    name: str,
    lengths: tuple[int, ...],
    rows: float,
    columns: float,
    diagonals: tuple[int, ...] = (),
    random_keys: int = 0,
    *,
    num_heads: int = 2,
    head_size: int = 32,
    seed: int = 0,
) -> AxisCase:
    attention = AttentionCase(name, lengths, num_heads, head_size, scores="trained", seed=seed)
    return AxisCase(attention, rows, columns, diagonals, random_keys, seed)


LOCAL2 = (0, 1, 2)
MIXED = (1, 17, 0, 200, 31, 64, 5)

# What comes at the borders: of vectors and blocks, of the ways in which a kernel may go about a pattern.
AXIS_CASES: tuple[AxisCase, ...] = (
    _case("no_pair", (1, 0, 40), 0, 0),
    _case("one_token", (1,), 0, 0, LOCAL2),
    _case("one_token_on", (1, 1), 1, 1),
    _case("two_tokens", (2, 2), 0.5, 0.5, (1,)),
    _case("local2", MIXED, 0, 0, LOCAL2),
    _case("aaa", MIXED, 0.01, 0.02, LOCAL2),
    _case("aaa_512", (512, 130), 0.01, 0.02, LOCAL2, num_heads=3, head_size=64),
    _case("aaa_4096", (4096,), 0.01, 0.02, LOCAL2, num_heads=1, head_size=64),
    _case("rows_only", MIXED, 0.1, 0),
    _case("columns_only", MIXED, 0, 0.1),
    _case("every_row", (1, 40, 65), 1, 0.1, LOCAL2),
    _case("many_rows", (513, 33), 0.6, 0.02, LOCAL2, head_size=17),
    # As many full rows as are computed along with the others, and one more. The last chunk is a short one.
    *(
        AxisCase(
            AttentionCase(f"first_{rows}_rows", (1100, 70), 2, 24, scores="trained"),
            columns=0.02,
            diagonals=LOCAL2,
            global_size=rows,
        )
        for rows in (64, 65)
    ),
    _case("every_column", (1, 40, 65), 0, 1, LOCAL2),
    _case("half_of_both", MIXED, 0.5, 0.5, LOCAL2),
    _case("nearly_all_columns", (300,), 0.1, 0.95, (0, 7)),
    _case("few_of_one_vector", (100, 400), 0.01, 0.005, (0,), seed=3),
    _case("far_diagonals", (90, 300), 0.02, 0.02, (0, 3, 17, 64, 128, 299, 300, 5000), seed=1),
    _case("odd_diagonals", (200,), 0, 0.05, (99, 5, 5, 1, 99)),
    _case("strips", (300, 7, 45), 0.02, 0.03, (*range(4), 9, 20, 21, *range(40, 51), 70, 72, 74)),
    _case("wide_band", (400, 90, 3), 0.02, 0.03, tuple(range(40)), seed=2),
    _case("band_and_far_diagonals", (500,), 0.02, 0.03, (*range(30), 200, 333)),
    _case("every_diagonal", (1, 70, 33), 0, 0, tuple(range(70))),
    _case("random_keys", MIXED, 0, 0, (), 3),
    _case("random_keys_among_all", (300, 40), 0.02, 0.05, LOCAL2, 4, seed=123456789),
    _case("random_keys_in_a_band", (400,), 0.02, 0.03, tuple(range(30)), 3, seed=5),
    _case("more_random_keys_than_tokens", (6, 33), 0, 0, (), 50),
    _case("every_key_drawn", (1, 17, 40), 0, 0.1, (3,), 1000),
    *(
        AxisCase(AttentionCase(name, (90, 17), 2, 32, **sizes), 0.02, 0.05, (*LOCAL2, 60), 1)
        for name, sizes in PRODUCT_SIZES.items()
    ),
    *(
        AxisCase(AttentionCase(f"{name}_in_a_panel", (60,), 1, 32, **sizes), 0.2, 0.6, LOCAL2)
        for name, sizes in PRODUCT_SIZES.items()
    ),
    *(
        _case(f"head_size_{d}", (70, 33), 0.05, 0.1, LOCAL2, 1, num_heads=3, head_size=d, seed=d)
        for d in (8, 9, 15, 16, 17, 48, 64, 80, 127, 128)
    ),
)
