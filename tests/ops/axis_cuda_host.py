"""Axis attention's kernels for GPUs, run by a CPU: `axis_cuda_host.cc`, compiled and called."""

import ctypes
from functools import cache

import numpy as np
from builds import compiled
from cuda_host import ELEMENTS, SHARED, UNWRITTEN, Array

from axis_cases import AxisCase
from cases import aligned

PRIME = 2**31 - 1
MOST_OFFSET = 2**31 - 1
ALIGNMENT = 16  # bytes, as of tensors on a GPU

TENSORS = ("query", "key", "value")
POINTERS = (
    *TENSORS,
    *("rows", "columns", "query_borders", "key_borders", "query_tokens", "offsets"),
    *("output", "support"),
)
SIZES = (
    *("sequences", "query_rows", "key_rows", "num_heads", "head_size"),
    *("offset_count", "random_keys", "seed", "full_blocks"),
)


class _AxisAttention(ctypes.Structure):
    _fields_ = (
        ("element", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_int64) for name in SIZES),
        ("sparsegen", ctypes.c_int),
        ("scale", ctypes.c_float),
        ("divisor", ctypes.c_float),
    )


@cache
def library() -> ctypes.CDLL:
    """Load it, once for this process."""
    return ctypes.CDLL(str(compiled("axis_cuda_host.cc", "-O1", *SHARED)))


def axis_attention(
    inputs: dict[str, Array], case: AxisCase, *, has_support: bool = True, full_blocks: int = 3
) -> list[Array]:
    """Return `output` (Q, H·D) float32 and `support` (Q, H) int32.

    `inputs` are those of the op or of its cross-attention, tensors in float32 of numbers that the case's
    element has. So many blocks share the full rows.
    """
    attention = case.attention
    own = {name: aligned(inputs[name].astype(attention.element), ALIGNMENT) for name in TENSORS}
    own |= {name: inputs[name].astype(np.uint8) for name in ("rows", "columns")}
    for name in ("q", "k"):
        borders = inputs.get(f"cu_seqlens_{name}", inputs.get("cu_seqlens"))
        own["query_borders" if name == "q" else "key_borders"] = np.array(borders, np.int32)
    own["offsets"] = np.array(sorted({d for d in case.diagonals if d <= MOST_OFFSET}), np.int32)
    if "query_tokens" in inputs:
        own["query_tokens"] = np.array(inputs["query_tokens"], np.int64)
    own["output"] = aligned(np.empty_like(own["query"]), ALIGNMENT)
    own["output"].view(np.uint8)[:] = UNWRITTEN
    support = np.full((len(own["query"]), attention.num_heads), -7, np.int32)
    if has_support:
        own["support"] = support
    scale = attention.scale or np.float32(1) / np.sqrt(np.float32(attention.head_size))
    sparsegen = case.normalizer == "sparsegen"
    call = _AxisAttention(
        ELEMENTS.index(attention.element),
        *(own[name].ctypes.data if name in own else None for name in POINTERS),
        len(own["query_borders"]) - 1,
        len(own["query"]),
        len(own["key"]),
        attention.num_heads,
        attention.head_size,
        len(own["offsets"]),
        case.random_keys,
        case.seed % PRIME,
        full_blocks,
        sparsegen,
        float(scale),
        float(np.float32(1) - np.float32(attention.lambd)) if sparsegen else 1.0,
    )
    assert library().RunAxisAttention(ctypes.byref(call)) == 0, "memory was written to that is not the call's"
    return [own["output"].astype(np.float32), support]
