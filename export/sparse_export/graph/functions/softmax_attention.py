"""`SoftmaxAttention` and `SoftmaxCrossAttention`: dense attention within each sequence."""

from sparse_export.graph.functions.function import Function
from sparse_export.graph.functions.packed_text import (
    ALL_KEYS,
    CROSS_ALL_KEYS,
    NOT_ZERO,
    OWN_NOT_ZERO,
    PACKED_ATTENTION,
)
from sparse_export.graph.functions.softmax_or_zero import SOFTMAX_OF
from sparse_serve.op_library import DOMAIN

SOFTMAX_ATTENTION = Function(
    DOMAIN,
    "SoftmaxAttention",
    PACKED_ATTENTION.format(
        name="SoftmaxAttention",
        attributes="",
        normalise=SOFTMAX_OF,
        counted=NOT_ZERO.format(kept="is_kept"),
        outputs="output",
        support="",
        **ALL_KEYS,
    ),
)

SOFTMAX_CROSS_ATTENTION = Function(
    DOMAIN,
    "SoftmaxCrossAttention",
    PACKED_ATTENTION.format(
        name="SoftmaxCrossAttention",
        attributes="",
        normalise=SOFTMAX_OF,
        counted=OWN_NOT_ZERO,
        outputs="output",
        support="",
        **CROSS_ALL_KEYS,
    ),
)
