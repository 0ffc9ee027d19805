"""`export --device cuda`: what is written for a GPU, and how it is judged with one and without."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from graphs import GraphTable
from sparse_export.attention.spec import AttentionSpec
from sparse_export.entry import export_checkpoint
from sparse_export.export_options import ExportOptions
from sparse_export.graph.export import GraphTarget
from sparse_export.graph.precision import BF16, FP16
from sparse_export.parity import questions
from sparse_serve import Classifier
from sparse_serve.cuda import CPU_PROVIDER, CUDA_PROVIDER, Machine
from sparse_serve.errors import CheckpointError, DeviceError, OpLibraryError, OptionError
from sparse_serve.nvml import CudaDevice
from sparse_serve.op_library import verify_library
from sparse_serve.repository.check import Level, check_entry
from sparse_serve.repository.computing import Computing
from sparse_serve.repository.config import CONFIG_NAME, device_of, read_config
from sparse_serve.repository.entries import read_entry
from sparse_serve.repository.signature import graph_dtype
from sparse_serve.runs import RUN_TOKENS, RUN_TOKENS_ON
from tiny_models import make_model

ABSENT = Machine(fault="NVML Shared Library Not Found")
PRESENT = Machine(devices=(CudaDevice("NVIDIA H200", 141 * 10**9, (9, 0)),), driver="580.65")
WHOLE = replace(PRESENT, driver_cuda=(13, 0), onnxruntime="1.31.1", providers=(CUDA_PROVIDER, CPU_PROVIDER))


@pytest.fixture
def see(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], None]:
    """Have the gate see another machine, without a library for GPUs."""

    def missing(device: str = "cpu") -> Path:
        if device == "cuda":
            raise OpLibraryError("op library libsparse_ops_cuda.so is missing from the installed package")
        return verify_library()

    monkeypatch.setattr(questions, "verify_library", missing)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def look(machine: Machine) -> None:
        monkeypatch.setattr(questions, "probe", lambda: machine)

    return look


@pytest.fixture
def options(checkpoint: Path, tmp_path: Path, see: Callable[[Machine], None]) -> ExportOptions:
    see(ABSENT)
    return ExportOptions(
        checkpoint=str(checkpoint),
        repository=tmp_path / "repository",
        name="tiny",
        dtype="fp16",
        atol=0.1,
        computing=Computing.on(None, 2, device="cuda", gpu_mem_limit=4 << 30),
    )


def test_without_a_gpu_it_is_judged_on_the_cpu_and_says_so(options: ExportOptions) -> None:
    warnings: list[str] = []
    exported = export_checkpoint(options, warn=warnings.append)
    (warning,) = warnings
    assert "judged on the CPU alone: no NVIDIA driver answers here (NVML Shared" in warning
    assert exported.parity.provider == CPU_PROVIDER
    manifest = read_entry(exported.path).manifest
    assert (manifest.device, manifest.dtype) == ("cuda", "fp16")
    assert manifest.parity is not None
    assert manifest.parity["provider"] == CPU_PROVIDER
    config = read_config(exported.path / CONFIG_NAME)
    assert (device_of(config), config.instance_group[0].count) == ("cuda", 2)
    assert config.parameters["gpu_mem_limit"].string_value == str(4 << 30)
    assert len(config.model_warmup) == 3
    assert [each for each in check_entry(exported.path) if each.level is Level.error] == []
    graph = onnx.load(exported.path / "1" / "model.onnx").graph
    most = {numpy_helper.to_array(each).item() for each in graph.initializer if ".most." in each.name}
    assert most == {RUN_TOKENS_ON["cuda"]} != {RUN_TOKENS}
    # The file that a GPU gets answers on a processor too, where that is asked for.
    text = (exported.path / "warmup" / f"text_{manifest.max_length}").read_bytes()[4:].decode()
    (short, long) = Classifier(exported.path, threads=1, device="cpu")(["a film", text])
    assert not long.truncated
    assert short.token_count < long.token_count
    assert manifest.max_length - 8 <= long.token_count <= manifest.max_length


def test_the_gate_runs_where_the_model_will(
    options: ExportOptions, see: Callable[[Machine], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions are asked for the GPU that is there; as there is none in truth, nothing takes its place."""
    see(WHOLE)
    monkeypatch.setattr(questions, "verify_library", lambda device="cpu": verify_library())
    with pytest.raises(CheckpointError, match="ONNX Runtime has no CUDAExecutionProvider here"):
        export_checkpoint(options)
    assert not (options.repository / "tiny").exists()


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        (ABSENT, "--dtype bf16 is judged on a GPU, but no NVIDIA driver answers"),
        (PRESENT, "--dtype bf16 is judged on a GPU, but there is no ONNX Runtime here"),
        (WHOLE, "--dtype bf16 is judged on a GPU, but op library libsparse_ops_cuda.so is missing"),
    ],
    ids=["no GPU", "no runtime", "no library"],
)
def test_bf16_needs_a_gpu_to_be_judged(
    options: ExportOptions, see: Callable[[Machine], None], machine: Machine, message: str
) -> None:
    see(machine)
    with pytest.raises(DeviceError, match=message):
        export_checkpoint(replace(options, dtype="bf16"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "int8"}, "--dtype int8 is not supported on GPUs: .* choose one of fp32, fp16, bf16$"),
        ({"dtype": "int4"}, "--dtype int4 is not supported on GPUs: choose one of fp32, fp16, bf16$"),
        (
            {"dtype": "bf16", "computing": Computing()},
            r"--dtype bf16 is not supported: .*\(--device cuda\); choose one of fp32, fp16, int8$",
        ),
    ],
    ids=["int8", "int4", "bf16 on a CPU"],
)
def test_types_that_a_device_does_not_compute(
    options: ExportOptions, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        export_checkpoint(replace(options, **changes))  # type: ignore[arg-type]


def test_memory_is_limited_where_a_gpu_computes() -> None:
    with pytest.raises(OptionError, match="--gpu-mem-limit is for --device cuda: leave it out"):
        Computing.on(None, gpu_mem_limit=1 << 30)


def test_targets_differ_in_what_they_compute_at_a_time() -> None:
    assert GraphTarget(precision=FP16).run_tokens == RUN_TOKENS
    assert GraphTarget(precision=BF16, device="cuda").run_tokens == RUN_TOKENS_ON["cuda"]


# What ONNX Runtime's CUDA provider computes in bfloat16, by its docs/OperatorKernels.md, up to opset 20.
ON_GPUS_IN_BF16 = {
    *("Add", "Cast", "Concat", "Div", "Expand", "Gather", "Gelu", "Gemm", "Identity", "LayerNormalization"),
    *("MatMul", "Mul", "Pow", "Reshape", "Slice", "Softmax", "Squeeze", "Sub", "Tanh", "Transpose"),
    *("Unsqueeze", "Where"),
}


def test_in_bf16_a_graph_has_operators_that_a_gpu_computes(graphs: GraphTable) -> None:
    """No GPU is needed to see it, and none is there to load the graph."""
    target = GraphTarget(precision=BF16, device="cuda")
    proto = graphs.trace(make_model(AttentionSpec(-1.0)), "tokens", target)
    assert graph_dtype(proto) == "bf16"
    typed = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    values = (*typed.graph.value_info, *typed.graph.input, *typed.graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {tensor.name: tensor.data_type for tensor in typed.graph.initializer}
    assert {types[each.name] for each in typed.graph.output} == {onnx.TensorProto.FLOAT}
    own = {
        node.op_type
        for node in typed.graph.node
        if node.domain == "" and onnx.TensorProto.BFLOAT16 in map(types.get, (*node.input, *node.output))
    }
    assert "MatMul" in own
    assert own <= ON_GPUS_IN_BF16
