"""The case table: one list of attention problems for op, gradient, function, graph tests and benchmarks.

Every case is a packed batch: sequences of the given lengths laid end to end, T = sum(lengths).
"""

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes  # noqa: F401  gives numpy "bfloat16"
import numpy as np
import numpy.typing as npt

Scores = Literal["normal", "equal", "peaked", "trained", "uneven"]
Element = Literal["float32", "float16", "bfloat16"]

# Names of cases whose numbers 16 bits do not have.
_FLOAT32_ALONE = ("query_times_scale", "scores_near_lambda")


@dataclass(frozen=True)
class AttentionCase:
    """One packed attention problem.

    `scores` says what the rows of QKᵀ look like: "normal" draws; "equal" makes every score of a row the
    same (support = the whole row, the worst case); "peaked" gives one key far above the rest (support 1);
    "trained" scales them to the spread seen in fine-tuned checkpoints (a few percent of the keys survive);
    "uneven" gives every row a spread of its own (from one key to all of them survive).
    `query_size` and `key_size` multiply all queries and keys. `element` is the type of the tensors: the
    inputs are numbers that it has.
    """

    name: str
    lengths: tuple[int, ...]
    num_heads: int
    head_size: int
    lambd: float = -4.0
    scale: float = 0.0
    scores: Scores = "normal"
    seed: int = 0
    element: Element = "float32"
    query_size: float = 1.0
    key_size: float = 1.0

    @property
    def fits_element(self) -> bool:
        """Whether `element` has the numbers of its queries and keys."""
        return self.element == "float32" or not self.name.startswith(_FLOAT32_ALONE)

    @property
    def cu_seqlens(self) -> npt.NDArray[np.int32]:
        """Sequence borders `(B + 1,)` int32: 0, then the cumulative lengths."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)

    def inputs(self) -> tuple[npt.NDArray[np.float32], ...]:
        """`query`, `key`, `value`, each `(T, H·D)` float32, rounded to `element`."""
        rng = np.random.default_rng(self.seed)
        shape = (sum(self.lengths), self.num_heads * self.head_size)
        query, key, value = (rng.standard_normal(shape, dtype=np.float32) for _ in range(3))
        spread = {"normal": 1.0, "equal": 0.0, "peaked": 12.0, "trained": 1.5, "uneven": 1.0}[self.scores]
        query *= np.float32(spread * self.query_size)
        if self.scores == "uneven":
            query *= 10 ** rng.uniform(-2, 1.5, (len(query), 1)).astype(np.float32)
        key *= np.float32(self.key_size)
        with np.errstate(over="ignore"):  # float16 ends at 65504
            return tuple(tensor.astype(self.element).astype(np.float32) for tensor in (query, key, value))


HEAD_SIZES = (8, 16, 17, 32, 48, 64, 80, 96, 128)
LAMBDAS = (-3e38, -100.0, -7.0, -4.0, -1.0, 0.0, 0.5, 0.99)

# Scores of ordinary size, by a product of query and scale that float32 does not have, or not exactly.
PRODUCT_SIZES: dict[str, dict[str, Any]] = {
    "query_times_scale_overflows": {"query_size": 1e20, "key_size": 1e-38, "scale": 2e18},
    "query_times_scale_vanishes": {"query_size": 1e-5, "key_size": 5e37, "scale": 1e-36, "lambd": 0.99},
}

ATTENTION_CASES: tuple[AttentionCase, ...] = (
    AttentionCase("one_token", (1,), 2, 32),
    AttentionCase("two_tokens", (2,), 1, 64),
    AttentionCase("empty_sequence_between", (5, 0, 7), 2, 32),
    AttentionCase("empty_sequences_at_both_ends", (0, 9, 0), 2, 16),
    AttentionCase("mixed_lengths", (1, 17, 3, 64, 31, 128), 4, 32),
    AttentionCase("vector_borders", (15, 16, 17, 31, 32, 33, 47, 48, 49), 2, 64),
    AttentionCase("bert_128", (128, 77), 12, 64, scores="trained"),
    AttentionCase("bert_512", (512, 301), 12, 64, scores="trained"),
    AttentionCase("long", (1536,), 2, 64, scores="trained"),
    AttentionCase("short_between_long", (513, 33, 512), 1, 17, scores="trained"),
    AttentionCase("every_density", (300, 40, 530), 2, 40, scores="uneven"),
    AttentionCase("every_density_64", (513,), 1, 64, -20.0, scores="uneven"),
    AttentionCase("equal_scores", (65, 300), 2, 32, scores="equal"),
    AttentionCase("peaked_scores", (65, 300), 2, 32, scores="peaked"),
    AttentionCase("explicit_scale", (40, 9), 3, 32, scale=0.3),
    *(AttentionCase(name, (40, 9), 2, 32, **sizes) for name, sizes in PRODUCT_SIZES.items()),
    AttentionCase("scores_near_lambda", (40, 9), 2, 32, -1e38, scale=4e16, query_size=1e10, key_size=1e10),
    *(AttentionCase(f"head_size_{d}", (37, 70), 3, d, seed=d) for d in HEAD_SIZES),
    *(AttentionCase(f"lambda_{lambd:g}", (90, 23), 2, 32, lambd=lambd, seed=7) for lambd in LAMBDAS),
)

# Sequences of one length, so that padded peers compute the same; "equal" is a sparse kernel's worst case.
BENCHMARK_CASES: tuple[AttentionCase, ...] = (
    *(
        AttentionCase(f"{count}x{length}", (length,) * count, 12, 64, scores="trained")
        for count, length in ((64, 16), (8, 64), (4, 128), (1, 512), (1, 2048))
    ),
    AttentionCase("1x512_head_size_32", (512,), 12, 32, scores="trained"),
    AttentionCase("1x512_full_support", (512,), 12, 64, scores="equal"),
)


def aligned(array: npt.NDArray[Any], num_bytes: int) -> npt.NDArray[Any]:
    """Return a copy that begins at a multiple of so many bytes."""
    memory = np.empty(array.nbytes + num_bytes, np.uint8)
    begin = -memory.ctypes.data % num_bytes
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
