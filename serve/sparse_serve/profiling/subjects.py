"""The variants of a model: where each is found, and how it is served to be measured."""

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from sparse_serve.errors import ServerError
from sparse_serve.profiling.energy import PowerMeter
from sparse_serve.profiling.gpu_memory import ARENA_LOG, GpuWatch
from sparse_serve.profiling.load import TritonLoad
from sparse_serve.profiling.memory import (
    ProcessReading,
    container_group,
    control_group,
    group_peak_bytes,
    read_processes,
    resident_bytes,
)
from sparse_serve.profiling.windows import GpuSample
from sparse_serve.profiling.workload import Batch
from sparse_serve.report.measured import Absent, Variant
from sparse_serve.repository.config import CONFIG_NAME, GRAPH_NAME, graph_name
from sparse_serve.repository.entries import BASELINES_NAME, Entry
from sparse_serve.repository.measures import RHO
from sparse_serve.repository.signature import load_graph, nested
from sparse_serve.tasks import Task
from sparse_serve.triton.container import ContainerOptions, ContainerServer
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.server import RepositoryView, Server, ServerOptions

# Blocks from this size on are mapped by the C library and unmapped when freed. Left to itself it raises this
# bound to 32 MiB, keeps what loading the model freed, and serves requests from there: their memory would be
# counted as idle (measured: 0 MB instead of 14 MB at 256 tokens).
MALLOC_MMAP_THRESHOLD = 65536

_CPUCLOCK_SCHED = 2  # linux/posix-timers_types.h: of the threads of a process together

_numbers = count()


@dataclass(frozen=True, eq=False)
class Subject:
    """One variant of one entry: the Triton model asked, and the models that are loaded for it."""

    entry: Entry
    variant: Variant
    repository: Path
    served_as: str
    loads: tuple[str, ...]

    @property
    def title(self) -> str:
        """What progress and errors call it."""
        return f"{self.entry.name} {self.variant}"


def find_subjects(entry: Entry, variants: Sequence[Variant]) -> tuple[list[Subject], list[Absent]]:
    """Return the entry's variants that can be served, and those that cannot with the reason."""
    subjects: list[Subject] = []
    absent: list[Absent] = []
    for variant in variants:
        if variant == "text" and entry.takes_text:
            continue  # as "model" is
        if variant == "padded_sparse" and not _has_sparse_twin(entry):
            continue
        subject = _subject(entry, variant)
        if variant == "portable" and entry.takes_text and entry.token_path is None:
            reason = "no standard operator can take the place of its tokenizer: export it with --token-model"
            absent.append(Absent(model=entry.name, variant=variant, reason=reason))
        elif _is_there(subject):
            subjects.append(subject)
        else:
            reason = f"{subject.repository} holds no model '{subject.served_as}': export it --with-baselines"
            absent.append(Absent(model=entry.name, variant=variant, reason=reason))
    return subjects, absent


def _has_sparse_twin(entry: Entry) -> bool:
    """Whether a model attends to all keys by sparsegen-lin: only this is known padded and eager."""
    attention = entry.manifest.attention
    return attention.lambd is not None and attention.pattern is None


def _is_there(subject: Subject) -> bool:
    """Whether a repository has the model, and of it the version that is measured."""
    model = subject.repository / subject.served_as
    return (model / CONFIG_NAME).is_file() and (model / str(subject.entry.manifest.version)).is_dir()


def _subject(entry: Entry, variant: Variant) -> Subject:
    repository = entry.path.parent
    graph = graph_name(entry.name)
    if variant in ("model", "control") and entry.takes_text:
        return Subject(entry, variant, repository, entry.name, (entry.name,))
    if variant == "text":
        return Subject(entry, variant, repository, entry.name, (entry.name, graph))
    if variant in ("model", "control", "portable"):
        return Subject(entry, variant, repository, graph, (graph,))
    name = entry.manifest.baselines.get(variant, f"{entry.name}_{variant}")
    return Subject(entry, variant, entry.path / BASELINES_NAME, name, (name,))


@dataclass(frozen=True)
class GraphShape:
    """What theory needs of a graph: attention heads, width of the hidden states and of feed-forward layers.

    Each None where the graph does not show it.
    """

    heads: int | None
    hidden: int | None
    inner: int | None


