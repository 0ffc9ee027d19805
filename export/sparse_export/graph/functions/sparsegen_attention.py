"""`SparsegenAttention`: attention with sparsegen-lin within each sequence, and its support."""

from sparse_export.graph.functions.function import Function
from sparse_export.graph.functions.packed_text import ALL_KEYS, NOT_ZERO, PACKED_ATTENTION, SUPPORT
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
