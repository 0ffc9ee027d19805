"""Whether a Triton answers, asked over plain HTTP."""

import http.client
import json

from tritonclient.grpc.model_config_pb2 import ModelConfig

from sparse_serve.errors import ServerError
from sparse_serve.repository.config import health_request_of

_READY_SECONDS = 2.0
_SHORTEST_TIMEOUT = 1.0
_REFUSED, _BUSY = 400, 503


def is_ready(url: str) -> bool:
    """Return whether the server at `host:port` calls itself and its models ready."""
    try:
        return _request(url, "GET", "/v2/health/ready", None, _READY_SECONDS)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def infer(url: str, model: str, config: ModelConfig, timeout: float, *, may_refuse: bool) -> None:
    """Have `model` answer the row of `health_request`.

    With `may_refuse`, a model that calls such a row an invalid argument has answered too.

    Raises:
        ServerError: the model does not answer.
    """
    _ask(url, model, config, timeout, (_REFUSED,) if may_refuse else ())


def require_alive(url: str, model: str, config: ModelConfig, timeout: float) -> None:
    """Ask as `infer` does, and let pass what an overloaded but living model does.

    Raises:
        ServerError: the model answers with a fault, or nothing listens any more.
    """
    try:
        _ask(url, model, config, timeout, (_REFUSED, _BUSY))
    except ServerError as error:
        if not isinstance(error.__cause__, TimeoutError):
            raise


def _ask(url: str, model: str, config: ModelConfig, timeout: float, accepted: tuple[int, ...]) -> None:
    body, path = health_request_of(config), f"/v2/models/{model}/infer"
    try:
        status, answer = _request(url, "POST", path, json.dumps(body), max(timeout, _SHORTEST_TIMEOUT))
    except (OSError, http.client.HTTPException) as error:
        raise ServerError(f"model '{model}' does not answer: {error}") from error
    if status != 200 and status not in accepted:
        raise ServerError(f"model '{model}' does not answer: {' '.join(answer.split())}")


def _request(url: str, method: str, path: str, body: str | None, timeout: float) -> tuple[int, str]:
    connection = http.client.HTTPConnection(url, timeout=timeout)
    try:
        connection.request(method, path, body=body)
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8", errors="replace")
    finally:
        connection.close()