def graph_shape(entry: Entry) -> GraphShape:
    """Read the shape of an entry's graph off its attention nodes and the weights that it multiplies by.

    Raises:
        RepositoryError: the graph cannot be read.
    """
    graph = load_graph(entry.graph_path / str(entry.manifest.version) / GRAPH_NAME).graph
    nodes = list(nested(graph.node))
    attributes = (attribute for node in nodes for attribute in node.attribute)
    heads = next((int(attribute.i) for attribute in attributes if attribute.name == "num_heads"), None)
    factors = {
        name for node in nodes if "MatMul" in node.op_type or node.op_type == "Gemm" for name in node.input
    }
    shapes = [
        tuple(tensor.dims) for tensor in graph.initializer if len(tensor.dims) == 2 and tensor.name in factors
    ]
    squares = Counter(rows for rows, columns in shapes if rows == columns)
    hidden = squares.most_common(1)[0][0] if squares else None
    inner = max((max(shape) for shape in shapes if hidden in shape), default=None)
    return GraphShape(heads, hidden, inner)


def weight_bytes(subject: Subject) -> int:
    """Return the bytes of the files of the graph that a subject is served by."""
    folder = subject.repository / subject.loads[-1] / str(subject.entry.manifest.version)
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def _processor_clock(pid: int) -> int:
    """Return Linux's clock of a process's processor time: in ns, where /proc has ticks of 10 ms."""
    return (~pid << 3) | _CPUCLOCK_SCHED


class ServerGauges:
    """What is seen of the processes of a server of our own, and of this machine."""

    def __init__(self, server: Server, meter: PowerMeter) -> None:
        self._server, self._meter = server, meter

    def processor_ns(self) -> int:
        """Return the processor time of the server's processes so far, in ns."""
        total = 0
        for pid in self._server.process_ids():
            with suppress(OSError):  # it has ended
                total += time.clock_gettime_ns(_processor_clock(pid))
        return total

    def energy_mj(self) -> int:
        """Return the energy that the machine has taken so far, in mJ; 0 where it does not tell."""
        return self._meter.energy_mj()

    def gpu_sample(self) -> GpuSample | None:
        """Return what the GPU does now; None where there is none."""
        return self._meter.gpu_sample()

    def gpu_bytes(self) -> int | None:
        """Return the server's memory on the GPU; None where there is none."""
        return self._meter.gpu_bytes(self._server.process_ids())


@dataclass(frozen=True)
class SteadyReading:
    """Memory of a server as deployed, before load and after it, in bytes; None what cannot be read."""

    before_bytes: int
    processes: tuple[ProcessReading, ...]
    group_peak_bytes: int | None
    gpu_bytes: int | None

    @property
    def pss_bytes(self) -> int | None:
        """Proportional memory of all processes together."""
        known = [each.pss_bytes for each in self.processes if each.pss_bytes is not None]
        return sum(known) if len(known) == len(self.processes) else None


@dataclass(frozen=True)
class ServedSubject:
    """A subject on a server of its own, or on a running one that is seen from outside, and its clients.

    `before_bytes` is the server's resident memory before it was asked for anything; `watch` sees the GPUs
    where memory is measured of one that computes on them.
    """

    subject: Subject
    server: Server | None
    loads: tuple[TritonLoad, ...]
    gauges: ServerGauges | None = None
    group: Path | None = None
    before_bytes: int = 0
    watch: GpuWatch | None = None

    @property
    def load(self) -> TritonLoad:
        """The client for what one asks."""
        return self.loads[0]

    @property
    def has_measures(self) -> bool:
        """Whether the model tells its sparsity."""
        return RHO in self.load.outputs

    def process_ids(self) -> list[int]:
        """Return the ids of the server's processes; none of a running server of others."""
        return [] if self.server is None else self.server.process_ids()

    def why(self, error: Exception) -> str:
        """Return why the server did not answer: what its processes say of it, where they say more."""
        if self.server is not None:
            try:
                self.server.check()
            except ServerError as reason:
                return str(reason)
        return str(error)

    def steady(self) -> SteadyReading | None:
        """Return what the server holds now; None of a running server of others.

        Raises:
            ServerError: a process is gone.
        """
        if self.server is None or self.gauges is None:
            return None
        pids = self.server.process_ids()
        group = None if self.group is None else group_peak_bytes(self.group)
        return SteadyReading(
            self.before_bytes,
            tuple(read_processes(pids)),
            group,
            self.gauges.gpu_bytes(),
        )

    def repeat(self, batches: Sequence[Batch], order: Sequence[int]) -> None:
        """Have every client send the batches in the `order` of their numbers, each from another place on."""
        for number, load in enumerate(self.loads):
            first = number * len(order) // len(self.loads)
            load.repeat(batches, [*order[first:], *order[:first]])


