"""What the ops of packed attention have in common: the text of one loop over the sequences."""

# `{mask}` may hide some of the scores (H, L, L), `{normalise}` turns them into weights, and `{counted}` says
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
    split = Concat <axis = 0> (none, heads_1d, last)

    width = Shape <start = 1> (query)
    head_size = Div (width, heads_1d)
    head_size_float = Cast <to = 1> (head_size)
    root = Sqrt (head_size_float)
    default_scale = Reciprocal (root)
    given_scale = Constant <value_float: float = @scale> ()
    is_default = Equal (given_scale, zero)
    factor = Where (is_default, default_scale, given_scale)

    borders = Cast <to = 7> (cu_seqlens)
    big = Constant <value_ints: ints = [9223372036854775807]> ()
    starts = Slice (borders, none, last)
    ends = Slice (borders, first, big)
    has_tokens = Less (starts, ends)
    row_starts = Compress <axis = 0> (starts, has_tokens)
    row_ends = Compress <axis = 0> (ends, has_tokens)
    sequences = Size (row_starts)
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
        k_rows = Slice (key_f, start_1d, end_1d)
        v_rows = Slice (value_f, start_1d, end_1d)
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

ALL_KEYS = {"inputs": "query, key, value, cu_seqlens", "mask": "", "normalised": "scores"}
SUPPORT = {"outputs": "output, support", "support": "support = Identity (counts)"}

NOT_ZERO = """
        is_zero = Equal (weights, zero)
        {kept} = Not (is_zero)
"""
