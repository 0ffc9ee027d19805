"""Models of one node of our domain, run with a given op library, or with none by the op's function."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import ModelProto, TensorProto, helper

from axis_cases import AxisCase
from cases import AttentionCase, Element
from casts import between_casts
from cross_cases import AskedQueries
from sparse_export.graph.functions import attach_functions
from sparse_serve.op_library import DOMAIN, OPSET_VERSION, library_path

Array = npt.NDArray[Any]

# None: the type of the first input.
OUTPUTS: dict[str, dict[str, int | None]] = {
    "SparsegenLin": {"weights": None},
    "SparsegenAttention": {"output": None, "support": TensorProto.INT32},
    "SoftmaxAttention": {"output": None},
    "AxisMask": {"rows": TensorProto.BOOL, "columns": TensorProto.BOOL},
    "AxisAttention": {"output": None, "support": TensorProto.INT32},
    "QuantizeRows": {"quantized": TensorProto.UINT8, "scale": None},
    "DequantizeRows": {"values": TensorProto.FLOAT},
    "RequantizeGelu": {"quantized": TensorProto.UINT8, "row_scale": TensorProto.FLOAT},
    "BiasGelu": {"output": None},
    "SkipLayerNormalization": {"output": None},
    "SparsegenCrossAttention": {"output": None, "support": TensorProto.INT32},
    "SoftmaxCrossAttention": {"output": None},
    "AxisCrossAttention": {"output": None, "support": TensorProto.INT32},
}

OPSET = 20


# The path of a build with sanitizers, or of the one with kernels for GPUs.
SANITIZED = os.environ.get("SPARSE_OPS_TEST_LIBRARY")


def library_under_test() -> Path:
    """Return the installed library, or the one SPARSE_OPS_TEST_LIBRARY names."""
    return Path(SANITIZED or library_path())


def op_model(
    op: str,
    inputs: dict[str, Array],
    shapes: dict[str, Any] | None = None,
    element: Element = "float32",
    outputs: Sequence[str] | None = None,
    **attributes: Any,
) -> bytes:
    """Return a serialized model; input types come from the arrays, shapes from `shapes` or unknown sizes.

    Where the node's own `element` is another type, float32 inputs are cast to it, and its outputs back. The
    node has all of its op's outputs, or the first ones that `outputs` names.
    """
    values = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(array.dtype),
            shapes[name] if shapes else [None] * array.ndim,
        )
        for name, array in inputs.items()
    ]
    own = values[0].type.tensor_type.elem_type
    results = [
        helper.make_tensor_value_info(name, own if kind is None else kind, None)
        for name, kind in OUTPUTS[op].items()
        if outputs is None or name in outputs
    ]
    names = [result.name for result in results]
    node = helper.make_node(op, list(inputs), names, domain=DOMAIN, **attributes)
    kinds = {value.name: value.type.tensor_type.elem_type for value in (*values, *results)}
    floats = {name for name, kind in kinds.items() if kind == TensorProto.FLOAT}
    model = helper.make_model(
        helper.make_graph(between_casts(node, floats, element), "one_op", values, results),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, OPSET_VERSION)],
        ir_version=9,
    )
    return model.SerializeToString()  # type: ignore[no-any-return]


def session_options(library: Path, threads: int = 1) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(library))
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4
    # An arena's blocks lie beside each other, unseen by sanitizers.
    options.enable_cpu_mem_arena = SANITIZED is None
    return options


def open_session(model: bytes, library: Path, threads: int = 1) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(
        model, session_options(library, threads), providers=["CPUExecutionProvider"]
    )


def run_op(
    library: Path,
    op: str,
    inputs: dict[str, Array],
    threads: int = 1,
    element: Element = "float32",
    outputs: Sequence[str] | None = None,
    **attributes: Any,
) -> list[Array]:
    model = op_model(op, inputs, element=element, outputs=outputs, **attributes)
    answers: list[Array] = open_session(model, library, threads).run(None, inputs)
    return answers


def run_function(
    op: str,
    inputs: dict[str, Array],
    element: Element = "float32",
    outputs: Sequence[str] | None = None,
    **attributes: Any,
) -> list[Array]:
    """Answer as a runtime without the library does."""
    model = ModelProto.FromString(op_model(op, inputs, element=element, outputs=outputs, **attributes))
    attach_functions(model, OPSET)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    answers: list[Array] = session.run(None, inputs)
    return answers


def attention_inputs(case: AttentionCase) -> dict[str, Array]:
    query, key, value = case.inputs()
    return {"query": query, "key": key, "value": value, "cu_seqlens": case.cu_seqlens}


def attention_attributes(op: str, case: AttentionCase) -> dict[str, Any]:
    attributes: dict[str, Any] = {"num_heads": case.num_heads, "scale": case.scale}
    return attributes | ({"lambd": case.lambd} if op == "SparsegenAttention" else {})


def run_attention(library: Path, op: str, case: AttentionCase, threads: int = 1) -> list[Array]:
    return run_op(
        library, op, attention_inputs(case), threads, case.element, **attention_attributes(op, case)
    )


def axis_inputs(case: AxisCase) -> dict[str, Array]:
    rows, columns = case.indicators()
    tensors = attention_inputs(case.attention)
    return {"query": tensors["query"], "key": tensors["key"], "value": tensors["value"]} | {
        "rows": rows,
        "columns": columns,
        "cu_seqlens": tensors["cu_seqlens"],
    }


def cross_inputs(inputs: dict[str, Array], queries: AskedQueries) -> dict[str, Array]:
    """Return the inputs of cross-attention, by those of the op whose queries are the tokens."""
    crossed = {"query": inputs["query"][queries.tokens], "key": inputs["key"], "value": inputs["value"]}
    if "rows" in inputs:
        crossed |= {"query_tokens": queries.tokens, "rows": inputs["rows"], "columns": inputs["columns"]}
    return crossed | {"cu_seqlens_q": queries.cu_seqlens, "cu_seqlens_k": inputs["cu_seqlens"]}


def axis_attributes(case: AxisCase) -> dict[str, Any]:
    # The type of an empty list cannot be told.
    diagonals = {"diagonals": list(case.diagonals)} if case.diagonals else {}
    return diagonals | {
        "num_heads": case.attention.num_heads,
        "scale": case.attention.scale,
        "random_keys": case.random_keys,
        "seed": case.seed,
        "normalizer": case.normalizer,
        "lambd": case.attention.lambd,
    }


def run_axis(library: Path, case: AxisCase, threads: int = 1) -> list[Array]:
    return run_op(
        library,
        "AxisAttention",
        axis_inputs(case),
        threads,
        case.attention.element,
        **axis_attributes(case),
    )


def bits(array: Array) -> Array:
    """Return a float32 array's bit patterns: equal only where the last bit is."""
    return np.ascontiguousarray(array).view(np.uint32)


def assert_same_bits(found: list[Array], expected: list[Array]) -> None:
    """See that outputs of an op are others of it, to the last bit."""
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))
