"""What the ops of packed attention have in common: the text of one loop over the sequences."""

# `{mask}` may hide some of the scores (H, Q, K), `{normalise}` turns them into weights, and `{counted}` says
# which of these count as support; the rest is common to all packed attention.
PACKED_ATTENTION = """
{name} <num_heads: int{attributes}, scale: float = 0.0> ({inputs}) => ({outputs})
{{
    zero = Constant <value_float: float = 0.0> ()
    none = Constant <value_ints: ints = [0]> ()
    first = Constant <value_ints: ints = [1]> ()
    last = Constant <value_ints: ints = [-1]> ()
    heads = Constant <value_int: int = @num_heads> ()
    heads_1d = Reshape (heads, first)

    width = Shape <start = 1> (query)
    head_size = Div (width, heads_1d)
    split = Concat <axis = 0> (none, heads_1d, head_size)
    head_size_float = Cast <to = 1> (head_size)
    root = Sqrt (head_size_float)
    default_scale = Reciprocal (root)
    given_scale = Constant <value_float: float = @scale> ()
    is_default = Equal (given_scale, zero)
    factor = Where (is_default, default_scale, given_scale)

    borders = Cast <to = 7> ({cu_seqlens_q})
    big = Constant <value_ints: ints = [9223372036854775807]> ()
    starts = Slice (borders, none, last)
    ends = Slice (borders, first, big)
    has_queries = Less (starts, ends)
    row_starts = Compress <axis = 0> (starts, has_queries)
    row_ends = Compress <axis = 0> (ends, has_queries)
    sequences = Size (row_starts)
    {key_borders}
    go_on = Constant <value_int: int = 1> ()
    proceed = Cast <to = 9> (go_on)

    query_f = Cast <to = 1> (query)
    key_f = Cast <to = 1> (key)
    value_f = Cast <to = 1> (value)
    no_rows = Slice (query_f, none, none)
    support_shape = Concat <axis = 0> (none, heads_1d)
    no_support = ConstantOfShape <value = int32[1] {{0}}> (support_shape)
    attended, counts = Loop (sequences, proceed, no_rows, no_support) <body = one_sequence
        (int64 index, bool unused, float[T, W] done, int32[T, H] counted)
        => (bool again, float[U, W] done_next, int32[U, H] counted_next)
    {{
        again = Identity (unused)
        start = Gather (row_starts, index)
        start_1d = Reshape (start, first)
        end = Gather (row_ends, index)
        end_1d = Reshape (end, first)
        q_rows = Slice (query_f, start_1d, end_1d)
        {keys_and_values}
        q_split = Reshape (q_rows, split)
        k_split = Reshape (k_rows, split)
        v_split = Reshape (v_rows, split)
        q = Transpose <perm = [1, 0, 2]> (q_split)
        k_transposed = Transpose <perm = [1, 2, 0]> (k_split)
        v = Transpose <perm = [1, 0, 2]> (v_split)
        products = MatMul (q, k_transposed)
        scores = Mul (products, factor)
        {mask}
        weights = {normalise} ({normalised})
        heads_out = MatMul (weights, v)
        rows_out = Transpose <perm = [1, 0, 2]> (heads_out)
        rows_shape = Shape (q_rows)
        flat = Reshape (rows_out, rows_shape)
        done_next = Concat <axis = 0> (done, flat)
        {counted}
        kept = Cast <to = 6> (is_kept)
        per_head = ReduceSum <keepdims = 0> (kept, last)
        per_row = Transpose <perm = [1, 0]> (per_head)
        counted_next = Concat <axis = 0> (counted, per_row)
    }}>
    output = CastLike (attended, query)
    {support}
}}
"""

# Queries that are the tokens.
OF_TOKENS = {
    "cu_seqlens_q": "cu_seqlens",
    "key_borders": "",
    "keys_and_values": """
        k_rows = Slice (key_f, start_1d, end_1d)
        v_rows = Slice (value_f, start_1d, end_1d)
    """,
}
# Queries beside the keys, of sequences that may have none: one more that none may attend to stands behind
# them, so that no tensor is empty. `is_own` says which are the sequence's.
CROSS = {
    "cu_seqlens_q": "cu_seqlens_q",
    "key_borders": """
    borders_k = Cast <to = 7> (cu_seqlens_k)
    starts_k = Slice (borders_k, none, last)
    ends_k = Slice (borders_k, first, big)
    key_starts = Compress <axis = 0> (starts_k, has_queries)
    key_ends = Compress <axis = 0> (ends_k, has_queries)
    one_row = Concat <axis = 0> (first, width)
    no_key = ConstantOfShape <value = float[1] {0}> (one_row)
    """,
    "keys_and_values": """
        key_start = Gather (key_starts, index)
        first_key = Reshape (key_start, first)
        key_end = Gather (key_ends, index)
        behind_keys = Reshape (key_end, first)
        own_k = Slice (key_f, first_key, behind_keys)
        own_v = Slice (value_f, first_key, behind_keys)
        k_rows = Concat <axis = 0> (own_k, no_key)
        v_rows = Concat <axis = 0> (own_v, no_key)
        rank_zero = Constant <value_int: int = 0> ()
        rank_one = Constant <value_int: int = 1> ()
        length = Sub (key_end, key_start)
        one_more = Add (length, rank_one)
        ranks = Range (rank_zero, one_more, rank_one)
        is_own = Less (ranks, length)
        minus_inf = Constant <value_float: float = -inf> ()
    """,
}

ALL_KEYS = {**OF_TOKENS, "inputs": "query, key, value, cu_seqlens", "mask": "", "normalised": "scores"}
CROSS_ALL_KEYS = {
    **CROSS,
    "inputs": "query, key, value, cu_seqlens_q, cu_seqlens_k",
    "mask": "masked = Where (is_own, scores, minus_inf)",
    "normalised": "masked",
}
SUPPORT = {"outputs": "output, support", "support": "support = Identity (counts)"}

NOT_ZERO = """
        is_zero = Equal (weights, zero)
        {kept} = Not (is_zero)
"""
OWN_NOT_ZERO = (
    NOT_ZERO.format(kept="is_not_zero")
    + """
        is_kept = And (is_not_zero, is_own)
"""
)
