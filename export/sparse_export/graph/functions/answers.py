"""What a graph that takes text makes of its logits: scores, and in words what they say, `(B, 1)` strings.

`sparse_serve.tasks` has the same for the server-side tokenizer. Numbers as text are ONNX's `Cast`, which
rounds them to eight digits.
"""

from sparse_export.graph.functions.function import GRAPH_DOMAIN, Function

BEST_LABEL = Function(
    GRAPH_DOMAIN,
    "BestLabel",
    """
BestLabel <labels: strings> (logits) => (scores, label)
{
    scores = Softmax <axis = 1> (logits)
    best = ArgMax <axis = 1, keepdims = 1> (logits)
    names = Constant <value_strings: strings = @labels> ()
    label = Gather (names, best)
}
""",
)

# `labels` are JSON strings, in quotes.
LABELS_ABOVE_HALF = Function(
    GRAPH_DOMAIN,
    "LabelsAboveHalf",
    f"""
LabelsAboveHalf <labels: strings> (logits) => (scores, label)
{{
    scores = Sigmoid (logits)
    half = Constant <value_float: float = 0.5> ()
    is_chosen = GreaterOrEqual (scores, half)
    names = Constant <value_strings: strings = @labels> ()
    shape = Shape (logits)
    every = Expand (names, shape)
    label = {GRAPH_DOMAIN}.JsonArray (every, is_chosen)
}}
""",
)

VALUE = Function(
    GRAPH_DOMAIN,
    "Value",
    """
Value (logits) => (scores, label)
{
    scores = Identity (logits)
    label = Cast <to = 8> (logits)
}
""",
)

VALUES = Function(
    GRAPH_DOMAIN,
    "Values",
    f"""
Values (logits) => (scores, label)
{{
    scores = Identity (logits)
    numbers = Cast <to = 8> (logits)
    shape = Shape (logits)
    ones = ConstantOfShape <value = int64[1] {{1}}> (shape)
    every = Cast <to = 9> (ones)
    label = {GRAPH_DOMAIN}.JsonArray (numbers, every)
}}
""",
)

# Of items (B, C), those chosen, one after another.
JSON_ARRAY = Function(
    GRAPH_DOMAIN,
    "JsonArray",
    """
JsonArray (items, chosen) => (array)
{
    one = Constant <value_int: int = 1> ()
    columns = Constant <value_ints: ints = [1]> ()
    first = Constant <value_ints: ints = [0]> ()
    nothing = Constant <value_string: string = ""> ()
    comma = Constant <value_string: string = ", "> ()
    opening = Constant <value_string: string = "["> ()
    closing = Constant <value_string: string = "]"> ()

    flags = Cast <to = 7> (chosen)
    rank = CumSum (flags, one)
    is_later = Greater (rank, one)
    follows = And (is_later, chosen)
    separators = Where (follows, comma, nothing)
    words = Where (chosen, items, nothing)
    pieces = StringConcat (separators, words)

    rows = Shape <start = 0, end = 1> (items)
    one_column = Concat <axis = 0> (rows, columns)
    begun = Expand (opening, one_column)
    count_1d = Shape <start = 1, end = 2> (items)
    count = Squeeze (count_1d, first)
    go_on = Constant <value_int: int = 1> ()
    proceed = Cast <to = 9> (go_on)
    written = Loop (count, proceed, begun) <body = one_item
        (int64 index, bool unused, string[B, 1] before) => (bool again, string[B, 1] after)
    {
        again = Identity (unused)
        index_1d = Reshape (index, columns)
        piece = Gather <axis = 1> (pieces, index_1d)
        after = StringConcat (before, piece)
    }>
    array = StringConcat (written, closing)
}
""",
)

ANSWERS = (BEST_LABEL, LABELS_ABOVE_HALF, VALUE, VALUES, JSON_ARRAY)
