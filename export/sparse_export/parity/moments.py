"""What linear layers read on texts: by that their weights are rounded to integers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from sparse_export.graph.int8 import linear_inputs
from sparse_export.parity.examples import Batch
from sparse_export.parity.executions import feeds_of, open_session

Array = npt.NDArray[Any]


def input_moments(graph: Path, op_library: Path, batches: Sequence[Batch]) -> dict[str, Array]:
    """Run a graph in float32, and return the products of the inputs of its linear layers, summed over rows.

    Args:
        graph: as it is quantized afterwards.
        op_library: path of `libsparse_ops.so`.
        batches: what it is asked.

    Returns:
        by the name of the value that layers read, `(K, K)` float64; padding counts for nothing.
    """
    model = onnx.load(graph)
    names = linear_inputs(model)
    model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    session = open_session(model.SerializeToString(), graph.parent, op_library)
    moments: dict[str, Array] = {}
    for batch in batches:
        is_token = batch["attention_mask"] != 0
        for name, values in zip(names, session.run(names, feeds_of(session, batch)), strict=True):
            is_padded = values.shape[:-1] == is_token.shape
            rows = values[is_token] if is_padded else values.reshape(-1, values.shape[-1])
            moments[name] = moments.get(name, 0.0) + (rows.T @ rows).astype(np.float64)
    return moments