@dataclass(frozen=True)
class Place:
    """Where servers run: `threads` of every session, so that variants are equal, on `cores`.

    None means the cores of this process. What they take is read by `meter`. They are containers of `image`,
    or processes of this machine where it is None.
    """

    threads: int
    cores: frozenset[int] | None
    meter: PowerMeter
    image: str | None = None

    def server(self, options: ServerOptions, view: RepositoryView) -> Server:
        """Return a server that is to run there."""
        if self.image is None:
            return TritonServer(options, view)
        cpuset = None if self.cores is None else ",".join(map(str, sorted(self.cores)))
        return ContainerServer(
            options, ContainerOptions(self.image, cpuset=cpuset, tells_statistics=True), view
        )


@contextmanager
def on_cores(cores: frozenset[int] | None) -> Iterator[None]:
    """Keep this thread, and the threads and processes that it starts, on some cores; None for where it is."""
    former = os.sched_getaffinity(0)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, former)


@contextmanager
def serving(subject: Subject, place: Place, clients: int, *, for_memory: bool) -> Iterator[ServedSubject]:
    """Serve one subject alone on free loopback ports, for so many `clients`, as `place` says.

    With `for_memory`, ONNX Runtime's CPU arena is off and the C library gives blocks back as soon as they are
    freed; of a server that computes on GPUs its arenas there are watched, and it warms up with a short row
    alone, so that they have what requests need. The server has a control group of its own where one may be
    made, and a container's where it is seen.

    Raises:
        ServerError: the server could not be started or does not answer.
    """

    def edit(config: ModelConfig) -> None:
        config.version_policy.specific.versions.append(subject.entry.manifest.version)
        if config.backend == "onnxruntime" or config.platform == "onnxruntime_onnx":
            config.parameters["intra_op_thread_count"].string_value = str(place.threads)
            if for_memory:
                config.parameters["enable_mem_arena"].string_value = "0"
                del config.model_warmup[1:]

    is_watched = for_memory and subject.entry.manifest.device == "cuda"
    environment = {"MALLOC_MMAP_THRESHOLD_": str(MALLOC_MMAP_THRESHOLD)} if for_memory else {}
    with ExitStack() as stack:
        group = stack.enter_context(control_group(next(_numbers))) if place.image is None else None
        options = ServerOptions(
            repository=subject.repository,
            http_port=0,
            grpc_port=0,
            metrics_port=0,
            portable=subject.variant == "portable",
            environment=environment,
            control_group=group,
            extra_args=(ARENA_LOG,) if is_watched else (),
        )
        server = place.server(options, RepositoryView(subject.loads, edit))
        watch = GpuWatch(place.meter, server.log_path) if is_watched else None
        with on_cores(place.cores):
            stack.enter_context(server)
        pids = server.process_ids()
        before = resident_bytes(pids)
        if isinstance(server, ContainerServer):
            group = container_group(pids[0], server.id)
        gauges = ServerGauges(server, place.meter)
        loads = tuple(_clients(stack, subject, server.grpc_url, clients, gauges, server.grpc_headers))
        yield ServedSubject(subject, server, loads, gauges, group, before, watch)


@contextmanager
def attached(
    subject: Subject, url: str, ca_certificates: Path | None, clients: int
) -> Iterator[ServedSubject]:
    """Ask a running server at the address of its gRPC, of which only answers are seen.

    Raises:
        ServerError: the server does not answer, or has no such model.
    """
    with ExitStack() as stack:
        loads = tuple(_clients(stack, subject, url, clients, ca_certificates=ca_certificates))
        yield ServedSubject(subject, None, loads)


def _clients(
    stack: ExitStack,
    subject: Subject,
    url: str,
    number: int,
    gauges: ServerGauges | None = None,
    headers: Mapping[str, str] | None = None,
    ca_certificates: Path | None = None,
) -> Iterator[TritonLoad]:
    task = subject.entry.manifest.task
    output = _text_output(task) if subject.variant == "text" else task.graph_output
    for _ in range(number):
        load = TritonLoad(url, subject.served_as, output, gauges, headers, ca_certificates)
        yield stack.enter_context(load)


def _text_output(task: Task) -> str:
    """Return the one output of a public model that clients read first: text where there is any."""
    texts = [tensor.name for tensor in task.outputs if tensor.datatype == "BYTES"]
    return texts[0] if texts else task.outputs[0].name
