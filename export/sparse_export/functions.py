"""Model-local functions: every custom op once more, in standard ONNX operators.

A model carries the functions of the ops it uses. ONNX Runtime inlines them where the op library is not
loaded, so the file runs on a stock runtime; with the library the kernels are used and the bodies are ignored.
They form the scores of one sequence at a time, L×L, and are meant for portability, not for speed.
"""

from onnx import FunctionProto, ModelProto, helper, parser

from sparse_serve.op_library import DOMAIN, OPSET_VERSION

# The exported graph's own helper, never a kernel: it lives beside the ops, in a domain of its own.
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

# `{normalise}` turns scores (H, L, L) into weights; the rest is common to all packed attention.
_PACKED_ATTENTION = """
{name} <num_heads: int{attributes}, scale: float = 0.0> (query, key, value, cu_seqlens) => ({outputs})
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
    rows, counts = Loop (sequences, proceed, no_rows, no_support) <body = one_sequence
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
        weights = {normalise} (scores)
        heads_out = MatMul (weights, v)
        rows_out = Transpose <perm = [1, 0, 2]> (heads_out)
        rows_shape = Shape (q_rows)
        flat = Reshape (rows_out, rows_shape)
        done_next = Concat <axis = 0> (done, flat)
        is_zero = Equal (weights, zero)
        is_kept = Not (is_zero)
        kept = Cast <to = 6> (is_kept)
        per_head = ReduceSum <keepdims = 0> (kept, last)
        per_row = Transpose <perm = [1, 0]> (per_head)
        counted_next = Concat <axis = 0> (counted, per_row)
    }}>
    output = CastLike (rows, query)
    {support}
}}
"""

# Queries that are no keys (see `packed`): dense over all tokens under `allowed` (R, T), and only where R > 0.
_HIDDEN_FIRST_TOKENS = """
{name} <num_heads: int, scale: float{attributes}>
    (output, query, key, value, rows, allowed) => (replaced)
{{
    one = Constant <value_ints: ints = [1]> ()
    none = Constant <value_ints: ints = [0]> ()
    last = Constant <value_ints: ints = [-1]> ()
    heads = Constant <value_int: int = @num_heads> ()
    heads_1d = Reshape (heads, one)
    split = Concat <axis = 0> (none, heads_1d, last)
    factor = Constant <value_float: float = @scale> ()
    count = Size (rows)
    zero = Constant <value_int: int = 0> ()
    any = Greater (count, zero)
    updates = If (any) <then_branch = attend () => (float[R, W] attended) {{
        own_rows = Gather (query, rows)
        q_rows = Cast <to = 1> (own_rows)
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
        masked = Where (allowed, scores, minus_inf)
        weights = {normalise} (masked)
        heads_out = MatMul (weights, v)
        rows_out = Transpose <perm = [1, 0, 2]> (heads_out)
        rows_shape = Shape (q_rows)
        attended = Reshape (rows_out, rows_shape)
    }}, else_branch = skip () => (float[R, W] nothing) {{
        no_rows = Gather (query, rows)
        nothing = Cast <to = 1> (no_rows)
    }}>
    indices = Unsqueeze (rows, last)
    replacements = CastLike (updates, output)
    replaced = ScatterND (output, indices, replacements)
}}
"""

_SPARSEGEN = {"attributes": ", lambd: float", "normalise": f"{DOMAIN}.SparsegenLin <lambd: float = @lambd>"}
_SOFTMAX = {"attributes": "", "normalise": "Softmax"}

_OPS = {
    "SparsegenLin": _SPARSEGEN_LIN,
    "SparsegenAttention": _PACKED_ATTENTION.format(
        name="SparsegenAttention",
        outputs="output, support",
        support="support = Identity (counts)",
        **_SPARSEGEN,
    ),
    "SoftmaxAttention": _PACKED_ATTENTION.format(
        name="SoftmaxAttention", outputs="output", support="", **_SOFTMAX
    ),
}
_GRAPH_FUNCTIONS = {
    "SparsegenHiddenFirst": _HIDDEN_FIRST_TOKENS.format(name="SparsegenHiddenFirst", **_SPARSEGEN),
    "SoftmaxHiddenFirst": _HIDDEN_FIRST_TOKENS.format(name="SoftmaxHiddenFirst", **_SOFTMAX),
}


def op_function(op_type: str, opset: int) -> FunctionProto:
    """Return the standard-operator definition of a custom op, by its name in domain `ai.sparse_serve`."""
    return _parse(DOMAIN, _OPS[op_type], opset)


def attach_functions(model: ModelProto, opset: int) -> None:
    """Add to `model` the functions of every op of ours it uses, nested ones included, and their domains."""
    used = {(node.domain, node.op_type) for node in model.graph.node}
    pending = [key for key in used if key[0] in (DOMAIN, GRAPH_DOMAIN)]
    attached: dict[tuple[str, str], FunctionProto] = {}
    while pending:
        domain, op_type = key = pending.pop()
        if key in attached:
            continue
        texts = _OPS if domain == DOMAIN else _GRAPH_FUNCTIONS
        attached[key] = function = _parse(domain, texts[op_type], opset)
        pending += [(DOMAIN, name) for name in _OPS if _mentions(function, name)]
    del model.functions[:]
    model.functions.extend(attached[key] for key in sorted(attached))
    other = [entry for entry in model.opset_import if entry.domain not in (DOMAIN, GRAPH_DOMAIN)]
    del model.opset_import[:]
    model.opset_import.extend(other)
    for domain in sorted({domain for domain, _ in attached}):
        model.opset_import.append(helper.make_opsetid(domain, OPSET_VERSION))


def _parse(domain: str, text: str, opset: int) -> FunctionProto:
    imports = f'"" : {opset}, "{DOMAIN}" : {OPSET_VERSION}'
    return parser.parse_function(f'<domain: "{domain}", opset_import: [{imports}]>{text}')


def _mentions(function: FunctionProto, op_type: str) -> bool:
    """Whether a body, its subgraphs included, calls the op `op_type` of our domain."""
    graphs = [function.node]
    while graphs:
        for node in graphs.pop():
            if (node.domain, node.op_type) == (DOMAIN, op_type):
                return True
            graphs += [attribute.g.node for attribute in node.attribute if attribute.HasField("g")]
    return False
