"""Entries that compute on a GPU: what is written for them, and what is said where there is none."""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pynvml
import pytest
import yaml
from fake_nvml import H200, no_driver, one_h200
from fake_triton import PRINTING_TRITON, RECORDING_TRITON, write_triton
from image_runs import check_in_image, entrypoint
from manifests import require_valid_compose
from tiny_entry import DOCKER, MAX_LENGTH, edit

from command_line import exit_status, outcome
from sparse_serve import cuda, op_library
from sparse_serve.classifier import Classifier
from sparse_serve.cli import app
from sparse_serve.cuda import CUDA_PROVIDER, Machine, is_out_of_memory, probe
from sparse_serve.digests import file_digest
from sparse_serve.errors import DeviceError, OpLibraryError, OptionError, ServerError
from sparse_serve.info import read_info
from sparse_serve.nvml import CudaDevice
from sparse_serve.op_library import CUDA_LIBRARY_NAME, LIBRARY_NAME, library_path
from sparse_serve.repository import check
from sparse_serve.repository.agreement import entry_faults
from sparse_serve.repository.check import Level, check_entry
from sparse_serve.repository.computing import Computing
from sparse_serve.repository.config import CONFIG_NAME, device_of, read_config
from sparse_serve.repository.entries import read_entry
from sparse_serve.repository.manifest import OpLibrary
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.runs import RUN_TOKENS_ON
from sparse_serve.triton.container import ContainerOptions, ContainerServer
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.server import Server, ServerOptions

MakeSpec = Callable[..., EntrySpec]

WHOLE = Machine(
    devices=(H200,),
    driver="580.65",
    driver_cuda=(13, 0),
    providers=(CUDA_PROVIDER, "CPUExecutionProvider"),
    onnxruntime="1.31.1",
    runtime_cuda=(13, 0),
)
OBSTACLES = {
    "no driver": (replace(WHOLE, fault="NVML Shared Library Not Found"), "no NVIDIA driver answers here"),
    "a driver of two versions": (
        replace(WHOLE, fault="Driver/library version mismatch"),
        r"\(Driver/library version mismatch\).* load it again by a restart",
    ),
    "no GPU": (replace(WHOLE, devices=()), "driver 580.65 sees no GPU here"),
    "an old GPU": (
        replace(WHOLE, devices=(CudaDevice("Tesla T4", 16 * 10**9, (7, 5)),)),
        "Tesla T4 has compute capability 7.5, at least 8.0",
    ),
}
RUNTIME_OBSTACLES = {
    "no runtime": (replace(WHOLE, providers=(), onnxruntime=None), r"no ONNX Runtime here: pip install"),
    "another runtime": (
        replace(WHOLE, providers=("CPUExecutionProvider",)),
        "ONNX Runtime 1.31.1 has no CUDAExecutionProvider here, only CPUExecutionProvider: install",
    ),
    "an old driver": (
        replace(WHOLE, driver="550.54", driver_cuda=(12, 4)),
        "driver 550.54 runs CUDA up to 12.4, ONNX Runtime 1.31.1 was built with 13.0: install a newer driver",
    ),
}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], None]:
    """Have everything that asks see another machine."""

    def see(found: Machine) -> None:
        for module in (cuda, check):
            monkeypatch.setattr(module, "probe", lambda: found)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    see(OBSTACLES["no driver"][0])
    return see


