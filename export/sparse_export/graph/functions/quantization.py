"""The ops around a product of 8-bit integers whose left side has a scale of its own for each row."""

from sparse_export.graph.functions.function import GRAPH_DOMAIN, Function
from sparse_serve.op_library import DOMAIN

# Of a tensor without rows ONNX Runtime's ReduceMax keeps the columns.
QUANTIZE_ROWS = Function(
    DOMAIN,
    "QuantizeRows",
    """
QuantizeRows (values) => (quantized, scale)
{
    zero = Constant <value_float: float = 0.0> ()
    nan = Constant <value_float: float = nan> ()
    smallest = Constant <value_float: float = 7.888609052210118e-31> ()
    largest_int8 = Constant <value_float: float = 127.0> ()
    offset = Constant <value_float: float = 128.0> ()
    none = Constant <value_ints: ints = [0]> ()
    one = Constant <value_ints: ints = [1]> ()
    last = Constant <value_ints: ints = [-1]> ()

    magnitudes = Abs (values)
    largest = ReduceMax (magnitudes, last)
    is_zero = Less (largest, smallest)
    zeros = Mul (values, zero)
    zeros_sum = ReduceSum (zeros, last)
    is_bad = IsNaN (zeros_sum)

    factor = Div (largest_int8, largest)
    factor_or_zero = Where (is_zero, zero, factor)
    scaled = Mul (values, factor_or_zero)
    finite = Where (is_bad, zero, scaled)
    rounded = Round (finite)
    shifted = Add (rounded, offset)
    quantized = Cast <to = 2> (shifted)

    step = Div (largest, largest_int8)
    step_or_zero = Where (is_zero, zero, step)
    scales = Where (is_bad, nan, step_or_zero)
    scale = Slice (scales, none, one, last)
}
""",
)

DEQUANTIZE_ROWS = Function(
    DOMAIN,
    "DequantizeRows",
    """
DequantizeRows (products, scale, column_scale, bias) => (values)
{
    numbers = Cast <to = 1> (products)
    scaled = Mul (numbers, scale)
    both = Mul (scaled, column_scale)
    values = Add (both, bias)
}
""",
)

REQUANTIZE_GELU = Function(
    DOMAIN,
    "RequantizeGelu",
    f"""
RequantizeGelu (products, scale, column_scale, bias) => (quantized, row_scale)
{{
    values = {DOMAIN}.DequantizeRows (products, scale, column_scale, bias)
    activated = {GRAPH_DOMAIN}.Gelu (values)
    quantized, row_scale = {DOMAIN}.QuantizeRows (activated)
}}
""",
)

QUANTIZATION = (QUANTIZE_ROWS, DEQUANTIZE_ROWS, REQUANTIZE_GELU)
