"""The variants of a model: where each is found, and how it is served to be measured."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from sparse_serve.profiling.load import TritonLoad
from sparse_serve.profiling.report import Absent, Variant
from sparse_serve.profiling.workload import Batch
from sparse_serve.repository.config import CONFIG_NAME, GRAPH_NAME, graph_name, load_graph, nested
from sparse_serve.repository.entries import BASELINES_NAME, Entry
from sparse_serve.tasks import Task
from sparse_serve.triton.launcher import RepositoryView, TritonServer
from sparse_serve.triton.server import ServerOptions

# Blocks from this size on are mapped by the C library and unmapped when freed. Left to itself it raises this
# bound to 32 MiB, keeps what loading the model freed, and serves requests from there: their memory would be
# counted as idle (measured: 0 MB instead of 14 MB at 256 tokens).
MALLOC_MMAP_THRESHOLD = 65536


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
        subject = _subject(entry, variant)
        if variant == "portable" and entry.takes_text and entry.token_path is None:
            reason = "no standard operator can take the place of its tokenizer: export it with --token-model"
            absent.append(Absent(model=entry.name, variant=variant, reason=reason))
        elif (subject.repository / subject.served_as / CONFIG_NAME).is_file():
            subjects.append(subject)
        else:
            reason = f"{subject.repository} holds no model '{subject.served_as}': export it --with-baselines"
            absent.append(Absent(model=entry.name, variant=variant, reason=reason))
    return subjects, absent


def _subject(entry: Entry, variant: Variant) -> Subject:
    repository = entry.path.parent
    graph = graph_name(entry.name)
    if variant == "model" and entry.takes_text:
        return Subject(entry, variant, repository, entry.name, (entry.name,))
    if variant == "text":
        return Subject(entry, variant, repository, entry.name, (entry.name, graph))
    if variant in ("model", "portable"):
        return Subject(entry, variant, repository, graph, (graph,))
    name = entry.manifest.baselines.get(variant, f"{entry.name}_{variant}")
    return Subject(entry, variant, entry.path / BASELINES_NAME, name, (name,))


def attention_heads(entry: Entry) -> int | None:
    """Return the number of attention heads as the graph's attention nodes have it, None if none says so.

    Raises:
        RepositoryError: the graph cannot be read.
    """
    model = load_graph(entry.graph_path / str(entry.manifest.version) / GRAPH_NAME)
    attributes = (attribute for node in nested(model.graph.node) for attribute in node.attribute)
    return next((int(attribute.i) for attribute in attributes if attribute.name == "num_heads"), None)


@dataclass(frozen=True)
class ServedSubject:
    """A subject on a server of its own, and its clients."""

    subject: Subject
    server: TritonServer
    loads: tuple[TritonLoad, ...]

    @property
    def load(self) -> TritonLoad:
        """The client for what one asks."""
        return self.loads[0]

    def repeat(self, batches: Sequence[Batch]) -> None:
        """Have every client send the batches in turn, each beginning with another."""
        for number, load in enumerate(self.loads):
            first = number % len(batches)
            load.repeat([*batches[first:], *batches[:first]])


@contextmanager
def serving(subject: Subject, threads: int, clients: int, *, for_memory: bool) -> Iterator[ServedSubject]:
    """Serve one subject alone on free loopback ports, for so many `clients`.

    Every session gets `threads` threads, so that variants are equal. With `for_memory`, ONNX Runtime's arena
    is off and the C library gives blocks back as soon as they are freed.

    Raises:
        ServerError: the server could not be started or does not answer.
    """

    def edit(config: ModelConfig) -> None:
        config.version_policy.specific.versions.append(subject.entry.manifest.version)
        if config.backend == "onnxruntime" or config.platform == "onnxruntime_onnx":
            config.parameters["intra_op_thread_count"].string_value = str(threads)
            if for_memory:
                config.parameters["enable_mem_arena"].string_value = "0"

    environment = {"MALLOC_MMAP_THRESHOLD_": str(MALLOC_MMAP_THRESHOLD)} if for_memory else {}
    options = ServerOptions(
        repository=subject.repository,
        http_port=0,
        grpc_port=0,
        metrics_port=0,
        portable=subject.variant == "portable",
        environment=environment,
    )
    task = subject.entry.manifest.task
    output = _text_output(task) if subject.variant == "text" else task.graph_output
    with TritonServer(options, RepositoryView(subject.loads, edit)) as server, ExitStack() as stack:
        loads = tuple(
            stack.enter_context(TritonLoad(server.grpc_url, subject.served_as, output))
            for _ in range(clients)
        )
        yield ServedSubject(subject, server, loads)


def _text_output(task: Task) -> str:
    """Return the one output of a public model that clients read first: text where there is any."""
    texts = [tensor.name for tensor in task.outputs if tensor.datatype == "BYTES"]
    return texts[0] if texts else task.outputs[0].name
