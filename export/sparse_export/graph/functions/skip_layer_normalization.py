"""`SkipLayerNormalization`: a residual sum and the norm behind it."""

from sparse_export.graph.functions.function import Function
from sparse_serve.op_library import DOMAIN

_TEXT = """
SkipLayerNormalization <epsilon: float> (input, skip, gamma, beta, bias) => (output)
{
    biased = Add (input, bias)
    sum = Add (biased, skip)
    output = LayerNormalization <axis: int = -1, epsilon: float = @epsilon> (sum, gamma, beta)
}
"""

SKIP_LAYER_NORMALIZATION = Function(DOMAIN, "SkipLayerNormalization", _TEXT)
