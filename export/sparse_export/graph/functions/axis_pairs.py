"""`AxisPairs`: which pairs a pattern allows."""

from sparse_export.graph.functions.function import GRAPH_DOMAIN, Function

# The allowed pairs (R, K) of queries and keys by their ranks (R,) and (K,): by their axes, rows (R,) and
# columns (K,), their distance, and the keys drawn for each query among the first `lengths` (R,) or (1,).
_TEXT = """
AxisPairs <diagonals: ints = [], random_keys: int = 0, seed: int = 0>
    (query_ranks, key_ranks, rows, columns, lengths) => (allowed)
{
    zero = Constant <value_int: int = 0> ()
    one = Constant <value_int: int = 1> ()
    two = Constant <value_int: int = 2> ()
    first = Constant <value_ints: ints = [1]> ()
    last = Constant <value_ints: ints = [-1]> ()

    row_on = Unsqueeze (rows, last)
    on_axis = Or (row_on, columns)

    i = Unsqueeze (query_ranks, last)
    difference = Sub (i, key_ranks)
    distance = Abs (difference)
    offsets = Constant <value_ints: ints = @diagonals> ()
    no_distance = Constant <value_ints: ints = [-1]> ()
    some_offsets = Concat <axis = 0> (no_distance, offsets)
    keys = Size (key_ranks)
    beyond = Add (keys, two)
    distances = Range (zero, beyond, one)
    distances_2d = Unsqueeze (distances, last)
    is_offset = Equal (distances_2d, some_offsets)
    offset_flags = Cast <to = 2> (is_offset)
    offset_flag = ReduceMax <keepdims = 0> (offset_flags, last)
    flag = Gather (offset_flag, distance)
    on_diagonal = Cast <to = 9> (flag)

    given_seed = Constant <value_int: int = @seed> ()
    prime = Constant <value_int: int = 2147483647> ()
    seed_below = Mod (given_seed, prime)
    of_seed = GRAPH.RandomHash (seed_below)
    of_seed_and_row = Add (of_seed, i)
    before_row = Add (of_seed_and_row, one)
    of_row = GRAPH.RandomHash (before_row)
    draws = Constant <value_int: int = @random_keys> ()
    after_draws = Add (draws, one)
    draw = Range (one, after_draws, one)
    before_draw = Add (of_row, draw)
    of_draw = GRAPH.RandomHash (before_draw)
    lengths_2d = Unsqueeze (lengths, last)
    lengths_safe = Max (lengths_2d, one)
    drawn = Mod (of_draw, lengths_safe)
    nowhere = Sub (i, i)
    no_rank = Sub (nowhere, two)
    some_drawn = Concat <axis = 1> (no_rank, drawn)
    drawn_3d = Unsqueeze (some_drawn, last)
    is_drawn = Equal (drawn_3d, key_ranks)
    drawn_flags = Cast <to = 2> (is_drawn)
    drawn_flag = ReduceMax <keepdims = 0> (drawn_flags, first)
    at_random = Cast <to = 9> (drawn_flag)

    fixed = Or (on_diagonal, at_random)
    allowed = Or (on_axis, fixed)
}
""".replace("GRAPH.", f"{GRAPH_DOMAIN}.")

AXIS_PAIRS = Function(GRAPH_DOMAIN, "AxisPairs", _TEXT)

PAIRS_ATTRIBUTES = ", diagonals: ints = [], random_keys: int = 0, seed: int = 0"
# Inside another function that has those attributes.
PAIRS_OF = (
    f"{GRAPH_DOMAIN}.AxisPairs "
    "<diagonals: ints = @diagonals, random_keys: int = @random_keys, seed: int = @seed>"
)
