"""What a graph of token ids asks of those that a client sends, before anything is looked up by them."""

from sparse_export.graph.functions.function import GRAPH_DOMAIN, Function

# Ids, the nearest that there are, and which are unchanged by that.
KNOWN_IDS = Function(
    GRAPH_DOMAIN,
    "KnownIds",
    """
KnownIds <last: int> (ids) => (known, is_known)
{
    zero = Constant <value_int: int = 0> ()
    most = Constant <value_int: int = @last> ()
    known = Clip (ids, zero, most)
    is_known = Equal (known, ids)
}
""",
)

# Of ids (B, L), the columns (L) that have a position.
COLUMNS_WITHIN = Function(
    GRAPH_DOMAIN,
    "ColumnsWithin",
    """
ColumnsWithin <positions: int> (ids) => (is_within)
{
    zero = Constant <value_int: int = 0> ()
    one = Constant <value_int: int = 1> ()
    most = Constant <value_int: int = @positions> ()
    length_1d = Shape <start = 1, end = 2> (ids)
    length = Squeeze (length_1d)
    columns = Range (zero, length, one)
    is_within = Less (columns, most)
}
""",
)

# Of ids (B, L), those (B, L) that have a position where only ids that are not padding are counted.
COUNTED_WITHIN = Function(
    GRAPH_DOMAIN,
    "CountedWithin",
    """
CountedWithin <positions: int, pad_id: int> (ids) => (is_within)
{
    one = Constant <value_int: int = 1> ()
    most = Constant <value_int: int = @positions> ()
    padding = Constant <value_int: int = @pad_id> ()
    is_padding = Equal (ids, padding)
    is_counted = Not (is_padding)
    counted = Cast <to = 7> (is_counted)
    count = CumSum (counted, one)
    is_within = LessOrEqual (count, most)
}
""",
)

# Which rows (B, 1) of a mask (B, L) have a token, and read one that cannot be: a head reads the first column
# even where the mask hides it.
UNREADABLE_ROWS = Function(
    GRAPH_DOMAIN,
    "UnreadableRows",
    """
UnreadableRows (mask, is_readable) => (is_unreadable)
{
    zero = Constant <value_int: int = 0> ()
    one = Constant <value_int: int = 1> ()
    columns_axis = Constant <value_ints: ints = [1]> ()
    is_token = Cast <to = 9> (mask)
    length_1d = Shape <start = 1, end = 2> (mask)
    length = Squeeze (length_1d)
    columns = Range (zero, length, one)
    is_first = Equal (columns, zero)
    is_read = Or (is_token, is_first)
    is_bad = Not (is_readable)
    is_read_and_bad = And (is_read, is_bad)
    tokens = Cast <to = 6> (is_token)
    bad = Cast <to = 6> (is_read_and_bad)
    any_token = ReduceMax <keepdims = 1> (tokens, columns_axis)
    any_bad = ReduceMax <keepdims = 1> (bad, columns_axis)
    both = Min (any_token, any_bad)
    is_unreadable = Cast <to = 9> (both)
}
""",
)

TOKEN_IDS = (KNOWN_IDS, COLUMNS_WITHIN, COUNTED_WITHIN, UNREADABLE_ROWS)
