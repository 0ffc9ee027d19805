"""What a gateway lets through to an entry's server, from the entry's own configuration."""

from dataclasses import dataclass
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from sparse_serve.repository.config import CONFIG_NAME, health_request_of, read_config
from sparse_serve.repository.entries import Entry

DEFAULT_MAX_BODY = 4 << 20
"""Bytes of a request. The bundled Triton ends at JSON of 5 MB."""
DEFAULT_REQUEST_TIMEOUT = 30.0
DEFAULT_QUEUE_TIMEOUT = 2.0

HEALTH_FALL = 2
_HEALTH_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is admitted, of HTTP and of gRPC each.

    Attributes:
        max_body: bytes of a request's body, or of its gRPC message.
        max_requests: inferences that the server has at the same time.
        max_pending_requests: those that wait for it; more are refused at once.
        request_timeout: seconds that the server may take for an answer.
        queue_timeout: seconds that an inference may wait for the server.
    """

    max_body: int = DEFAULT_MAX_BODY
    max_requests: int
    max_pending_requests: int
    request_timeout: float = DEFAULT_REQUEST_TIMEOUT
    queue_timeout: float = DEFAULT_QUEUE_TIMEOUT

    @property
    def health_timeout(self) -> float:
        """Seconds that the server may take for a health check.

        A check does not wait in the gateway. In the server it waits for what the gateway has let in, none of
        which may take longer than a request may: so a loaded server answers in time, and a hung one does not.
        """
        return self.request_timeout

    @property
    def health_interval(self) -> float:
        """Seconds between two health checks."""
        return min(_HEALTH_SECONDS, self.request_timeout)


def full_batches(entry: Entry) -> int:
    """Return how many inferences of one text fill a batch of each instance of the entry's graph.

    Raises:
        RepositoryError: a configuration of the entry cannot be read.
    """
    public, graph = (read_config(path / CONFIG_NAME) for path in (entry.path, entry.graph_path))
    return instances(graph) * int(public.max_batch_size)


def instances(graph: ModelConfig) -> int:
    """Return how many copies of a model compute at the same time."""
    # Triton takes a group without a count for one instance.
    return sum(max(1, group.count) for group in graph.instance_group) or 1


def health_request(entry: Entry) -> dict[str, Any]:
    """Return the JSON of an inference of one short text, as the entry's HTTP takes it."""
    return health_request_of(read_config(entry.path / CONFIG_NAME), "token_count")
