"""The machine and the software a report was made with."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import pynvml

from sparse_serve import __version__
from sparse_serve.errors import OpLibraryError
from sparse_serve.op_library import instruction_set, library_digest, library_path, library_version
from sparse_serve.profiling.report import Cpu, Environment, Gpu, OpLibrary
from sparse_serve.triton.installation import TritonInstallation

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def read_environment(installation: TritonInstallation, server_version: str) -> Environment:
    """Describe this machine; `server_version` is what the running Triton says of itself."""
    release = f"release {installation.version}, " if installation.version else ""
    return Environment(
        created=datetime.now(UTC).replace(microsecond=0),
        cpu=read_cpu(),
        gpus=read_gpus(),
        kernel=f"{platform.system()} {platform.release()}",
        transparent_huge_pages=_transparent_huge_pages(),
        triton=f"{server_version} ({release}{installation.kind})",
        # A C++ onnxruntime backend brings its own, and does not say which.
        onnxruntime=_onnxruntime_version() if installation.python_backend is not None else None,
        op_library=_op_library(),
        python=platform.python_version(),
        package=__version__,
    )


def available_cores() -> int:
    """Return the number of processors this process may run on."""
    return len(os.sched_getaffinity(0))


def read_cpu() -> Cpu:
    """Describe the processors and memory this process may use."""
    return Cpu(
        model=_cpu_model(),
        architecture=platform.machine(),
        cores=available_cores(),
        memory_bytes=psutil.virtual_memory().total,
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or "unknown"


def read_gpus() -> tuple[Gpu, ...] | None:
    """Describe the GPUs; None where no NVIDIA driver answers."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return tuple(
            Gpu(
                name=str(pynvml.nvmlDeviceGetName(handle)),
                memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
                driver=driver,
                cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
            )
            for handle in handles
        )
    finally:
        pynvml.nvmlShutdown()


def _transparent_huge_pages() -> str | None:
    try:
        setting = _HUGE_PAGES.read_text(encoding="ascii")
    except OSError:
        return None
    return setting.partition("[")[2].partition("]")[0] or None


def _onnxruntime_version() -> str | None:
    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def _op_library() -> OpLibrary | None:
    try:
        path = library_path()
        return OpLibrary(
            sha256=library_digest(path),
            version=library_version(path),
            instruction_set=instruction_set(path),
        )
    except OpLibraryError:
        return None
