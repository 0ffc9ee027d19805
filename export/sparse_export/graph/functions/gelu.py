"""`BiasGelu`, and GELU itself in operators that every opset has.

ONNX Runtime makes one kernel of this way to write it.
"""

from sparse_export.graph.functions.function import GRAPH_DOMAIN, Function
from sparse_serve.op_library import DOMAIN

GELU = Function(
    GRAPH_DOMAIN,
    "Gelu",
    """
Gelu (values) => (activated)
{
    half = Constant <value_float: float = 0.5> ()
    one = Constant <value_float: float = 1.0> ()
    root = Constant <value_float: float = 1.4142135623730951> ()
    scaled = Div (values, root)
    error = Erf (scaled)
    share = Add (error, one)
    product = Mul (values, share)
    activated = Mul (product, half)
}
""",
)

BIAS_GELU = Function(
    DOMAIN,
    "BiasGelu",
    f"""
BiasGelu (input, bias) => (output)
{{
    sum = Add (input, bias)
    output = {GRAPH_DOMAIN}.Gelu (sum)
}}
""",
)
