"""What one server of an entry needs: from a report of `profile`, or as well as its files tell."""

from dataclasses import dataclass
from pathlib import Path

from sparse_serve.deploy.limits import Limits, full_batches, instances
from sparse_serve.errors import OptionError, SparseServeError
from sparse_serve.report.document import read_report
from sparse_serve.report.measured import Measurement
from sparse_serve.repository.check import served_on
from sparse_serve.repository.config import CONFIG_NAME, parameters, read_config
from sparse_serve.repository.entries import Entry
from sparse_serve.repository.tunable import THREADS_PARAMETER

SHARED_MEMORY = 256 << 20
"""Bytes of /dev/shm, where the Python backend exchanges tensors with Triton."""

# What Triton and the backends take beside the model, rounded up, where nothing was measured.
_SERVER_MEMORY = 512 << 20
# What CUDA and its libraries take of the host's memory besides, where a GPU computes.
_CUDA_MEMORY = 2 << 30
# A session has packed copies of the weights that the file has once.
_COPIES_OF_WEIGHTS = 2
# What a token takes while it is computed, in an encoder of BERT-large's width: a dozen rows of 1,024 numbers.
_BYTES_PER_TOKEN = 48 << 10
# ONNX Runtime's arena grows by doubling, and keeps what it has; profile measures without it.
_ARENA_GROWTH = 2
_HEADROOM = 1.25


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a server is given.

    Attributes:
        memory: bytes that it is expected to take.
        memory_limit: bytes above which it is ended.
        cpu: cores that it computes with; None where it takes all that it sees.
        gpus: NVIDIA GPUs.
        basis: what the memory was taken from, in words.
    """

    memory: int
    memory_limit: int
    cpu: int | None
    gpus: int
    basis: str


def needed_resources(entry: Entry, limits: Limits, report: Path | None, gpus: int | None = None) -> Resources:
    """Return what a server of the entry needs within these limits, from its report where there is one.

    Without `gpus` it is given one where the entry's graph computes on one.

    Raises:
        OptionError: the graph computes on a GPU, and is to have none.
        SparseServeError: the report is none, or has no measurement of this entry.
        RepositoryError: a configuration of the entry cannot be read.
    """
    memory, basis = _estimated(entry) if report is None else _measured(entry, report)
    memory += SHARED_MEMORY
    # Bodies that are read and not yet computed, of both protocols.
    bodies = 2 * limits.max_requests * limits.max_body
    return Resources(
        memory=memory,
        memory_limit=round(_HEADROOM * memory) + bodies,
        cpu=_cores(entry),
        gpus=_gpus(entry, gpus),
        basis=basis,
    )


def _gpus(entry: Entry, asked: int | None) -> int:
    is_on_gpu = served_on(entry) == "cuda"
    if is_on_gpu and asked == 0:
        raise OptionError(
            f"--gpus 0 leaves '{entry.name}' without the GPU that it computes on: give 1 or more"
        )
    return int(is_on_gpu) if asked is None else asked


def _cores(entry: Entry) -> int | None:
    graph = read_config(entry.graph_path / CONFIG_NAME)
    threads = parameters(graph).get(THREADS_PARAMETER, "")
    return instances(graph) * int(threads) if threads.isdecimal() and int(threads) > 0 else None


def _estimated(entry: Entry) -> tuple[int, str]:
    weights = sum(path.stat().st_size for path in entry.graph_path.rglob("*") if path.is_file())
    copies = instances(read_config(entry.graph_path / CONFIG_NAME)) * _COPIES_OF_WEIGHTS
    computed = full_batches(entry) * entry.manifest.max_length * _BYTES_PER_TOKEN
    basis = (
        f"estimated from files and batches: measure it with sparse-serve profile {entry.name}, and give "
        "deploy --report"
    )
    if served_on(entry) == "cuda":  # whose memory has what is computed
        return _SERVER_MEMORY + _CUDA_MEMORY + copies * weights, basis
    return _SERVER_MEMORY + copies * weights + _arena_growth(entry) * computed, basis


def _measured(entry: Entry, path: Path) -> tuple[int, str]:
    """Return what the server took at rest, and at its peak for as many texts as it computes at once.

    The peak is that of the most of the longest texts that were measured, taken to grow with their number.
    """
    texts = full_batches(entry)
    measured = [
        (each.length, min(each.batch * (each.concurrency or 1), texts), memory.peak_above_idle, memory.idle)
        for each in _measurements(entry, path)
        if (memory := each.memory_bytes) is not None
    ]
    length, at_once, greatest, _ = max(measured)
    peak = greatest * texts / at_once
    idle = max(rest for *_, rest in measured)
    basis = f"measured: {at_once} texts of {length} tokens at once, taken for {texts}"
    return idle + round(_arena_growth(entry) * peak), basis


def _arena_growth(entry: Entry) -> int:
    graph = read_config(entry.graph_path / CONFIG_NAME)
    return 1 if parameters(graph).get("enable_mem_arena") == "0" else _ARENA_GROWTH


def _measurements(entry: Entry, path: Path) -> list[Measurement]:
    """Return the measurements of the entry that a report has.

    Raises:
        SparseServeError: there are none, or they are of another version.
        DataError: it is no report.
    """
    report = read_report(path)
    if entry.name not in report.models():
        raise SparseServeError(
            f"--report {path} has no measurement of '{entry.name}', only of {', '.join(report.models())}: "
            "give the report of this entry"
        )
    measured = [
        each
        for each in report.measurements
        if each.model == entry.name and each.variant in ("model", "text") and each.memory_bytes is not None
    ]
    if not measured:
        raise SparseServeError(
            f"--report {path} has no memory of the variants model and text of '{entry.name}': have profile "
            "measure them, on servers of its own (without --url) and at a --concurrency-range"
        )
    versions = {served.version for served in report.served if served.model == entry.name}
    if versions != {entry.manifest.version}:
        raise SparseServeError(
            f"--report {path} is of version {', '.join(map(str, sorted(versions)))} of '{entry.name}', which "
            f"has version {entry.manifest.version} now: profile it again"
        )
    return measured
