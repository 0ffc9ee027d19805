"""A server of some of a repository's models, and those who ask it."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tritonclient.grpc import InferenceServerClient
from tritonclient.grpc.model_config_pb2 import ModelConfig

from sparse_serve.profiling.load import TritonLoad
from sparse_serve.profiling.memory import proportional_bytes
from sparse_serve.profiling.workload import Batch
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.server import RepositoryView, ServerOptions

OUTPUT = "logits"


def served(
    repository: Path, models: Sequence[str] | None = None, edit: Callable[[ModelConfig], None] | None = None
) -> TritonServer:
    """Return a server on free ports, of all models unless some are named."""
    options = ServerOptions(repository, http_port=0, grpc_port=0, metrics_port=0)
    return TritonServer(options, RepositoryView(models, edit))


def server_version(grpc_url: str) -> str:
    """Return the version that a server tells."""
    with InferenceServerClient(grpc_url) as client:
        return str(client.get_server_metadata().version)


def make_senders(
    stack: ExitStack, grpc_url: str, model: str, batches: Sequence[Batch], senders: int
) -> list[TritonLoad]:
    """Return so many senders of a model, open as long as the stack, each beginning at another batch."""
    loads = [stack.enter_context(TritonLoad(grpc_url, model, OUTPUT)) for _ in range(senders)]
    for number, load in enumerate(loads):
        first = number * len(batches) // senders
        load.repeat(batches, [*range(first, len(batches)), *range(first)])
    return loads


def pss_bytes(process_ids: Sequence[int]) -> int:
    """Return what processes hold together, with the pages that they share once, whoever else has them.

    Raises:
        OSError: the system does not tell it of all of them.
    """
    shares = proportional_bytes(process_ids)
    if shares is None:
        raise OSError("the memory of a process cannot be read")
    return sum(shares)
