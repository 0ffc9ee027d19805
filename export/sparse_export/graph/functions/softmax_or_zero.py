"""`SoftmaxOrZero`: softmax over the last axis; a row of −inf becomes zeros."""

from sparse_export.graph.functions.function import GRAPH_DOMAIN, Function

_TEXT = """
SoftmaxOrZero (scores) => (weights)
{
    last = Constant <value_ints: ints = [-1]> ()
    zero = Constant <value_float: float = 0.0> ()
    minus_inf = Constant <value_float: float = -inf> ()
    is_hidden = Equal (scores, minus_inf)
    hidden_flags = Cast <to = 1> (is_hidden)
    hidden_all = ReduceMin (hidden_flags, last)
    is_empty = Cast <to = 9> (hidden_all)
    safe = Where (is_empty, zero, scores)
    shares = Softmax (safe)
    weights = Where (is_empty, zero, shares)
}
"""

SOFTMAX_OR_ZERO = Function(GRAPH_DOMAIN, "SoftmaxOrZero", _TEXT)
SOFTMAX_OF = f"{GRAPH_DOMAIN}.{SOFTMAX_OR_ZERO.name}"
