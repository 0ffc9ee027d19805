"""Ops and graphs run by ONNX Runtime on tensors of torch, on a GPU, or on the processor to try it."""

import csv
import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
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
from sparse_serve.environment import read_gpus
from sparse_serve.errors import DeviceError
from sparse_serve.op_library import DOMAIN, OPSET_VERSION, Device, verify_library

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "ops"))

from environment import columns
from one_op import OUTPUTS  # type: ignore[import-not-found]  # of the op tests

OPSET = 20
SECONDS, MIN_RUNS = 1.0, 5
WARMUP_RUNS = 3
# Between two events, so that a launch is no part of what they tell apart; the queue of a stream holds about a
# thousand launches, and a call is a few.
GROUP_SECONDS, MOST_GROUPED = 0.01, 50
SLEEP_CYCLES_PER_SECOND = 2e9  # at the highest clock there is
ONNX_TYPES: Mapping[torch.dtype, int] = {
    torch.float32: TensorProto.FLOAT,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.int32: TensorProto.INT32,
    torch.int64: TensorProto.INT64,
    torch.bool: TensorProto.BOOL,
}
TORCH_TYPES = {kind: dtype for dtype, kind in ONNX_TYPES.items()}
# The ops that have kernels for GPUs.
ON_GPU = frozenset(OUTPUTS).difference(
    ("QuantizeRows", "DequantizeRows", "RequantizeGelu", "BiasGelu", "SkipLayerNormalization")
)

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
        **columns("cpu"),
        "cuda": torch.version.cuda or "",
        **columns("torch", "onnxruntime"),
        "op_library": file_digest(verify_library(device))[:12],
    }


class Session:
    """A graph of ONNX Runtime whose inputs and outputs are tensors on its own device.

    The `ours` among its ops are computed by our kernels for the device, and by no function or other device;
    with `wholly`, nothing is computed elsewhere.

    Raises:
        DeviceError: they are not.
    """

    def __init__(
        self,
        model: str | bytes,
        device: Device,
        *,
        has_library: bool = True,
        ours: Collection[str] = (),
        wholly: bool = False,
    ) -> None:
        self.device = device
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if has_library:
            options.register_custom_ops_library(str(verify_library(device)))
        provider = CUDA_PROVIDER if device == "cuda" else CPU_PROVIDER
        providers = session_providers(provider)
        if device == "cuda":  # so that torch's events see what it does
            providers[0][1]["user_compute_stream"] = str(torch.cuda.current_stream().cuda_stream)
        if device == "cuda" and wholly:  # ONNX Runtime refuses it beside a processor that is named
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
            providers = providers[:1]
        self.session = onnxruntime.InferenceSession(model, options, providers=providers)
        require_provider(self.session, provider)
        require_kernels(self.session, ours, provider)
        self._run_options = onnxruntime.RunOptions()
        self._run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def bound(self, feeds: Feeds, outputs: Mapping[str, Tensor]) -> Run:
        """Return what runs the graph from tensors to tensors."""
        binding = self.session.io_binding()
        empty = torch.empty(1, device=self.device)  # a tensor without elements has no address
        for name, tensor in feeds.items():
            kind, shape = ONNX_TYPES[tensor.dtype], list(tensor.shape)
            binding.bind_input(name, self.device, 0, kind, shape, tensor.data_ptr() or empty.data_ptr())
        for name, tensor in outputs.items():
            kind, shape = ONNX_TYPES[tensor.dtype], list(tensor.shape)
            binding.bind_output(name, self.device, 0, kind, shape, tensor.data_ptr() or empty.data_ptr())
        kept = (feeds, outputs, empty)  # for as long as it may be run
        return lambda: kept and self.session.run_with_iobinding(binding, self._run_options)


