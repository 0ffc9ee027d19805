"""Attention kernels of the op library beside their peers, in one process.

    python benchmarks/ops/attention.py [--threads 1] [--output attention.csv]

Every variant computes the same problem of `tests/cases.py`, all but the softmax ones sparsegen-lin attention;
on a CPU only our kernels take other types than float32. Short problems are computed up to eight times in one
run, by as many `nodes`, as the layers of a model are: a run alone takes ONNX Runtime as long as attention to
a hundred tokens. The nodes read the same tensors, which so lie in the caches, as do those that a layer's
products have just written, and write the same, as layers do that hand memory on to each other. Tensors are
bound before. The variants take turns and the best time of each counts; each run that counts follows one that
does not. `fused_over_this` is the time of ONNX Runtime's fused softmax attention, in float32, over the
variant's, both at their best in the turns that both ran: above 1 is faster than it.
"""

import sys
from collections.abc import Mapping
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
from turns import Run, best_ratio, time_in_turns

from cases import BENCHMARK_CASES, AttentionCase, Element, aligned

OPSET = 20
ALIGNMENT = 64  # bytes
OURS = {"sparsegen_attention": "SparsegenAttention", "softmax_attention": "SoftmaxAttention"}
ELEMENTS: tuple[Element, ...] = get_args(Element)
REFERENCE: tuple[str, Element] = ("ort_fused_softmax", "float32")

MOST_NODES, TOKENS_OF_RUN = 8, 4096

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
        nodes = nodes_of_run(case)
        variants = {
            (name, element): op_session(replace(case, element=element), op, threads, nodes)
            for name, op in OURS.items()
            for element in ELEMENTS
        } | {
            REFERENCE: fused_softmax(case, threads, nodes),
            ("ort_standard_ops_topk", "float32"): op_session(
                case, "SparsegenAttention", threads, nodes, with_library=False
            ),
            ("torch_entmax_sort", "float32"): torch_entmax(case, nodes),
        }
        times = time_in_turns(variants, warm=True)
        for (name, element), of_variant in times.items():
            seconds, ratio = min(of_variant) / nodes, best_ratio(times[REFERENCE], of_variant)
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
                    "nodes": nodes,
                    "best_ms": round(seconds * 1e3, 4),
                    "fused_over_this": round(ratio, 3),
                    "rounds": len(of_variant),
                }
                | environment
            )
            print(f"{case.name:20} {name:22} {element:9} {seconds * 1e3:10.3f} ms {ratio:6.2f}x fused")
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
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if with_library:
        options.register_custom_ops_library(str(library_path()))
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def nodes_of_run(case: AttentionCase) -> int:
    """How many nodes compute the problem in one run."""
    return min(MOST_NODES, max(1, TOKENS_OF_RUN // sum(case.lengths)))


def run_of_nodes(
    node: onnx.NodeProto,
    inputs: dict[str, npt.NDArray[Any]],
    outputs: Mapping[str, int],
    nodes: int,
    threads: int,
    *,
    with_library: bool,
    arena: bool = True,
) -> Run:
    """Run copies of a node. Their inputs have names of their own: copies with the same inputs become one.

    A run returns the outputs of one of them. Handing tensors over at every run would take longer than a short
    problem: they are bound once.
    """
    values = {name: ort_value(array) for name, array in inputs.items()}
    copies, graph_inputs, graph_outputs, feed = [], [], [], {}
    for number in range(nodes):
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = f"copy_{number}"
        copy.input[:] = [f"{name}_{number}" for name in inputs]
        copy.output[:] = [f"{name}_{number}" for name in outputs]
        copies.append(copy)
        for name, array in inputs.items():
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            graph_inputs.append(helper.make_tensor_value_info(f"{name}_{number}", kind, [None] * array.ndim))
            feed[f"{name}_{number}"] = values[name]
        graph_outputs += [
            helper.make_tensor_value_info(f"{name}_{number}", kind, None) for name, kind in outputs.items()
        ]
    graph = helper.make_graph(copies, "copies", graph_inputs, graph_outputs)
    imports = [
        helper.make_opsetid(*each) for each in {"": OPSET, DOMAIN: OPSET_VERSION, "com.microsoft": 1}.items()
    ]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    if node.domain == DOMAIN:
        attach_functions(model, OPSET)
    runner = session(model, threads, with_library, arena=arena)
    written: list[onnxruntime.OrtValue] = runner.run_with_ort_values(None, feed)[: len(outputs)]
    binding = runner.io_binding()
    for name, value in feed.items():
        binding.bind_ortvalue_input(name, value)
    for each, value in zip(graph_outputs, written * nodes, strict=True):
        binding.bind_ortvalue_output(each.name, value)

    def run() -> list[onnxruntime.OrtValue]:
        runner.run_with_iobinding(binding)
        return written

    return run


def op_session(
    case: AttentionCase, op: str, threads: int, nodes: int = 1, *, with_library: bool = True
) -> Run:
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
    node = helper.make_node(op, names, list(outputs), domain=DOMAIN, **attributes)
    return run_of_nodes(node, inputs, outputs, nodes, threads, with_library=with_library)


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


def fused_softmax(case: AttentionCase, threads: int, nodes: int = 1) -> Run:
    """Run ONNX Runtime's own fused attention on `(B, L, H·D)`."""
    names = ["query", "key", "value"]
    width = case.num_heads * case.head_size
    shape = (len(case.lengths), case.lengths[0], width)
    inputs = {name: array.reshape(shape) for name, array in zip(names, case.inputs(), strict=True)}
    node = helper.make_node(
        "MultiHeadAttention", names, ["output"], domain="com.microsoft", num_heads=case.num_heads
    )
    return run_of_nodes(node, inputs, {"output": TensorProto.FLOAT}, nodes, threads, with_library=False)


def torch_entmax(case: AttentionCase, times: int = 1) -> Run:
    """Run eager torch with entmax' exact sparsemax by sorting."""
    shape = (len(case.lengths), case.lengths[0], case.num_heads, case.head_size)
    query, key, value = (torch.from_numpy(array).view(shape).transpose(1, 2) for array in case.inputs())
    factor = case.head_size**-0.5 / (1 - case.lambd)

    @torch.inference_mode()
    def run() -> None:
        for _ in range(times):
            entmax.sparsemax(query @ key.transpose(-1, -2) * factor, dim=-1) @ value

    return run


def mean_support(case: AttentionCase) -> float:
    """Return how many keys a query attends to, on average over rows and heads."""
    return float(op_session(case, "SparsegenAttention", 1)()[1].numpy().mean())


if __name__ == "__main__":
    typer.run(main)
