"""Model-local functions: every custom op once more, in standard ONNX operators.

A model carries the functions of the ops it uses. ONNX Runtime inlines them where the op library is not
loaded, so the file runs on a stock runtime; with the library the kernels are used and the bodies are ignored.
They form the scores of one sequence at a time, L×L, and are meant for portability, not for speed.
"""

from collections.abc import Iterable

from onnx import FunctionProto, ModelProto, NodeProto, helper, parser

from sparse_serve.op_library import DOMAIN, OPSET_VERSION

# The exported graph's own helpers, never kernels: they live beside the ops, in a domain of their own.
GRAPH_DOMAIN = f"{DOMAIN}.graph"

# Eq. 6 of the SSAF paper by sorting. NaN or +inf makes its row NaN; a row of −inf becomes zeros.
_SPARSEGEN_LIN = """
SparsegenLin <lambd: float, axis: int = -1> (scores) => (weights)
{
    zero = Constant <value_float: float = 0.0> ()
    one = Constant <value_float: float = 1.0> ()
    lambda = Constant <value_float: float = @lambd> ()
    axis = Constant <value_int: int = @axis> ()
    minus_one = Constant <value_ints: ints = [-1]> ()
    axes = Reshape (axis, minus_one)

    e = Cast <to = 1> (scores)
    peak = ReduceMax (e, axes)
    minus_inf = Constant <value_float: float = -inf> ()
    is_empty = Equal (peak, minus_inf)
    safe_peak = Where (is_empty, zero, peak)
    shifted = Sub (e, safe_peak)
    divisor = Sub (one, lambda)
    z = Div (shifted, divisor)

    shape = Shape (z)
    length = Gather (shape, axes)
    sorted_z, order = TopK <axis: int = @axis> (z, length)
    cumulative = CumSum (sorted_z, axis)
    ones = Expand (one, shape)
    k = CumSum (ones, axis)
    k_z = Mul (k, sorted_z)
    one_k_z = Add (one, k_z)
    in_support = Greater (one_k_z, cumulative)
    flags = Cast <to = 1> (in_support)
    counted = ReduceSum (flags, axes)
    count = Max (counted, one)
    members = Where (in_support, sorted_z, zero)
    total = ReduceSum (members, axes)
    excess = Sub (total, one)
    tau = Div (excess, count)
    above = Sub (z, tau)
    clipped = Max (above, zero)
    projected = Where (is_empty, zero, clipped)

    is_nan = IsNaN (e)
    is_inf = IsInf <detect_negative = 0> (e)
    bad = Or (is_nan, is_inf)
    bad_flags = Cast <to = 1> (bad)
    bad_rows = ReduceMax (bad_flags, axes)
    is_bad = Cast <to = 9> (bad_rows)
    nan = Constant <value_float: float = nan> ()
    result = Where (is_bad, nan, projected)
    weights = CastLike (result, scores)
}
"""

# `{mask}` may hide some of the scores (H, L, L), `{normalise}` turns them into weights, and `{counted}` says
# which of these count as support; the rest is common to all packed attention.
_PACKED_ATTENTION = """
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

# The allowed pairs (R, K) of queries and keys by their ranks (R,) and (K,): by their axes, rows (R,) and
# columns (K,), their distance, and the keys drawn for each query among the first `lengths` (R,) or (1,).
_AXIS_PAIRS = """
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
"""

# (x + c)^5 modulo 2^31 - 1, a permutation of the numbers below it: no product leaves 62 bits.
_RANDOM_HASH = """
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

# Softmax over the last axis; a row of −inf becomes zeros.
_SOFTMAX_OR_ZERO = """
SoftmaxOrZero (scores) => (weights)
{
    last = Constant <value_ints: ints = [-1]> ()
    zero = Constant <value_float: float = 0.0> ()
    minus_inf = Constant <value_float: float = -inf> ()
    is_hidden = Equal (scores, minus_inf)
    hidden_flags = Cast <to = 1> (is_hidden)
    hidden_all = ReduceMin (hidden_flags, last)
    is_empty = Cast <to = 9> (hidden_all)
    safe = Where (is_empty, zero, scores)
    shares = Softmax (safe)
    weights = Where (is_empty, zero, shares)
}
"""

_AXIS_ATTRIBUTES = (
    ', diagonals: ints = [], random_keys: int = 0, seed: int = 0, normalizer: string = "softmax"'
    ", lambd: float = 0.0"
)
_FIXED_PAIRS = "<diagonals: ints = @diagonals, random_keys: int = @random_keys, seed: int = @seed>"

_AXIS_MASK = """
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

# Only allowed scores count, of each sequence's own rows and columns.
_AXIS_SCORES = f"""
        own_rows = Slice (rows, start_1d, end_1d)
        own_columns = Slice (columns, start_1d, end_1d)
        length = Sub (end, start)
        length_1d = Sub (end_1d, start_1d)
        rank_zero = Constant <value_int: int = 0> ()
        rank_one = Constant <value_int: int = 1> ()
        ranks = Range (rank_zero, length, rank_one)
        allowed = {GRAPH_DOMAIN}.AxisPairs {_FIXED_PAIRS} (ranks, ranks, own_rows, own_columns, length_1d)
        minus_inf = Constant <value_float: float = -inf> ()
        masked = Where (allowed, scores, minus_inf)
