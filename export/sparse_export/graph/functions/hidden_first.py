"""Attention from queries that are no keys (see `packing`): first tokens that the mask hides."""

from sparse_export.graph.functions.axis_attention import AXIS_ATTRIBUTES, NORMALISE_ALLOWED
from sparse_export.graph.functions.axis_pairs import PAIRS_OF
from sparse_export.graph.functions.function import GRAPH_DOMAIN, Function, Normalizer
from sparse_export.graph.functions.softmax_or_zero import SOFTMAX_OF
from sparse_export.graph.functions.sparsegen_lin import SPARSEGEN_OF

# Dense over all tokens under `allowed` (R, T), which `{pairs}` may compute, and only where R > 0.
_TEXT = """
{name} <num_heads: int, scale: float{attributes}>
    ({inputs}) => (replaced)
{{
    one = Constant <value_ints: ints = [1]> ()
    none = Constant <value_ints: ints = [0]> ()
    last = Constant <value_ints: ints = [-1]> ()
    heads = Constant <value_int: int = @num_heads> ()
    heads_1d = Reshape (heads, one)
    split = Concat <axis = 0> (none, heads_1d, last)
    factor = Constant <value_float: float = @scale> ()
    count = Size (hidden)
    zero = Constant <value_int: int = 0> ()
    any = Greater (count, zero)
    updates = If (any) <then_branch = attend () => (float[R, W] attended) {{
        own_queries = Gather (query, hidden)
        q_rows = Cast <to = 1> (own_queries)
        k_rows = Cast <to = 1> (key)
        v_rows = Cast <to = 1> (value)
        q_split = Reshape (q_rows, split)
        k_split = Reshape (k_rows, split)
        v_split = Reshape (v_rows, split)
        q = Transpose <perm = [1, 0, 2]> (q_split)
        k_transposed = Transpose <perm = [1, 2, 0]> (k_split)
        v = Transpose <perm = [1, 0, 2]> (v_split)
        products = MatMul (q, k_transposed)
        scores = Mul (products, factor)
        minus_inf = Constant <value_float: float = -inf> ()
        {pairs}
        masked = Where (allowed, scores, minus_inf)
        weights = {normalise} (masked)
        heads_out = MatMul (weights, v)
        rows_out = Transpose <perm = [1, 0, 2]> (heads_out)
        rows_shape = Shape (q_rows)
        attended = Reshape (rows_out, rows_shape)
    }}, else_branch = skip () => (float[R, W] nothing) {{
        no_rows = Gather (query, hidden)
        nothing = Cast <to = 1> (no_rows)
    }}>
    indices = Unsqueeze (hidden, last)
    replacements = CastLike (updates, output)
    replaced = ScatterND (output, indices, replacements)
}}
"""

_OWN_KEYS = {"inputs": "output, query, key, value, hidden, allowed", "pairs": ""}
_AXIS_PAIRS = f"""
        own_ranks = Gather (ranks, hidden)
        own_rows = Gather (axis_rows, hidden)
        own_flags = Cast <to = 7> (own)
        lengths = ReduceSum <keepdims = 0> (own_flags, last)
        pairs = {PAIRS_OF} (own_ranks, ranks, own_rows, axis_columns, lengths)
        allowed = And (pairs, own)
"""


def _axis_text(normalizer: Normalizer) -> str:
    return _TEXT.format(
        name="AxisHiddenFirst",
        attributes=AXIS_ATTRIBUTES,
        inputs="output, query, key, value, hidden, own, axis_rows, axis_columns, ranks",
        pairs=_AXIS_PAIRS,
        normalise=NORMALISE_ALLOWED[normalizer],
    )


SPARSEGEN_HIDDEN_FIRST = Function(
    GRAPH_DOMAIN,
    "SparsegenHiddenFirst",
    _TEXT.format(
        name="SparsegenHiddenFirst", attributes=", lambd: float", normalise=SPARSEGEN_OF, **_OWN_KEYS
    ),
)
SOFTMAX_HIDDEN_FIRST = Function(
    GRAPH_DOMAIN,
    "SoftmaxHiddenFirst",
    _TEXT.format(name="SoftmaxHiddenFirst", attributes="", normalise=SOFTMAX_OF, **_OWN_KEYS),
)
AXIS_HIDDEN_FIRST = Function(
    GRAPH_DOMAIN, "AxisHiddenFirst", {"softmax": _axis_text("softmax"), "sparsegen": _axis_text("sparsegen")}
)
