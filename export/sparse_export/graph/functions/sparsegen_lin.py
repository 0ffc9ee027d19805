"""`SparsegenLin`: sparsegen-lin by sorting, Eq. 6 of the SSAF paper."""

from sparse_export.graph.functions.function import Function
from sparse_serve.op_library import DOMAIN

# NaN or +inf makes its row NaN; a row of −inf becomes zeros.
_TEXT = """
SparsegenLin <lambd: float, axis: int = -1> (scores) => (weights)
{
    zero = Constant <value_float: float = 0.0> ()
    one = Constant <value_float: float = 1.0> ()
    lambda = Constant <value_float: float = @lambd> ()
    axis = Constant <value_int: int = @axis> ()
    minus_one = Constant <value_ints: ints = [-1]> ()
    axes = Reshape (axis, minus_one)

    e = Cast <to = 1> (scores)
    peak = ReduceMax (e, axes)
    minus_inf = Constant <value_float: float = -inf> ()
    is_empty = Equal (peak, minus_inf)
    safe_peak = Where (is_empty, zero, peak)
    shifted = Sub (e, safe_peak)
    divisor = Sub (one, lambda)
    z = Div (shifted, divisor)

    shape = Shape (z)
    length = Gather (shape, axes)
    sorted_z, order = TopK <axis: int = @axis> (z, length)
    cumulative = CumSum (sorted_z, axis)
    ones = Expand (one, shape)
    k = CumSum (ones, axis)
    k_z = Mul (k, sorted_z)
    one_k_z = Add (one, k_z)
    in_support = Greater (one_k_z, cumulative)
    flags = Cast <to = 1> (in_support)
    counted = ReduceSum (flags, axes)
    count = Max (counted, one)
    members = Where (in_support, sorted_z, zero)
    total = ReduceSum (members, axes)
    excess = Sub (total, one)
    tau = Div (excess, count)
    above = Sub (z, tau)
    clipped = Max (above, zero)
    projected = Where (is_empty, zero, clipped)

    is_nan = IsNaN (e)
    is_inf = IsInf <detect_negative = 0> (e)
    bad = Or (is_nan, is_inf)
    bad_flags = Cast <to = 1> (bad)
    bad_rows = ReduceMax (bad_flags, axes)
    is_bad = Cast <to = 9> (bad_rows)
    nan = Constant <value_float: float = nan> ()
    result = Where (is_bad, nan, projected)
    weights = CastLike (result, scores)
}
"""

SPARSEGEN_LIN = Function(DOMAIN, "SparsegenLin", _TEXT)

# Over the last axis, inside another function that has the attribute `lambd`.
SPARSEGEN_OF = f"{DOMAIN}.SparsegenLin <lambd: float = @lambd>"
