"""`RandomHash`: the permutation of numbers by which random keys are drawn (see `attention.patterns`)."""

from sparse_export.graph.functions.function import GRAPH_DOMAIN, Function

# (x + c)^5 modulo 2^31 - 1, a permutation of the numbers below it: no product leaves 62 bits.
_TEXT = """
RandomHash (x) => (hash)
{
    prime = Constant <value_int: int = 2147483647> ()
    shift = Constant <value_int: int = 1580030168> ()
    shifted = Add (x, shift)
    y = Mod (shifted, prime)
    y_y = Mul (y, y)
    y2 = Mod (y_y, prime)
    y2_y2 = Mul (y2, y2)
    y4 = Mod (y2_y2, prime)
    y4_y = Mul (y4, y)
    hash = Mod (y4_y, prime)
}
"""

RANDOM_HASH = Function(GRAPH_DOMAIN, "RandomHash", _TEXT)
