"""`AxisAttention` and `AxisCrossAttention`: attention on the allowed pairs, with either normalizer."""

from sparse_export.graph.functions.axis_pairs import PAIRS_ATTRIBUTES, PAIRS_OF
from sparse_export.graph.functions.function import Function, Normalizer
from sparse_export.graph.functions.packed_text import (
    CROSS,
    NOT_ZERO,
    OF_TOKENS,
    PACKED_ATTENTION,
    SUPPORT,
)
from sparse_export.graph.functions.softmax_or_zero import SOFTMAX_OF
from sparse_export.graph.functions.sparsegen_lin import SPARSEGEN_OF
from sparse_serve.op_library import DOMAIN

AXIS_ATTRIBUTES = f'{PAIRS_ATTRIBUTES}, normalizer: string = "softmax", lambd: float = 0.0'
NORMALISE_ALLOWED: dict[Normalizer, str] = {
    "softmax": SOFTMAX_OF,
    "sparsegen": SPARSEGEN_OF,
}

# Only allowed scores count, of each sequence's own rows and columns.
_SCORES = f"""
        own_rows = Slice (rows, start_1d, end_1d)
        own_columns = Slice (columns, start_1d, end_1d)
        length = Sub (end, start)
        length_1d = Sub (end_1d, start_1d)
        rank_zero = Constant <value_int: int = 0> ()
        rank_one = Constant <value_int: int = 1> ()
        ranks = Range (rank_zero, length, rank_one)
        allowed = {PAIRS_OF} (ranks, ranks, own_rows, own_columns, length_1d)
        minus_inf = Constant <value_float: float = -inf> ()
        masked = Where (allowed, scores, minus_inf)
"""
# The rows of the queries' tokens. One that is no key of its sequence stands before the first.
_CROSS_SCORES = f"""
        own_tokens = Slice (query_tokens, start_1d, end_1d)
        own_rows = Gather (rows, own_tokens)
        columns_of_own = Slice (columns, first_key, behind_keys)
        no_column = Cast <to = 9> (none)
        own_columns = Concat <axis = 0> (columns_of_own, no_column)
        is_behind = GreaterOrEqual (own_tokens, first_key)
        is_before = Less (own_tokens, behind_keys)
        is_key = And (is_behind, is_before)
        from_first = Sub (own_tokens, first_key)
        query_ranks = Where (is_key, from_first, last)
        length_1d = Sub (behind_keys, first_key)
        pairs = {PAIRS_OF} (query_ranks, ranks, own_rows, own_columns, length_1d)
        allowed = And (pairs, is_own)
        masked = Where (allowed, scores, minus_inf)
"""
# A softmax weight may vanish in float32: what counts is that its pair is allowed.
_ALLOWED = """
        weights_shape = Shape (weights)
        is_kept = Expand (allowed, weights_shape)
"""
_COUNTED: dict[Normalizer, str] = {
    "softmax": _ALLOWED,
    "sparsegen": NOT_ZERO.format(kept="is_not_zero")
    + """
        is_kept = And (is_not_zero, allowed)
""",
}


def _text(normalizer: Normalizer) -> str:
    return PACKED_ATTENTION.format(
        name="AxisAttention",
        attributes=AXIS_ATTRIBUTES,
        inputs="query, key, value, rows, columns, cu_seqlens",
        mask=_SCORES,
        normalise=NORMALISE_ALLOWED[normalizer],
        normalised="masked",
        counted=_COUNTED[normalizer],
        **OF_TOKENS,
        **SUPPORT,
    )


def _cross_text(normalizer: Normalizer) -> str:
    return PACKED_ATTENTION.format(
        name="AxisCrossAttention",
        attributes=AXIS_ATTRIBUTES,
        inputs="query, key, value, query_tokens, rows, columns, cu_seqlens_q, cu_seqlens_k",
        mask=_CROSS_SCORES,
        normalise=NORMALISE_ALLOWED[normalizer],
        normalised="masked",
        counted=_COUNTED[normalizer],
        **CROSS,
        **SUPPORT,
    )


AXIS_ATTENTION = Function(
    DOMAIN, "AxisAttention", {"softmax": _text("softmax"), "sparsegen": _text("sparsegen")}
)

AXIS_CROSS_ATTENTION = Function(
    DOMAIN,
    "AxisCrossAttention",
    {"softmax": _cross_text("softmax"), "sparsegen": _cross_text("sparsegen")},
)
