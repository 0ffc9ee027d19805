"""Numbers that a rewrite adds to a graph."""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir


def constant(graph: ir.Graph, name: str, numbers: npt.NDArray[Any]) -> ir.Value:
    """Return the graph's initializer of that name, which is made where there is none."""
    if name not in graph.initializers:
        tensor = ir.tensor(np.asarray(numbers), name=name)
        graph.register_initializer(
            ir.Value(
                name=name,
                shape=ir.Shape(numbers.shape),
                type=ir.TensorType(tensor.dtype),
                const_value=tensor,
            )
        )
    return graph.initializers[name]
