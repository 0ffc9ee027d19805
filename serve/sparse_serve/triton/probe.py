"""Whether a Triton answers, asked over plain HTTP."""

import http.client
import json
import math
from typing import Any

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInput

from sparse_serve.errors import ServerError
from sparse_serve.repository.config import task_names
from sparse_serve.repository.signature import TASK_INPUT
from sparse_serve.repository.warmup import WARMUP_MASK

_READY_SECONDS = 2.0
_SHORTEST_TIMEOUT = 1.0
_WIRE_NAMES = {DataType.TYPE_STRING: "BYTES"}
_REFUSED, _BUSY = 400, 503


def is_ready(url: str) -> bool:
    """Return whether the server at `host:port` calls itself and its models ready."""
    try:
        return _request(url, "GET", "/v2/health/ready", None, _READY_SECONDS)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def infer(url: str, model: str, config: ModelConfig, timeout: float, *, may_refuse: bool) -> None:
    """Have `model` answer one row of zeros, its free axes of length 1 and its attention mask of ones.

    Of several tasks it is asked for the first.

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
    tasks = task_names(config)
    needed = [each for each in config.input if not each.optional or (tasks and each.name == TASK_INPUT)]
    body = {"inputs": [_sample(tensor, config, *tasks[:1]) for tensor in needed]}
    path = f"/v2/models/{model}/infer"
    try:
        status, answer = _request(url, "POST", path, json.dumps(body), max(timeout, _SHORTEST_TIMEOUT))
    except (OSError, http.client.HTTPException) as error:
        raise ServerError(f"model '{model}' does not answer: {error}") from error
    if status != 200 and status not in accepted:
        raise ServerError(f"model '{model}' does not answer: {' '.join(answer.split())}")


def _sample(tensor: ModelInput, config: ModelConfig, task: str = "") -> dict[str, Any]:
    shape = [1] * (config.max_batch_size > 0) + [1 if dim == -1 else dim for dim in tensor.dims]
    filler: Any = int(tensor.name == WARMUP_MASK)
    if tensor.data_type == DataType.TYPE_STRING:
        filler = task if tensor.name == TASK_INPUT else ""
    elif tensor.data_type == DataType.TYPE_BOOL:
        filler = False
    datatype = _WIRE_NAMES.get(tensor.data_type) or DataType.Name(tensor.data_type).removeprefix("TYPE_")
    return {"name": tensor.name, "shape": shape, "datatype": datatype, "data": [filler] * math.prod(shape)}


def _request(url: str, method: str, path: str, body: str | None, timeout: float) -> tuple[int, str]:
    connection = http.client.HTTPConnection(url, timeout=timeout)
    try:
        connection.request(method, path, body=body)
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8", errors="replace")
    finally:
        connection.close()
