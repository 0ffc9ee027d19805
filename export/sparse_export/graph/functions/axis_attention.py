"""`AxisAttention`: attention on the allowed pairs of each sequence, with either normalizer."""

from sparse_export.graph.functions.axis_pairs import PAIRS_ATTRIBUTES, PAIRS_OF
from sparse_export.graph.functions.function import GRAPH_DOMAIN, Function, Normalizer
from sparse_export.graph.functions.packed_text import NOT_ZERO, PACKED_ATTENTION, SUPPORT
from sparse_export.graph.functions.sparsegen_lin import SPARSEGEN_OF
from sparse_serve.op_library import DOMAIN

AXIS_ATTRIBUTES = f'{PAIRS_ATTRIBUTES}, normalizer: string = "softmax", lambd: float = 0.0'
NORMALISE_ALLOWED: dict[Normalizer, str] = {
    "softmax": f"{GRAPH_DOMAIN}.SoftmaxOrZero",
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
        **SUPPORT,
    )


AXIS_ATTENTION = Function(
    DOMAIN, "AxisAttention", {"softmax": _text("softmax"), "sparsegen": _text("sparsegen")}
)
