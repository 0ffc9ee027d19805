"""`SparsegenAttention` and `SparsegenCrossAttention`: attention with sparsegen-lin, and its support."""

from sparse_export.graph.functions.function import Function
from sparse_export.graph.functions.packed_text import (
    ALL_KEYS,
    CROSS_ALL_KEYS,
    NOT_ZERO,
    OWN_NOT_ZERO,
    PACKED_ATTENTION,
    SUPPORT,
)
from sparse_export.graph.functions.sparsegen_lin import SPARSEGEN_OF
from sparse_serve.op_library import DOMAIN

SPARSEGEN_ATTENTION = Function(
    DOMAIN,
    "SparsegenAttention",
    PACKED_ATTENTION.format(
        name="SparsegenAttention",
        attributes=", lambd: float",
        normalise=SPARSEGEN_OF,
        counted=NOT_ZERO.format(kept="is_kept"),
        **ALL_KEYS,
        **SUPPORT,
    ),
)

SPARSEGEN_CROSS_ATTENTION = Function(
    DOMAIN,
    "SparsegenCrossAttention",
    PACKED_ATTENTION.format(
        name="SparsegenCrossAttention",
        attributes=", lambd: float",
        normalise=SPARSEGEN_OF,
        counted=OWN_NOT_ZERO,
        **CROSS_ALL_KEYS,
        **SUPPORT,
    ),
)