@pytest.fixture
def cuda_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library in the place of that with kernels for GPUs."""
    path = tmp_path / "built" / CUDA_LIBRARY_NAME
    path.parent.mkdir()
    path.write_bytes(library_path().read_bytes())
    own = op_library.library_path
    monkeypatch.setattr(
        op_library, "library_path", lambda device="cpu": path if device == "cuda" else own("cpu")
    )
    monkeypatch.setattr(op_library, "_recorded_digest", file_digest)
    return path


@pytest.fixture
def repository(tmp_path: Path, make_spec: MakeSpec, graph_with_domain_nodes: Path) -> Path:
    """An entry whose graph, with nodes of the op library, computes on a GPU."""
    spec = make_spec(
        graph=graph_with_domain_nodes,
        op_library=OpLibrary(version=1, sha256=file_digest(library_path())),
        device="cuda",
        computing=Computing(device="cuda"),
        max_batch_size=8,
    )
    write_entry(tmp_path / "models", spec)
    return tmp_path / "models"


@pytest.fixture
def text_entry(tmp_path: Path, make_spec: MakeSpec) -> Path:
    """An entry that takes text, on a GPU."""
    spec = make_spec(takes_text=True, device="cuda", computing=Computing(device="cuda"))
    return write_entry(tmp_path / "text", spec)


def options(repository: Path, **changes: object) -> ServerOptions:
    return ServerOptions(repository, http_port=0, grpc_port=0, metrics_port=0, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("found", "message"), OBSTACLES.values(), ids=OBSTACLES)
def test_servers_need_a_gpu(found: Machine, message: str) -> None:
    assert re.search(message, found.gpu_obstacle or "")
    assert found.runtime_obstacle == found.gpu_obstacle


@pytest.mark.parametrize(("found", "message"), RUNTIME_OBSTACLES.values(), ids=RUNTIME_OBSTACLES)
def test_sessions_need_a_runtime_for_it(found: Machine, message: str) -> None:
    assert found.gpu_obstacle is None
    assert re.search(message, found.runtime_obstacle or "")


def test_nothing_is_in_the_way_of_a_whole_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert WHOLE.runtime_obstacle is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert "CUDA_VISIBLE_DEVICES='-1' hides every GPU" in (WHOLE.gpu_obstacle or "")


def test_the_probe_reads_nvml_and_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    one_h200(monkeypatch)
    found = probe()
    assert (found.devices, found.driver, found.driver_cuda) == ((H200,), "550.54", (12, 4))
    assert found.onnxruntime == onnxruntime.__version__
    assert list(found.providers) == onnxruntime.get_available_providers()
    no_driver(monkeypatch, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    assert probe().fault


def test_a_library_that_is_not_the_installed_one_is_not_loaded(
    cuda_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Path] = []
    monkeypatch.setattr(cuda, "library_cuda", loaded.append)
    probe()
    assert loaded == [cuda_library]
    monkeypatch.setattr(op_library, "_recorded_digest", lambda _path: "0" * 64)
    assert probe().library_cuda is None
    assert loaded == [cuda_library]


def test_what_is_written_for_a_gpu(repository: Path, text_entry: Path) -> None:
    """The graph computes there, and warms up with the longest row and the fullest batch."""
    public, graph = (read_config(repository / name / CONFIG_NAME) for name in ("tiny", "tiny_model"))
    assert (device_of(public), device_of(graph)) == ("cpu", "cuda")
    assert public.parameters["run_tokens"].string_value == str(RUN_TOKENS_ON["cuda"])
    assert list(graph.model_operations.op_library_filename) == [LIBRARY_NAME]
    assert [(each.batch_size, list(each.inputs["input_ids"].dims)) for each in graph.model_warmup] == [
        (1, [16]),
        (1, [MAX_LENGTH]),
        (8, [MAX_LENGTH]),
    ]
    mask = np.fromfile(repository / "tiny_model" / "warmup" / "attention_mask", np.int64)
    assert mask.tolist() == [1] * 16
    text = (text_entry / "warmup" / f"text_{MAX_LENGTH}").read_bytes()
    assert int.from_bytes(text[:4], "little") == len(text) - 4
    assert len(text[4:].split()) == MAX_LENGTH - 8
    for entry in (repository / "tiny", text_entry):
        assert json.loads((entry / "manifest.json").read_text())["device"] == "cuda"


def test_how_much_a_gpu_is_asked_for_at_a_time_is_the_operators(repository: Path) -> None:
    known = str(RUN_TOKENS_ON["cuda"])
    for tokens in ("8192", "0", "many"):
        edit(repository / "tiny" / CONFIG_NAME, f'"{known}"', f'"{tokens}"')
        known = tokens
        errors = list(entry_faults(read_entry(repository / "tiny")))
        told = f"run_tokens is '{tokens}': give a number of tokens from 1"
        assert any(told in error for error in errors) == (tokens != "8192")
        assert len(errors) == (tokens != "8192")


@pytest.mark.parametrize("kind", [TritonServer, ContainerServer])
@pytest.mark.parametrize("name", OBSTACLES)
def test_serving_without_a_gpu_is_refused(
    repository: Path, machine: Callable[[Machine], None], name: str, kind: type[Server]
) -> None:
    found, message = OBSTACLES[name]
    machine(found)
    with pytest.raises(DeviceError, match=f"model 'tiny_model' needs a GPU, but .*{message}") as raised:
        kind(options(repository)).launch_line()
    assert "\n" not in str(raised.value)


def test_the_library_for_gpus_must_have_been_built(
    repository: Path, machine: Callable[[Machine], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(WHOLE)
    monkeypatch.setattr(op_library, "CUDA_LIBRARY_NAME", "libabsent_cuda.so")
    with pytest.raises(OpLibraryError, match=r"needs the op library, but .*build it with make cuda"):
        TritonServer(options(repository)).launch_line()


@pytest.mark.usefixtures("cuda_library")
def test_the_library_is_held_against_the_driver(repository: Path, machine: Callable[[Machine], None]) -> None:
    """It has a runtime of CUDA in it. A container has a library of its own."""
    old = replace(WHOLE, driver="550.54", driver_cuda=(12, 4), runtime_cuda=(12, 4), library_cuda=(13, 0))
    message = "driver 550.54 runs CUDA up to 12.4, the op library was built with 13.0: install a newer driver"
    assert message in (old.runtime_obstacle or "")
    machine(old)
    with pytest.raises(DeviceError, match=f"model 'tiny_model' needs a GPU, but .*{message}") as raised:
        TritonServer(options(repository)).launch_line()
    assert "\n" not in str(raised.value)
    assert "--gpus all" in str(ContainerServer(options(repository)).launch_line())


@pytest.mark.usefixtures("cuda_library")
def test_the_bundled_triton_computes_on_no_gpu(repository: Path, machine: Callable[[Machine], None]) -> None:
    machine(WHOLE)
    with pytest.raises(
        ServerError, match=r"'tiny_model' computes on a GPU, and .* serve it with --mode docker"
    ):
        TritonServer(options(repository, mode="bundled")).launch_line()


def test_one_library_is_on_the_path_by_the_name_that_entries_have(
    repository: Path,
    cuda_library: Path,
    machine: Callable[[Machine], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is the one for GPUs, before all others; where no model computes on one it is not there."""
    machine(WHOLE)
    record, programs = tmp_path / "record", tmp_path / "bin"
    found = f'cp -L "${{LD_LIBRARY_PATH%%:*}}/{LIBRARY_NAME}" {tmp_path}/loaded\n'
    script = RECORDING_TRITON.format(record=record).replace('echo "error', f'{found}echo "error')
    write_triton(programs, script)
    for backend in ("python", "onnxruntime"):
        (tmp_path / "backends" / backend).mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    server = TritonServer(options(repository))
    with pytest.raises(ServerError, match="error: fake"):
        server.start()
    first, *rest = record.read_text().splitlines()[0].split(":")
    assert (tmp_path / "loaded").read_bytes() == cuda_library.read_bytes()
    assert str(op_library.library_path().parent) in rest
    assert not Path(first).exists()
    assert Path(first) in server.launch_line().scratch
    edit(repository / "tiny_model" / CONFIG_NAME, "KIND_GPU", "KIND_CPU")
    line = TritonServer(options(repository)).launch_line()
    assert line.environment["LD_LIBRARY_PATH"].split(":")[0] == str(op_library.library_path().parent)


