"""`PaddedTokens`: packed tokens as a padded batch, for the dense twins that take one."""

from sparse_export.graph.functions.function import GRAPH_DOMAIN, Function

# Ids and types (T), borders (B + 1), to ids, mask and types (B, L), L the tokens of the longest row.
_TEXT = """
PaddedTokens <pad_id: int> (packed_ids, packed_types, cu_seqlens) => (ids, mask, types)
{
    first = Constant <value_ints: ints = [0]> ()
    second = Constant <value_ints: ints = [1]> ()
    last = Constant <value_ints: ints = [-1]> ()
    big = Constant <value_ints: ints = [9223372036854775807]> ()
    zero = Constant <value_int: int = 0> ()
    one = Constant <value_int: int = 1> ()
    borders = Cast <to = 7> (cu_seqlens)
    starts = Slice (borders, first, last)
    ends = Slice (borders, second, big)
    lengths = Sub (ends, starts)
    longest = ReduceMax <keepdims = 0> (lengths)
    places = Range (zero, longest, one)
    row_lengths = Unsqueeze (lengths, second)
    is_token = Less (places, row_lengths)
    mask = Cast <to = 7> (is_token)
    coordinates = NonZero (is_token)
    indices = Transpose <perm = [1, 0]> (coordinates)
    filler = Constant <value_int: int = @pad_id> ()
    shape = Shape (mask)
    no_ids = Expand (filler, shape)
    no_types = ConstantOfShape <value = int64[1] {0}> (shape)
    ids = ScatterND (no_ids, indices, packed_ids)
    types = ScatterND (no_types, indices, packed_types)
}
"""

PADDED_TOKENS = Function(GRAPH_DOMAIN, "PaddedTokens", _TEXT)
