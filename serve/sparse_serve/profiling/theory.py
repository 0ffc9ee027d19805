"""What theory expects of the memory that requests take, and how far eager attention's grows as it says."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sparse_serve.profiling.subjects import GraphShape
from sparse_serve.report.concluded import Expected, Growth
from sparse_serve.report.measured import Measurement, Variant
from sparse_serve.runs import RUN_TOKENS, run_borders

# ONNX Runtime cannot prove that QKᵀ and its sum with the broadcast mask have the same shape while lengths are
# free, so the Add gets an output of its own: two score tensors are live there. Softmax then works in place.
LIVE_SCORE_COPIES = 2
FLOAT_BYTES = 4


@dataclass(frozen=True)
class _Buffers:
    """The buffers that a layer needs on ONNX Runtime's CPU provider, by their size, seen in its allocations.

    A tensor takes the place of one of the same shape that is no longer read, and a buffer is given back after
    the last layer that it serves: what a layer needs is held through all of them, feed-forward layers' while
    attention is computed, and scores while they are. Held so are `hidden` of the hidden states' size, `inner`
    of the feed-forward layers', before the activation and behind it, and `scores` of all heads, which a mask
    of one head's size is added to. A kernel gives back at its end what it takes for itself: attention
    `own_hidden` and `own_scores`, the activation `own_inner`. The larger of the two is the peak's.
    """

    hidden: int
    inner: int = 2
    scores: int = 0
    own_hidden: int = 0
    own_inner: int = 1
    own_scores: int = 0


# Hidden states; a linear layer's output; queries and keys by head, whose places values and the result take;
# the result by token; its projection; that normalised.
_EAGER = _Buffers(hidden=7, scores=LIVE_SCORE_COPIES)
# Hidden states, queries, keys, values, the result; of the kernel's own the last four by head, and scores.
_FUSED = _Buffers(hidden=5, own_hidden=4, own_scores=1)
# Queries, keys, values and the result as rows; hidden states, the projection and that normalised as a batch
# of one, which is another shape. Its kernels take some hundred kilobytes, BiasGelu of ours nothing.
_PACKED = _Buffers(hidden=7, own_inner=0)


def runs_of(rows: Sequence[int], about: Sequence[int] | None = None) -> list[Sequence[int]]:
    """Return the true lengths of the rows of each run of a request: a graph computes some at a time.

    `about` is what a backend takes for the lengths before, by which it hands rows to the graph; None where it
    hands over the whole request.
    """
    parts = [rows] if about is None else _split(rows, run_borders(about))
    return [run for part in parts for run in _split(part, run_borders(part))]


def _split(rows: Sequence[int], borders: Sequence[int]) -> list[Sequence[int]]:
    return [rows[begin:end] for begin, end in pairwise([0, *borders, len(rows)])]


def live_bytes(variant: Variant, shape: GraphShape, runs: Sequence[Sequence[int]]) -> tuple[int, int] | None:
    """Return the bytes of activations and of scores at a request's peak, None where there is no theory.

    `runs` are the true lengths of the rows of a request, by run (`runs_of`): padded graphs compute each row
    as long as the longest of its run, packed ones the true tokens. Theory is of
    BERT's layers in fp32, by the count of `_Buffers`; there is none of the portable fallback and of eager
    sparse attention, and none without a shape.
    """
    heads, hidden, inner = shape.heads, shape.hidden, shape.inner
    if heads is None or hidden is None or inner is None or variant in ("portable", "padded_sparse"):
        return None
    buffers = {"padded_eager": _EAGER, "padded_fused": _FUSED}.get(variant, _PACKED)

    def live(run: Sequence[int]) -> tuple[int, int]:
        tokens = sum(run) if buffers is _PACKED else len(run) * max(run)
        pairs = len(run) * max(run) ** 2
        attention = (buffers.own_hidden * hidden * tokens, buffers.own_scores * heads * pairs)
        own, own_scores = max(attention, (buffers.own_inner * inner * tokens, 0), key=sum)
        held = (buffers.hidden * hidden + buffers.inner * inner) * tokens
        scores = (buffers.scores * heads + bool(buffers.scores)) * pairs
        return (held + own) * FLOAT_BYTES, (scores + own_scores) * FLOAT_BYTES

    return max(map(live, runs), key=sum)


def expected(
    measurement: Measurement, shape: GraphShape, weights: int, runs: Sequence[Sequence[int]]
) -> Expected | None:
    """Return what theory expects of a variant's memory with one request at a time, in runs of such rows.

    None where `live_bytes` has no theory.
    """
    live = live_bytes(measurement.variant, shape, runs)
    if live is None:
        return None
    activations, scores = live
    return Expected(
        model=measurement.model,
        variant=measurement.variant,
        length=measurement.length,
        batch=measurement.batch,
        weights=weights,
        activations=activations,
        scores=scores,
    )


def growth(measurements: Sequence[Measurement], model: str, heads: int | None) -> Iterator[Growth]:
    """Fit the peak memory of padded eager attention at its three longest lengths; nothing if it has fewer.

    At shorter lengths the feed-forward layers set the peak, and theory speaks of the scores of one request at
    a time, all of whose rows are computed at once. Without the number of `heads` there is no theory.
    """
    if heads is None:
        return
    eager = [
        (m, m.memory_bytes.peak_above_idle)
        for m in measurements
        if (m.model, m.variant, m.concurrency) == (model, "padded_eager", 1)
        and m.memory_bytes is not None
        and (m.batch == 1 or m.tokens_per_request <= RUN_TOKENS)
    ]
    for batch in dict.fromkeys(measurement.batch for measurement, _ in eager):
        points = sorted((m.length, peak) for m, peak in eager if m.batch == batch)[-3:]
        if len(points) < 3:
            continue
        lengths, peaks = zip(*points, strict=True)
        quadratic = float(np.polyfit(lengths, peaks, deg=2)[0])
        theory = float((LIVE_SCORE_COPIES * heads + 1) * batch * FLOAT_BYTES)  # with the mask
        yield Growth(
            model=model,
            batch=batch,
            heads=heads,
            live_copies=LIVE_SCORE_COPIES,
            lengths=lengths,
            measured=quadratic,
            theory=theory,
            ratio=quadratic / theory,
        )
