"""The kernels for GPUs, run by a CPU: `cuda_host.cc`, compiled and called."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from builds import compiled

from cases import Element

Array = npt.NDArray[Any]
Way = Literal["launched", "listed", "dense"]

ELEMENTS: tuple[Element, ...] = ("float32", "float16", "bfloat16")
WAYS: tuple[Way, ...] = ("launched", "listed", "dense")
SHARED = ("-shared", "-fPIC")

SHARED_BYTES = 227 * 1024
"""What a block may have on compute capability 9.0."""

UNWRITTEN = 0x55


class _Attention(ctypes.Structure):
    _fields_ = (
        ("element", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "query_borders", "key_borders")),
        *(
            (name, ctypes.c_int64)
            for name in ("sequences", "query_rows", "key_rows", "num_heads", "head_size")
        ),
        ("scale", ctypes.c_float),
        ("divisor", ctypes.c_float),
        ("output", ctypes.c_void_p),
        ("support", ctypes.c_void_p),
        ("shared_bytes", ctypes.c_int64),
        ("way", ctypes.c_int),
    )


@cache
def library() -> ctypes.CDLL:
    """Load it, once for this process."""
    return ctypes.CDLL(str(compiled("cuda_host.cc", "-O2", *SHARED)))


@dataclass(frozen=True)
class Heads:
    """The attributes of a node of packed attention; `lambd` None: softmax."""

    num_heads: int
    head_size: int
    scale: float = 0.0
    lambd: float | None = None


def attention(
    tensors: Sequence[Array],
    borders: Sequence[Array],
    heads: Heads,
    element: Element = "float32",
    way: Way = "launched",
    shared_bytes: int = SHARED_BYTES,
) -> list[Array]:
    """Return `output` (Q, H·D) float32 and, of sparsegen, `support` (Q, H) int32.

    `tensors` are query, key and value in float32, numbers that `element` has; `borders` those of queries and
    of keys.
    """
    own = [np.ascontiguousarray(tensor.astype(element)) for tensor in tensors]
    rows = [np.ascontiguousarray(each, np.int32) for each in borders]
    output = np.empty_like(own[0])
    output.view(np.uint8)[:] = UNWRITTEN
    support = np.full((len(own[0]), heads.num_heads), -7, np.int32)
    call = _Attention(
        ELEMENTS.index(element),
        *(tensor.ctypes.data for tensor in (*own, *rows)),
        len(rows[0]) - 1,
        len(own[0]),
        len(own[1]),
        heads.num_heads,
        heads.head_size,
        heads.scale or float(np.float32(1) / np.sqrt(np.float32(heads.head_size))),
        1.0 if heads.lambd is None else float(np.float32(1) - np.float32(heads.lambd)),
        output.ctypes.data,
        None if heads.lambd is None else support.ctypes.data,
        shared_bytes,
        WAYS.index(way),
    )
    assert library().RunAttention(ctypes.byref(call)) == 0, "a block wrote beyond its shared memory"
    answer = output.astype(np.float32)
    return [answer] if heads.lambd is None else [answer, support]


def sparsegen_lin(scores: Array, lambd: float, axis: int = -1, element: Element = "float32") -> Array:
    """Return the weights in float32."""
    own = np.ascontiguousarray(scores.astype(element))
    weights = np.empty_like(own)
    axis %= scores.ndim
    inner = int(np.prod(scores.shape[axis + 1 :]))
    length = scores.shape[axis]
    library().RunSparsegenLin(
        ELEMENTS.index(element),
        ctypes.c_void_p(own.ctypes.data),
        ctypes.c_void_p(weights.ctypes.data),
        ctypes.c_int64(length),
        ctypes.c_int64(inner),
        ctypes.c_int64(scores.size // length if length else 0),
        ctypes.c_float(float(np.float32(1) - np.float32(lambd))),
    )
    return weights.astype(np.float32)


def axis_mask(hidden: Array, weight: Array, bias: Array, element: Element = "float32") -> Array:
    """Return rows and columns, `(2, T)` bool."""
    own = [np.ascontiguousarray(tensor.astype(element)) for tensor in (hidden, weight, bias)]
    masks = np.full((2, len(hidden)), 7, np.uint8)
    library().RunAxisMask(
        ELEMENTS.index(element),
        *(ctypes.c_void_p(tensor.ctypes.data) for tensor in (*own, masks[0], masks[1])),
        ctypes.c_int64(len(hidden)),
        ctypes.c_int64(hidden.shape[1]),
    )
    assert masks.max(initial=0) <= 1
    return masks.astype(bool)


def read_elements(numbers: Array, element: Element) -> Array:
    """Return numbers of `element`, 16-bit words, as the kernels read them."""
    answer = np.empty(numbers.shape, np.float32)
    library().ReadElements(
        ELEMENTS.index(element),
        ctypes.c_void_p(numbers.ctypes.data),
        ctypes.c_void_p(answer.ctypes.data),
        ctypes.c_int64(numbers.size),
    )
    return answer


def write_elements(numbers: Array, element: Element) -> Array:
    """Return float32 numbers as the kernels write them, 16-bit words."""
    answer = np.empty(numbers.shape, np.uint16)
    library().WriteElements(
        ELEMENTS.index(element),
        ctypes.c_void_p(numbers.ctypes.data),
        ctypes.c_void_p(answer.ctypes.data),
        ctypes.c_int64(numbers.size),
    )
    return answer
