"""Attention kernels of the op library beside their peers, in one process.

    python benchmarks/ops/attention.py [--threads 1] [--output attention.csv]

Every variant computes the same problem of `tests/cases.py`, all but the softmax ones sparsegen-lin
attention; on a CPU only our kernels take other types than float32. The variants take turns and the best time
of each counts. `fused_over_this` is the time of ONNX Runtime's fused softmax attention, in float32, over the
variant's: above 1 is faster than it.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, get_args

import entmax
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
import typer
from onnx import TensorProto, helper

from sparse_export.graph.functions import attach_functions
from sparse_serve.op_library import DOMAIN, OPSET_VERSION, library_path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from environment import columns
from lines import write_lines
from turns import Run, time_in_turns

from cases import BENCHMARK_CASES, AttentionCase, Element, aligned

OPSET = 20
ALIGNMENT = 64  # bytes
OURS = {"sparsegen_attention": "SparsegenAttention", "softmax_attention": "SoftmaxAttention"}
ELEMENTS: tuple[Element, ...] = get_args(Element)
REFERENCE: tuple[str, Element] = ("ort_fused_softmax", "float32")

Variant = tuple[str, Element]


def main(
    threads: Annotated[int, typer.Option(min=1, help="Threads of every variant.")] = 1,
    output: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path(__file__).parent
    / "results"
    / "attention.csv",
) -> None:
    """Time every variant on every case and write one CSV line for each."""
    torch.set_num_threads(threads)
    environment = environment_of(threads)
    lines: list[dict[str, Any]] = []
    for case in BENCHMARK_CASES:
        support = mean_support(case)
        variants = {
            (name, element): op_session(replace(case, element=element), op, threads)
            for name, op in OURS.items()
            for element in ELEMENTS
        } | {
            REFERENCE: fused_softmax(case, threads),
            ("ort_standard_ops_topk", "float32"): op_session(
                case, "SparsegenAttention", threads, with_library=False
            ),
            ("torch_entmax_sort", "float32"): torch_entmax(case),
        }
        best, rounds = time_in_turns(variants)
        for (name, element), seconds in best.items():
            lines.append(
                {
                    "case": case.name,
                    "variant": name,
                    "dtype": element,
                    "sequences": len(case.lengths),
                    "length": case.lengths[0],
                    "num_heads": case.num_heads,
                    "head_size": case.head_size,
                    "lambda": case.lambd,
                    "mean_support": round(support, 2),
                    "best_ms": round(seconds * 1e3, 4),
                    "fused_over_this": round(best[REFERENCE] / seconds, 3),
                    "rounds": rounds[name, element],
                }
                | environment
            )
            print(
                f"{case.name:20} {name:22} {element:9} {seconds * 1e3:10.3f} ms "
                f"{best[REFERENCE] / seconds:6.2f}x fused"
            )
    write_lines(output, lines)


def environment_of(threads: int) -> dict[str, Any]:
    """What the figures depend on besides the problem."""
    return {"threads": threads} | columns("cpu", "cores", "instruction_set", "onnxruntime", "torch", "numpy")


def session(
    model: onnx.ModelProto, threads: int, with_library: bool, *, arena: bool = True
) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = arena
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # the function's own shapes are unknown, which ORT would say at every run
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if with_library:
        options.register_custom_ops_library(str(library_path()))
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def op_session(case: AttentionCase, op: str, threads: int, *, with_library: bool = True) -> Run:
    """Run one op of ours on packed rows: its kernel, or its function of standard ops."""
    sparse = op == "SparsegenAttention"
    attributes: dict[str, Any] = {"num_heads": case.num_heads, "scale": case.scale} | (
        {"lambd": case.lambd} if sparse else {}
    )
    names = ["query", "key", "value", "cu_seqlens"]
    tensors = [array.astype(case.element) for array in case.inputs()]
    inputs = dict(zip(names, (*tensors, case.cu_seqlens), strict=True))
    kind = helper.np_dtype_to_tensor_dtype(tensors[0].dtype)
    outputs = {"output": kind} | ({"support": TensorProto.INT32} if sparse else {})
    graph = helper.make_graph(
        [helper.make_node(op, names, list(outputs), domain=DOMAIN, **attributes)],
        op,
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim
            )
            for name, array in inputs.items()
        ],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
    )
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, OPSET_VERSION)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    attach_functions(model, OPSET)
    runner = session(model, threads, with_library)
    feed = {name: ort_value(array) for name, array in inputs.items()}
    return lambda: runner.run_with_ort_values(None, feed)


def ort_value(array: npt.NDArray[Any]) -> onnxruntime.OrtValue:
    """Hand an array over without a copy at every run; ONNX Runtime's numpy interface has no bfloat16.

    It lies as ONNX Runtime lays what one node hands to the next; NumPy's own 16 bytes split vectors of 64.
    """
    array = aligned(array, ALIGNMENT)
    if array.dtype != "bfloat16":
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
        array.view(np.uint16), TensorProto.BFLOAT16
    )


def fused_softmax(case: AttentionCase, threads: int) -> Run:
    """Run ONNX Runtime's own fused attention on `(B, L, H·D)`."""
    names = ["query", "key", "value"]
    width = case.num_heads * case.head_size
    shape = (len(case.lengths), case.lengths[0], width)
    inputs = {name: ort_value(array.reshape(shape)) for name, array in zip(names, case.inputs(), strict=True)}
    graph = helper.make_graph(
        [
            helper.make_node(
                "MultiHeadAttention", names, ["output"], domain="com.microsoft", num_heads=case.num_heads
            )
        ],
        "fused",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None, width]) for name in names],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, None)],
    )
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    runner = session(helper.make_model(graph, opset_imports=imports, ir_version=9), threads, False)
    return lambda: runner.run_with_ort_values(None, inputs)


def torch_entmax(case: AttentionCase) -> Run:
    """Run eager torch with entmax' exact sparsemax by sorting."""
    shape = (len(case.lengths), case.lengths[0], case.num_heads, case.head_size)
    query, key, value = (torch.from_numpy(array).view(shape).transpose(1, 2) for array in case.inputs())
    factor = case.head_size**-0.5 / (1 - case.lambd)

    @torch.inference_mode()
    def run() -> torch.Tensor:
        weights: torch.Tensor = entmax.sparsemax(query @ key.transpose(-1, -2) * factor, dim=-1)
        return weights @ value

    return run


def mean_support(case: AttentionCase) -> float:
    """Return how many keys a query attends to, on average over rows and heads."""
    return float(op_session(case, "SparsegenAttention", 1)()[1].numpy().mean())


if __name__ == "__main__":
    typer.run(main)