def test_the_container_gets_the_gpus(repository: Path, machine: Callable[[Machine], None]) -> None:
    machine(WHOLE)
    assert "--gpus all" in str(ContainerServer(options(repository)).launch_line())
    chosen = ContainerOptions(gpus="device=1")
    assert "--gpus device=1" in str(ContainerServer(options(repository), chosen).launch_line())


def test_check_says_what_is_missing_here(
    repository: Path, machine: Callable[[Machine], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry is checked anywhere: nothing of it is an error."""
    monkeypatch.setattr(op_library, "CUDA_LIBRARY_NAME", "libabsent_cuda.so")
    found = {each.check: each for each in check_entry(repository / "tiny") if each.level is not Level.ok}
    assert {each.level for each in found.values()} == {Level.warning}
    assert "build it with make cuda" in found["op library"].message
    assert "it needs a GPU, but no NVIDIA driver answers here" in found["device"].message
    machine(WHOLE)
    edit(repository / "tiny_model" / CONFIG_NAME, "KIND_GPU", "KIND_CPU")
    found = {each.check: each for each in check_entry(repository / "tiny") if each.level is not Level.ok}
    assert found["device"].message == "it was exported for cuda, and config.pbtxt has it computed on cpu"


def test_cuda_graphs_cannot_be_asked_for(repository: Path) -> None:
    edit(repository / "tiny_model" / CONFIG_NAME, '"use_tf32"', '"enable_cuda_graph"')
    messages = [each.message for each in check_entry(repository / "tiny") if each.level is Level.error]
    assert any("'enable_cuda_graph' of cuda" in message for message in messages)


@pytest.mark.parametrize("name", [*OBSTACLES, *RUNTIME_OBSTACLES])
def test_a_classifier_never_falls_back_in_silence(
    text_entry: Path, machine: Callable[[Machine], None], name: str
) -> None:
    found, message = {**OBSTACLES, **RUNTIME_OBSTACLES}[name]
    machine(found)
    with pytest.raises(DeviceError, match=rf"entry \S+ needs a GPU, but .*{message}"):
        Classifier(text_entry)


@pytest.mark.usefixtures("cuda_library")
def test_a_provider_that_does_not_load_is_told(
    text_entry: Path, machine: Callable[[Machine], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime takes the processor then, and says so in its log alone."""
    machine(WHOLE)
    opened: list[list[Any]] = []

    class Session:
        def __init__(self, path: str, options: object, providers: list[Any]) -> None:
            opened.append(providers)

        def get_providers(self) -> list[str]:
            return ["CPUExecutionProvider"]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    with pytest.raises(DeviceError, match="computes by CPUExecutionProvider where CUDAExecutionProvider was"):
        Classifier(text_entry)
    ((provider, chosen), fallback) = opened[0]
    assert (provider, fallback, chosen["use_tf32"]) == (CUDA_PROVIDER, "CPUExecutionProvider", "0")


def test_an_entry_for_a_gpu_computes_on_a_processor_if_it_is_asked_to(
    text_entry: Path, machine: Callable[[Machine], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(WHOLE)
    classifier = Classifier(text_entry, device="cpu", threads=1)
    assert (classifier.device, classifier(["w1"])[0].label) == ("cpu", "positive")
    with pytest.raises(OptionError, match="device is 'tpu': cpu and cuda are known"):
        Classifier(text_entry, device="tpu")  # type: ignore[arg-type]

    class Full:
        def run(self, *_: object) -> None:
            raise RuntimeError("BFCArena: Failed to allocate memory for requested buffer of size 4096\nmore")

    classifier.device = "cuda"
    monkeypatch.setattr(classifier, "_session", Full())
    with pytest.raises(DeviceError, match=r"run of 2 texts does not fit: .* 4096; the GPU's memory is full"):
        classifier(["w1", "w2"])


def test_each_version_is_answered_as_its_own_manifest_says(text_entry: Path) -> None:
    own, last = (json.loads((text_entry / "manifest.json").read_text()) for _ in range(2))
    shutil.copytree(text_entry / "1", text_entry / "2")
    for folder in (text_entry, text_entry / "2"):
        (folder / "manifest.json").write_text(json.dumps({**last, "version": 2, "dtype": "bf16"}))
    with pytest.raises(DeviceError, match="is in bf16"):
        Classifier(text_entry, device="cpu")
    classifier = Classifier(text_entry, version=1, device="cpu", threads=1)
    assert (classifier.version, classifier.entry.manifest.dtype) == (1, own["dtype"])
    assert classifier(["w1"])[0].label == "positive"


def test_bf16_is_not_computed_on_a_processor(text_entry: Path) -> None:
    manifest = text_entry / "manifest.json"
    for path in (manifest, text_entry / "1" / "manifest.json"):
        edit(path, '"dtype": "fp32"', '"dtype": "bf16"')
    with pytest.raises(DeviceError, match="is in bf16, which ONNX Runtime does not compute on processors"):
        Classifier(text_entry, device="cpu")


@pytest.mark.parametrize(
    ("message", "is_memory"),
    [
        ("CUDA failure 2: out of memory ; GPU=0 ; hostname=x", True),
        ("Available memory of 100 is smaller than requested bytes of 4096", True),
        ("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED", True),
        ("CUDA failure 700: an illegal memory access was encountered", False),
        ("Got invalid dimensions for input", False),
    ],
)
def test_errors_of_memory_are_known(message: str, is_memory: bool) -> None:
    assert is_out_of_memory(message) == is_memory


def test_info_says_whether_a_gpu_can_be_used(
    machine: Callable[[Machine], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparse_serve.info.probe", lambda: RUNTIME_OBSTACLES["another runtime"][0])
    monkeypatch.setattr(op_library, "CUDA_LIBRARY_NAME", "libabsent_cuda.so")
    found = read_info()["cuda"]
    assert found["driver"] == "580.65"
    assert "build it with make cuda" in found["servers"]
    assert "has no CUDAExecutionProvider" in found["here"]
    assert "libabsent_cuda.so" in found["op_library"]["error"]


def deployed(repository: Path, target: str, out: Path, *more: str) -> int:
    line = ["deploy", "tiny", "--target", target, "--output-dir", str(out)]
    return exit_status(app, *line, "--model-repository", repository, *more)


def test_deployments_get_the_gpu_that_the_entry_needs(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deployed(repository, "compose", tmp_path / "compose") == 0
    compose = yaml.safe_load((tmp_path / "compose" / "compose.yaml").read_text())
    require_valid_compose(compose)
    (device,) = compose["services"]["triton"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    for target, file in (("kubernetes", "deployment.yaml"), ("kserve", "servingruntime.yaml")):
        assert deployed(repository, target, tmp_path / target) == 0
        assert 'nvidia.com/gpu: "1"' in (tmp_path / target / file).read_text()
    capsys.readouterr()
    assert deployed(repository, "compose", tmp_path / "none", "--gpus", "0") == 2
    assert "--gpus 0 leaves 'tiny' without the GPU that it computes on" in capsys.readouterr().err


def test_profile_of_a_machine_without_a_gpu_ends_with_one_line(
    repository: Path, tmp_path: Path, machine: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before any server is started, and not once for each."""
    line = ["profile", "tiny", "--model-repository", str(repository), "--lengths", "8"]
    status, _, errors = outcome(capsys, app, *line, "--output-dir", tmp_path / "out")
    assert status == 1
    assert errors.count("model 'tiny' needs a GPU, but no NVIDIA driver answers here") == 1


def test_the_images_compose_file_gets_a_gpu() -> None:
    """By a second file over the first."""
    base, over = (
        yaml.safe_load((DOCKER / name).read_text()) for name in ("compose.yaml", "compose.gpu.yaml")
    )
    assert set(over["services"]) == set(base["services"])
    (service,) = over["services"].values()
    assert service["build"]["args"] == {"CUDA": "1"}
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert "ARG CUDA=0" in (DOCKER / "serve.Dockerfile").read_text()


def with_cuda(image: Path) -> Path:
    """Put the library for GPUs into what the image has."""
    folder = image / "lib" / "cuda"
    folder.mkdir()
    for name in (LIBRARY_NAME, f"{LIBRARY_NAME}.sha256"):
        (folder / name).write_bytes((image / "lib" / name).read_bytes())
    return folder


def fake_driver(image: Path, body: str) -> None:
    """Have the image's check see another driver of NVIDIA's."""
    edit(image / "check_entries.py", 'DRIVER = "libcuda.so.1"', f"class Driver:\n{body}\n\nDRIVER = Driver()")
    edit(image / "check_entries.py", "ctypes.CDLL(DRIVER)", "DRIVER")
    edit(image / "check_entries.py", "ctypes.byref(count)", "count")


def test_the_image_loads_the_library_for_what_computes(image: Path, repository: Path) -> None:
    recording = PRINTING_TRITON.replace("printf '%s\\n' \"$@\"", 'echo "$LD_LIBRARY_PATH"')
    where = {"MODEL_REPOSITORY": str(repository), "LD_LIBRARY_PATH": "/opt/sparse-serve/lib"}
    assert "the image was built without the op library for it: build it with --build-arg CUDA=1" in (
        check_in_image(image, repository)
    )
    folder = with_cuda(image)
    (image / "check_entries.py").write_text(
        (image / "check_entries.py").read_text().replace("libcuda.so.1", "libabsent.so.1")
    )
    assert "no NVIDIA driver is in the container: start it with --gpus all" in check_in_image(
        image, repository
    )
    edit(image / "check_entries.py", "libabsent.so.1", "libcuda.so.1")
    fake_driver(
        image,
        "    failure = 0\n    def cuInit(self, flags): return self.failure\n"
        "    def cuDeviceGetCount(self, count):\n        count.value = 1\n        return 0",
    )
    output, errors = entrypoint(image, recording, **where).communicate(timeout=30)
    assert (output, errors) == (f"{folder}:/opt/sparse-serve/lib\n", "")
    edit(image / "check_entries.py", "failure = 0", "failure = 803")
    assert r"does not give one (error 803 of CUDA)" in check_in_image(image, repository)
    edit(image / "check_entries.py", "failure = 803", "failure = 0")
    (folder / LIBRARY_NAME).write_bytes(b"another")
    assert (
        f"{folder}/{LIBRARY_NAME} is not the op library this image was built with"
        in (entrypoint(image, recording, **where).communicate(timeout=30)[1])
    )
    edit(repository / "tiny_model" / CONFIG_NAME, "KIND_GPU", "1")
    assert "instances of kind '1': name it, KIND_CPU or KIND_GPU" in check_in_image(image, repository)
    edit(repository / "tiny_model" / CONFIG_NAME, "kind: 1", "kind: KIND_CPU")
    output, _ = entrypoint(image, recording, **where).communicate(timeout=30)
    assert output == "/opt/sparse-serve/lib\n"
