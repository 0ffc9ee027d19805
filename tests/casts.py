"""A node between casts, so that numpy's float32 reaches it as float16 or bfloat16 and comes back."""

from collections.abc import Container

import numpy as np
from onnx import NodeProto, TensorProto, helper

from cases import Element


def between_casts(node: NodeProto, floats: Container[str], element: Element) -> list[NodeProto]:
    """Return nodes that compute `node` on `element`; what `floats` names stays float32.

    ONNX Runtime's Python API has no bfloat16.
    """
    if element == "float32":
        return [node]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(element))
    before = [helper.make_node("Cast", [n], [f"{n}_cast"], to=kind) for n in node.input if n in floats]
    after = [
        helper.make_node("Cast", [f"{n}_cast"], [n], to=TensorProto.FLOAT) for n in node.output if n in floats
    ]
    for names in (node.input, node.output):
        names[:] = [f"{name}_cast" if name in floats else name for name in names]
    return [*before, node, *after]
