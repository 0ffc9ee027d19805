"""The memory that a server takes on GPUs: as its processes hold it, the devices lack it, its arenas say.

Three figures, since none has everything. What the driver says of a process is there only where it tells
processes apart, which it does not in every container. What the devices lack is `cudaMemGetInfo`'s free memory
as NVML shows it from outside, before the server and while it computes: contexts, kernels and workspaces are
in it, and so is what others take meanwhile. What ONNX Runtime's CUDA arenas have taken is known to the
process alone, whose log has every step where it is verbose; weights are in it.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

from sparse_serve.profiling.energy import PowerMeter

ARENA_LOG = "--log-verbose=1"
"""The argument by which Triton has ONNX Runtime's arenas say what they do."""

_SAMPLE_SECONDS = 0.01

# ONNX Runtime's BFCArena in its own words; "CudaPinned" is memory of the machine.
_ARENA_STEP = re.compile(
    r"Extending BFCArena for (?P<extending>\w+)"
    r"|Extended allocation by (?P<extended>\d+) bytes"
    r"|Reserving memory in BFCArena for Cuda size: (?P<reserved>\d+)"
    r"|\bCuda BFC Arena shrunk by (?P<shrunk>\d+) bytes"
)


@dataclass(frozen=True)
class GpuReading:
    """Memory on GPUs in bytes; None what is not told.

    Attributes:
        held: by the server's processes, at the end of the requests.
        taken: from the devices, at most while requests were answered.
        arena: by the CUDA arenas together, at most since the server started.
    """

    held: int | None
    taken: int | None
    arena: int | None


class GpuWatch:
    """Looks at the GPUs before and while a server computes on them, alone of all that are measured."""

    def __init__(self, meter: PowerMeter, log_path: Path) -> None:
        """Note what is free before the server starts, whose log will be at `log_path`."""
        self._meter, self._log_path = meter, log_path
        self._before = meter.gpu_free_bytes()
        self._least = self._before

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Look for the least that is free, a hundred times a second, and once at the end."""
        ended = Event()
        self._least = self._meter.gpu_free_bytes()

        def sample() -> None:
            while not ended.wait(_SAMPLE_SECONDS):
                self._note(self._meter.gpu_free_bytes())

        thread = Thread(target=sample, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self._note(self._meter.gpu_free_bytes())

    def _note(self, free: int | None) -> None:
        if free is not None and self._least is not None:
            self._least = min(self._least, free)

    def read(self, process_ids: Sequence[int]) -> GpuReading:
        """Return what a server of these processes has, and had at most in the last `sampling`."""
        taken = None if self._before is None or self._least is None else max(0, self._before - self._least)
        try:
            log = self._log_path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            log = ""
        return GpuReading(self._meter.gpu_bytes(process_ids), taken, arena_bytes(log))


def arena_bytes(log: str) -> int | None:
    """Return the most that ONNX Runtime's CUDA arenas had together, by its verbose log; None without them."""
    held = most = 0
    is_told, arena = False, ""
    for step in _ARENA_STEP.finditer(log):
        if step["extending"] is not None:
            arena = step["extending"]
        elif step["extended"] is None:
            held += int(step["reserved"] or 0) - int(step["shrunk"] or 0)
            is_told = True
        elif arena == "Cuda":
            held += int(step["extended"])
            is_told = True
        most = max(most, held)
    return most if is_told else None
