"""A model of one node of our domain, run on a stock ONNX Runtime by its function of standard operators."""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper

from cases import Element
from casts import between_casts
from sparse_export.graph.functions import attach_functions
from sparse_serve.op_library import DOMAIN

Array = npt.NDArray[Any]


def run(
    op_type: str,
    inputs: dict[str, Array],
    outputs: dict[str, int],
    opset: int = 20,
    *,
    element: Element = "float32",
    domain: str = DOMAIN,
    **attributes: Any,
) -> list[Array]:
    """Run one node of our domain without the op library; `outputs` maps names to ONNX types.

    With another `element` the node's tensors are of that type, where the arrays are float32.
    """
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim)
        for name, array in inputs.items()
    ]
    # Every op answers in the rank of its first input, but for flags, which are one for each token.
    ranks = dict.fromkeys(outputs, next(iter(inputs.values())).ndim)
    ranks |= {name: 1 for name, kind in outputs.items() if kind == TensorProto.BOOL}
    results = [
        helper.make_tensor_value_info(name, kind, [None] * ranks[name]) for name, kind in outputs.items()
    ]
    node = helper.make_node(op_type, list(inputs), list(outputs), domain=domain, **attributes)
    floats = {name for name, array in inputs.items() if array.dtype == np.float32}
    floats |= {name for name, kind in outputs.items() if kind == TensorProto.FLOAT}
    model = helper.make_model(
        helper.make_graph(between_casts(node, floats, element), "one_op", values, results),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=9 if opset < 21 else 11,
    )
    attach_functions(model, opset)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    answers: list[Array] = session.run(None, inputs)
    return answers
