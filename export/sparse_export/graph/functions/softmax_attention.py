"""`SoftmaxAttention`: dense attention within each sequence."""

from sparse_export.graph.functions.function import Function
from sparse_export.graph.functions.packed_text import ALL_KEYS, NOT_ZERO, PACKED_ATTENTION
from sparse_serve.op_library import DOMAIN

SOFTMAX_ATTENTION = Function(
    DOMAIN,
    "SoftmaxAttention",
    PACKED_ATTENTION.format(
        name="SoftmaxAttention",
        attributes="",
        normalise="Softmax",
        counted=NOT_ZERO.format(kept="is_kept"),
        outputs="output",
        support="",
        **ALL_KEYS,
    ),
)