def require_kernels(session: Any, ops: Collection[str], provider: str) -> None:
    """Refuse a session that computes one of our ops by anything but our kernel for a provider.

    Raises:
        DeviceError: it does; names the op.
    """
    placed: dict[str, set[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        for node in part.get_nodes():
            if node.domain == DOMAIN:
                placed.setdefault(node.op_type, set()).add(part.ep_name)
    for op in ops:
        found = placed.get(op, {"its function"})
        if found != {provider}:
            raise DeviceError(
                f"{op} is computed by {', '.join(sorted(found))} where {provider} was asked for"
            )


def op_model(op: str, feeds: Feeds, *, has_function: bool = False, **attributes: Any) -> bytes:
    """Return a graph of one node, with its function or without; types are those of its inputs."""
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
    if has_function:
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


@dataclass(frozen=True)
class Seconds:
    """What a run takes.

    Attributes:
        best, median: of a run; on a GPU by its events, over as many runs as keep it busy.
        host: until a run has been handed to the GPU; None on a processor.
        runs: how many were timed.
    """

    best: float
    median: float
    host: float | None
    runs: int

    def columns(self) -> dict[str, Any]:
        """Return the columns of a line, in milliseconds."""
        return {
            "best_ms": round(self.best * 1e3, 5),
            "median_ms": round(self.median * 1e3, 5),
            "host_ms": "" if self.host is None else round(self.host * 1e3, 5),
            "runs": self.runs,
        }


def time_runs(run: Run, device: Device, seconds: float = SECONDS) -> Seconds:
    """Time a run, again and again for so many seconds."""
    for _ in range(WARMUP_RUNS):
        run()
    synchronize(device)
    host = _clock_seconds(run) if device == "cuda" else None
    synchronize(device)
    grouped = 1 if host is None else _grouped(_event_seconds(run, 1, host))
    found: list[float] = []
    begun = time.perf_counter()
    while len(found) < MIN_RUNS or time.perf_counter() - begun < seconds:
        found.append(_clock_seconds(run) if host is None else _event_seconds(run, grouped, host))
    return Seconds(min(found), statistics.median(found), host, grouped * len(found))


def _grouped(seconds: float) -> int:
    """Return how many runs of so many seconds are timed together."""
    return max(1, min(MOST_GROUPED, round(GROUP_SECONDS / seconds)))


def _clock_seconds(run: Run) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def _event_seconds(run: Run, runs: int, host: float) -> float:
    """Return what one of so many runs takes, that are all in the queue before the first begins."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(int(2 * runs * host * SLEEP_CYCLES_PER_SECOND))
    begin.record()
    for _ in range(runs):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / runs


@dataclass(frozen=True)
class Memory:
    """Bytes of device memory that the first runs take.

    Attributes:
        held: at once, of torch's allocator and of what our kernels have for themselves, to the byte.
        taken: that the GPU has less of: in steps of 2 MiB, with what is kept back for the next run.
    """

    held: int
    taken: int


def extra_memory(run: Run, device: Device) -> Memory | None:
    """Return what the first runs take, with torch's cache emptied before; None on a processor.

    Code that has not run yet is loaded by them, and counted in `taken`.
    """
    if device != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    _take_scratch_peak()
    allocated, (free, _) = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()
    for _ in range(WARMUP_RUNS):
        run()
    torch.cuda.synchronize()
    held = torch.cuda.max_memory_allocated() - allocated + _take_scratch_peak()
    return Memory(held, free - torch.cuda.mem_get_info()[0])


def _take_scratch_peak() -> int:
    """Return the most bytes that our kernels have had for themselves at once since this was last asked."""
    take = ctypes.CDLL(str(verify_library("cuda"))).SparseOpsTakeScratchPeak
    take.restype = ctypes.c_int64
    peak = int(take())
    if peak < 0:
        raise RuntimeError("CUDA does not say how much memory our kernels have had")
    return peak


def free_memory(device: Device) -> None:
    """Give back what torch keeps."""
    if device == "cuda":
        with suppress(RuntimeError):
            torch.cuda.empty_cache()


def write_csv(path: Path, lines: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Write lines as they come, all with the columns of the first, and return them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written: list[Mapping[str, Any]] = []
    with path.open("w", newline="") as file:
        for line in lines:
            writer = csv.DictWriter(file, list(written[0] if written else line), lineterminator="\n")
            if not written:
                writer.writeheader()
            writer.writerow(line)
            file.flush()  # the machine may be gone before the last
            written.append(line)
    return written


def loaded(path: Path) -> onnx.ModelProto:
    return onnx.load(path, load_external_data=False)


def own_ops(graph: onnx.GraphProto) -> set[str]:
    """Return which of our ops with kernels for GPUs a graph has, those of its inner graphs included."""
    found = {node.op_type for node in graph.node if node.domain == DOMAIN} & ON_GPU
    for inner in _inner_graphs(graph):
        found |= own_ops(inner)
    return found


def _inner_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
            yield from attribute.graphs
