"""Model-local functions: every custom op once more, in standard ONNX operators; a file each.

A model carries the functions of the ops it uses. ONNX Runtime inlines them where the op library is not
loaded, so the file runs on a stock runtime; with the library the kernels are used and the bodies are ignored.
They form the scores of one sequence at a time, L×L, and are meant for portability, not for speed.

A new op is a file here and a line in `attach`.
"""

from sparse_export.graph.functions.attach import attach_functions, op_function
from sparse_export.graph.functions.function import GRAPH_DOMAIN

__all__ = ["GRAPH_DOMAIN", "attach_functions", "op_function"]
