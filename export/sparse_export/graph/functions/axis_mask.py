"""`AxisMask`: the rows and columns that adaptive axis attention turns on, computed in float32."""

from sparse_export.graph.functions.function import Function
from sparse_serve.op_library import DOMAIN

_TEXT = """
AxisMask (hidden, weight, bias) => (rows, columns)
{
    zero = Constant <value_float: float = 0.0> ()
    first = Constant <value_int: int = 0> ()
    second = Constant <value_int: int = 1> ()
    hidden_f = Cast <to = 1> (hidden)
    weight_f = Cast <to = 1> (weight)
    bias_f = Cast <to = 1> (bias)
    weight_t = Transpose <perm = [1, 0]> (weight_f)
    products = MatMul (hidden_f, weight_t)
    logits = Add (products, bias_f)
    is_on = Greater (logits, zero)
    rows = Gather <axis = 1> (is_on, first)
    columns = Gather <axis = 1> (is_on, second)
}
"""

AXIS_MASK = Function(DOMAIN, "AxisMask", _TEXT)