"""
_NOT_ZERO = """
        is_zero = Equal (weights, zero)
        {kept} = Not (is_zero)
"""
# A softmax weight may vanish in float32: what counts is that its pair is allowed.
_ALLOWED = """
        weights_shape = Shape (weights)
        is_kept = Expand (allowed, weights_shape)
"""
_ALLOWED_AND_NOT_ZERO = (
    _NOT_ZERO.format(kept="is_not_zero")
    + """
        is_kept = And (is_not_zero, allowed)
"""
)

# Queries that are no keys (see `packed`): dense over all tokens under `allowed` (R, T), which `{pairs}` may
# compute, and only where R > 0.
_HIDDEN_FIRST_TOKENS = """
{name} <num_heads: int, scale: float{attributes}>
    ({inputs}) => (replaced)
{{
    one = Constant <value_ints: ints = [1]> ()
    none = Constant <value_ints: ints = [0]> ()
    last = Constant <value_ints: ints = [-1]> ()
    heads = Constant <value_int: int = @num_heads> ()
    heads_1d = Reshape (heads, one)
    split = Concat <axis = 0> (none, heads_1d, last)
    factor = Constant <value_float: float = @scale> ()
    count = Size (hidden)
    zero = Constant <value_int: int = 0> ()
    any = Greater (count, zero)
    updates = If (any) <then_branch = attend () => (float[R, W] attended) {{
        own_queries = Gather (query, hidden)
        q_rows = Cast <to = 1> (own_queries)
        k_rows = Cast <to = 1> (key)
        v_rows = Cast <to = 1> (value)
        q_split = Reshape (q_rows, split)
        k_split = Reshape (k_rows, split)
        v_split = Reshape (v_rows, split)
        q = Transpose <perm = [1, 0, 2]> (q_split)
        k_transposed = Transpose <perm = [1, 2, 0]> (k_split)
        v = Transpose <perm = [1, 0, 2]> (v_split)
        products = MatMul (q, k_transposed)
        scores = Mul (products, factor)
        minus_inf = Constant <value_float: float = -inf> ()
        {pairs}
        masked = Where (allowed, scores, minus_inf)
        weights = {normalise} (masked)
        heads_out = MatMul (weights, v)
        rows_out = Transpose <perm = [1, 0, 2]> (heads_out)
        rows_shape = Shape (q_rows)
        attended = Reshape (rows_out, rows_shape)
    }}, else_branch = skip () => (float[R, W] nothing) {{
        no_rows = Gather (query, hidden)
        nothing = Cast <to = 1> (no_rows)
    }}>
    indices = Unsqueeze (hidden, last)
    replacements = CastLike (updates, output)
    replaced = ScatterND (output, indices, replacements)
}}
"""

_AXIS_HIDDEN_PAIRS = f"""
        own_ranks = Gather (ranks, hidden)
        own_rows = Gather (axis_rows, hidden)
        own_flags = Cast <to = 7> (own)
        lengths = ReduceSum <keepdims = 0> (own_flags, last)
        pairs = {GRAPH_DOMAIN}.AxisPairs {_FIXED_PAIRS} (own_ranks, ranks, own_rows, axis_columns, lengths)
        allowed = And (pairs, own)
