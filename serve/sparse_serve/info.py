"""What is installed here: versions, devices, the op library and the Triton that would be started."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from sparse_serve.cuda import probe
from sparse_serve.environment import read_cpu, read_gpus, read_op_library
from sparse_serve.errors import OpLibraryError, ServerError
from sparse_serve.op_library import DOMAIN, Device, verify_library
from sparse_serve.triton.installation import PYTHON, TritonInstallation, find_triton

_PACKAGES = (
    "sparse-serve",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "numpy",
    "tokenizers",
    "tritonclient",
    "nvidia-pytriton",
    "torch",
    "transformers",
)


def read_info() -> dict[str, Any]:
    """Return what is installed as one JSON-able object; what is missing says why in its place."""
    return {
        "versions": {package: _version(package) for package in _PACKAGES},
        "devices": {
            "cpu": read_cpu().model_dump(),
            "gpus": [gpu.model_dump() for gpu in read_gpus() or ()],
        },
        "op_library": _op_library("cpu"),
        "cuda": _cuda(),
        "triton": _triton(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _op_library(device: Device) -> dict[str, Any]:
    try:
        path = verify_library(device)
        return {"path": str(path), "domain": DOMAIN, **read_op_library(path).model_dump()}
    except OpLibraryError as error:
        return {"error": str(error)}


def _cuda() -> dict[str, Any]:
    """Return what there is for models on a GPU: for servers, and for the ONNX Runtime of this environment."""
    machine, library = probe(), _op_library("cuda")
    return {
        "driver": machine.driver,
        "servers": machine.server_obstacle or library.get("error") or "ready",
        "here": machine.runtime_obstacle or library.get("error") or "ready",
        "op_library": library,
    }


def _triton() -> dict[str, Any]:
    try:
        found = find_triton()
    except ServerError as error:
        return {"error": str(error)}
    return {
        "kind": found.kind,
        "path": str(found.executable),
        "version": found.version,
        "onnxruntime_backend": "its own" if found.has_onnxruntime else "this package's",
        "python_backend": _python_backend(found),
    }


def _python_backend(triton: TritonInstallation) -> str:
    try:
        triton.require_backends([PYTHON])
    except ServerError as error:
        return str(error)
    return "ready"
