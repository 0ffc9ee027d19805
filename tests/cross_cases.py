"""The queries of cross-attention: some of a packed problem's tokens, as every case table has them."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

Asked = Literal["first", "some", "all"]
ASKED: tuple[Asked, ...] = ("first", "some", "all")


@dataclass(frozen=True)
class AskedQueries:
    """Which tokens are queries, sequence by sequence.

    Attributes:
        tokens: `(Q,)` int64, the token that each is.
        cu_seqlens: `(B + 1,)` int32, borders of each sequence's queries.
    """

    tokens: npt.NDArray[np.int64]
    cu_seqlens: npt.NDArray[np.int32]


def asked_queries(asked: Asked, borders: npt.NDArray[np.int32], seed: int = 0) -> AskedQueries:
    """Choose among the tokens of sequences with these borders.

    "first" are the first tokens, as a head reads them; "some" any number in any order, some more than once;
    "all" every token, as the op has them whose queries are the tokens.
    """
    rng = np.random.default_rng(seed)
    chosen: list[npt.NDArray[np.int64]] = []
    for begin, end in pairwise(borders.tolist()):
        own = np.arange(begin, end, dtype=np.int64)
        if asked == "first":
            own = own[:1]
        elif asked == "some" and len(own):
            own = rng.choice(own, rng.integers(0, min(len(own), 70) + 3))
        chosen.append(own)
    tokens = np.concatenate([np.zeros(0, np.int64), *chosen])
    return AskedQueries(tokens, np.cumsum([0, *map(len, chosen)]).astype(np.int32))