"""

_SPARSEGEN_OF = f"{DOMAIN}.SparsegenLin <lambd: float = @lambd>"
_SPARSEGEN = {"attributes": ", lambd: float", "normalise": _SPARSEGEN_OF}
_SOFTMAX = {"attributes": "", "normalise": "Softmax"}
_ALL_KEYS = {
    "inputs": "query, key, value, cu_seqlens",
    "mask": "",
    "normalised": "scores",
    "counted": _NOT_ZERO.format(kept="is_kept"),
}
_OWN_KEYS = {"inputs": "output, query, key, value, hidden, allowed", "pairs": ""}
_SUPPORT = {"outputs": "output, support", "support": "support = Identity (counts)"}

# A body cannot choose by a string attribute: there is one text for each normalizer.
_NORMALISE_ALLOWED = {"softmax": f"{GRAPH_DOMAIN}.SoftmaxOrZero", "sparsegen": _SPARSEGEN_OF}
_COUNT_ALLOWED = {"softmax": _ALLOWED, "sparsegen": _ALLOWED_AND_NOT_ZERO}


def _texts(normalizer: str) -> dict[tuple[str, str], str]:
    """Return the text of every function, those of axis attention with the given normalizer."""
    normalise = _NORMALISE_ALLOWED[normalizer]
    ops = {
        "SparsegenLin": _SPARSEGEN_LIN,
        "SparsegenAttention": _PACKED_ATTENTION.format(
            name="SparsegenAttention", **_ALL_KEYS, **_SUPPORT, **_SPARSEGEN
        ),
        "SoftmaxAttention": _PACKED_ATTENTION.format(
            name="SoftmaxAttention", outputs="output", support="", **_ALL_KEYS, **_SOFTMAX
        ),
        "AxisMask": _AXIS_MASK,
        "AxisAttention": _PACKED_ATTENTION.format(
            name="AxisAttention",
            attributes=_AXIS_ATTRIBUTES,
            inputs="query, key, value, rows, columns, cu_seqlens",
            mask=_AXIS_SCORES,
            normalise=normalise,
            normalised="masked",
            counted=_COUNT_ALLOWED[normalizer],
            **_SUPPORT,
        ),
    }
    helpers = {
        "SparsegenHiddenFirst": _HIDDEN_FIRST_TOKENS.format(
            name="SparsegenHiddenFirst", **_OWN_KEYS, **_SPARSEGEN
        ),
        "SoftmaxHiddenFirst": _HIDDEN_FIRST_TOKENS.format(name="SoftmaxHiddenFirst", **_OWN_KEYS, **_SOFTMAX),
        "AxisHiddenFirst": _HIDDEN_FIRST_TOKENS.format(
            name="AxisHiddenFirst",
            attributes=_AXIS_ATTRIBUTES,
            inputs="output, query, key, value, hidden, own, axis_rows, axis_columns, ranks",
            pairs=_AXIS_HIDDEN_PAIRS,
            normalise=normalise,
        ),
        "AxisPairs": _AXIS_PAIRS.replace("GRAPH.", f"{GRAPH_DOMAIN}."),
        "RandomHash": _RANDOM_HASH,
        "SoftmaxOrZero": _SOFTMAX_OR_ZERO,
    }
    return {(DOMAIN, name): text for name, text in ops.items()} | {
        (GRAPH_DOMAIN, name): text for name, text in helpers.items()
    }


def op_function(op_type: str, opset: int, normalizer: str = "softmax") -> FunctionProto:
    """Return the standard-operator definition of a custom op, by its name in domain `ai.sparse_serve`.

    `normalizer`, "softmax" or "sparsegen", is that of the nodes: a function cannot choose by an attribute.
    """
    return _parse(DOMAIN, _texts(normalizer)[DOMAIN, op_type], opset)


def attach_functions(model: ModelProto, opset: int) -> None:
    """Add to `model` the functions of every op of ours it uses, nested ones included, and their domains.

    A node of `AxisAttention` may leave its second output out; the model says so by an empty name afterwards,
    as ONNX Runtime refuses a function with more outputs than its node.

    Raises:
        ValueError: nodes of axis attention in one model differ in `normalizer`, or it is unknown.
    """
    texts = _texts(_normalizer_of(model))
    for node in model.graph.node:
        if (node.domain, node.op_type) == (DOMAIN, "AxisAttention") and len(node.output) == 1:
            node.output.append("")
    pending = _ours(model.graph.node)
    attached: dict[tuple[str, str], FunctionProto] = {}
    while pending:
        key = pending.pop()
        if key not in attached:
            attached[key] = _parse(key[0], texts[key], opset)
            pending += _ours(attached[key].node)
    del model.functions[:]
    model.functions.extend(attached[key] for key in sorted(attached))
    other = [entry for entry in model.opset_import if entry.domain not in (DOMAIN, GRAPH_DOMAIN)]
    del model.opset_import[:]
    model.opset_import.extend(other)
    for domain in sorted({domain for domain, _ in attached}):
        model.opset_import.append(helper.make_opsetid(domain, OPSET_VERSION))


def _normalizer_of(model: ModelProto) -> str:
    found = {
        next((a.s.decode() for a in node.attribute if a.name == "normalizer"), "softmax")
        for node in model.graph.node
        if node.domain in (DOMAIN, GRAPH_DOMAIN) and node.op_type in ("AxisAttention", "AxisHiddenFirst")
    } or {"softmax"}
    if len(found) > 1 or not found <= _NORMALISE_ALLOWED.keys():
        raise ValueError(
            f"the model's nodes of axis attention have normalizers {sorted(found)}; accepted: one of "
            f"{sorted(_NORMALISE_ALLOWED)} for all of them"
        )
    return found.pop()


def _parse(domain: str, text: str, opset: int) -> FunctionProto:
    domains = [DOMAIN] + ([GRAPH_DOMAIN] if f"{GRAPH_DOMAIN}." in text else [])
    imports = ", ".join([f'"" : {opset}', *(f'"{name}" : {OPSET_VERSION}' for name in domains)])
    return parser.parse_function(f'<domain: "{domain}", opset_import: [{imports}]>{text}')


def _ours(nodes: Iterable[NodeProto]) -> list[tuple[str, str]]:
    """Return domain and name of every op of ours that the nodes, their subgraphs included, call."""
    found = []
    graphs = [nodes]
    while graphs:
        for node in graphs.pop():
            if node.domain in (DOMAIN, GRAPH_DOMAIN):
                found.append((node.domain, node.op_type))
            graphs += [attribute.g.node for attribute in node.attribute if attribute.HasField("g")]
    return found
