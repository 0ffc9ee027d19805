"""Ops and graphs run by ONNX Runtime on tensors of torch, on a GPU, or on the processor to try it."""

import csv
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper
from torch import Tensor

from sparse_export.graph.functions import attach_functions
from sparse_serve.cuda import (
    CPU_PROVIDER,
    CUDA_PROVIDER,
    require_provider,
    require_runtime,
    session_providers,
)
from sparse_serve.digests import file_digest
from sparse_serve.environment import read_cpu, read_gpus
from sparse_serve.op_library import DOMAIN, OPSET_VERSION, Device, verify_library

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "ops"))

from one_op import OUTPUTS  # type: ignore[import-not-found]  # of the op tests

OPSET = 20
SECONDS, MIN_RUNS = 1.0, 5
WARMUP_RUNS = 3
ONNX_TYPES: Mapping[torch.dtype, int] = {
    torch.float32: TensorProto.FLOAT,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.int32: TensorProto.INT32,
    torch.int64: TensorProto.INT64,
    torch.bool: TensorProto.BOOL,
}
TORCH_TYPES = {kind: dtype for dtype, kind in ONNX_TYPES.items()}

Run = Callable[[], Any]
Feeds = Mapping[str, Tensor]


def environment(device: Device) -> dict[str, Any]:
    """Return what figures depend on besides the problem, after the device has been made ready.

    Raises:
        DeviceError: a GPU is asked for and cannot be used.
        OpLibraryError: the op library for the device is missing or not the one that was built.
    """
    if device == "cuda":
        require_runtime("the benchmark")
        # Shared with ONNX Runtime, which takes the default stream for none of ours.
        torch.cuda.set_stream(torch.cuda.Stream())
    gpu = next(iter(read_gpus() or ()), None)
    return {
        "device": device,
        "gpu": "" if gpu is None else gpu.name,
        "driver": "" if gpu is None else gpu.driver,
        "cpu": read_cpu().model,
        "cuda": torch.version.cuda or "",
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "op_library": file_digest(verify_library(device))[:12],
    }


class Session:
    """A graph of ONNX Runtime whose inputs and outputs are tensors on its own device."""

    def __init__(self, model: str | bytes, device: Device, *, has_library: bool = True) -> None:
        self.device = device
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if has_library:
            options.register_custom_ops_library(str(verify_library(device)))
        provider = CUDA_PROVIDER if device == "cuda" else CPU_PROVIDER
        providers = session_providers(provider)
        if device == "cuda":  # so that torch's events see what it does
            providers[0][1]["user_compute_stream"] = str(torch.cuda.current_stream().cuda_stream)
        self.session = onnxruntime.InferenceSession(model, options, providers=providers)
        require_provider(self.session, provider)
        self._run_options = onnxruntime.RunOptions()
        self._run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def bound(self, feeds: Feeds, outputs: Mapping[str, Tensor]) -> Run:
        """Return what runs the graph from tensors to tensors."""
        binding = self.session.io_binding()
        for name, tensor in feeds.items():
            kind, shape = ONNX_TYPES[tensor.dtype], list(tensor.shape)
            binding.bind_input(name, self.device, 0, kind, shape, tensor.data_ptr())
        for name, tensor in outputs.items():
            kind, shape = ONNX_TYPES[tensor.dtype], list(tensor.shape)
            binding.bind_output(name, self.device, 0, kind, shape, tensor.data_ptr())
        kept = (feeds, outputs)  # for as long as it may be run
        return lambda: kept and self.session.run_with_iobinding(binding, self._run_options)


def op_model(op: str, feeds: Feeds, **attributes: Any) -> bytes:
    """Return a graph of one node of our domain, with its function, whose types are those of its inputs."""
    values = [
        helper.make_tensor_value_info(name, ONNX_TYPES[tensor.dtype], [None] * tensor.dim())
        for name, tensor in feeds.items()
    ]
    own = values[0].type.tensor_type.elem_type
    results = [
        helper.make_tensor_value_info(name, own if kind is None else kind, None)
        for name, kind in OUTPUTS[op].items()
    ]
    node = helper.make_node(op, list(feeds), [each.name for each in results], domain=DOMAIN, **attributes)
    model = helper.make_model(
        helper.make_graph([node], "one_op", values, results),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, OPSET_VERSION)],
        ir_version=9,
    )
    attach_functions(model, OPSET)
    return bytes(model.SerializeToString())


def op_outputs(op: str, feeds: Feeds, heads: int) -> dict[str, Tensor]:
    """Return room for what an op answers: numbers as its first input, its support or indicators by token."""
    first = next(iter(feeds.values()))
    shapes = {"support": (len(first), heads), "rows": (len(first),), "columns": (len(first),)}
    return {
        name: torch.empty(
            shapes.get(name, tuple(first.shape)),
            dtype=first.dtype if kind is None else TORCH_TYPES[kind],
            device=first.device,
        )
        for name, kind in OUTPUTS[op].items()
    }


def synchronize(device: Device) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def time_runs(run: Run, device: Device, seconds: float = SECONDS) -> tuple[float, float, int]:
    """Return the best and the median seconds of a run, and how many were made; on a GPU by its events."""
    for _ in range(WARMUP_RUNS):
        run()
    synchronize(device)
    found: list[float] = []
    begun = time.perf_counter()
    while len(found) < MIN_RUNS or time.perf_counter() - begun < seconds:
        found.append(_event_seconds(run) if device == "cuda" else _clock_seconds(run))
    return min(found), statistics.median(found), len(found)


def _clock_seconds(run: Run) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def _event_seconds(run: Run) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def extra_memory(run: Run, device: Device) -> int | None:
    """Return the bytes of device memory that the first runs take from the GPU and keep; None on a processor.

    Torch's cache is emptied before, and what it then takes more is counted with the rest.
    """
    if device != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before, _ = torch.cuda.mem_get_info()
    for _ in range(WARMUP_RUNS):
        run()
    torch.cuda.synchronize()
    return before - torch.cuda.mem_get_info()[0]


def free_memory(device: Device) -> None:
    """Give back what torch keeps."""
    if device == "cuda":
        with suppress(RuntimeError):
            torch.cuda.empty_cache()


def write_csv(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write lines, all with the columns of the first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


def loaded(path: Path) -> onnx.ModelProto:
    return onnx.load(path, load_external_data=False)
