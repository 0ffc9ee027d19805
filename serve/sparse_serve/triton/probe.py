"""Whether a Triton answers, asked over plain HTTP, and what its log says when it does not."""

import http.client
import json
import math
import re
from typing import Any

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInput

from sparse_serve.errors import ServerError
from sparse_serve.repository.config import WARMUP_MASK

_READY_SECONDS = 2.0
_SHORTEST_TIMEOUT = 1.0
_WIRE_NAMES = {DataType.TYPE_STRING: "BYTES"}

# "E0101 12:00:00.000000 1 server.cc:1] message", the message in quotes in newer releases.
_LOG_LINE = re.compile(r'^[EF]\d{4} [\d:.]+ \d+ \S+\] "?(?P<message>.*?)"?$')
_UNAVAILABLE = re.compile(r"^\| (?P<model>\S+)\s+\| (?P<version>\d+)\s+\| UNAVAILABLE: (?P<reason>.*)\|$")
_REFUSED = re.compile(r"unrecognized option|requires an argument|^error:")
_TABLE_NEXT_LINE = re.compile(r"^\| {2,}\| {2,}\| (?P<more>.*)\|$")


def is_ready(url: str) -> bool:
    """Return whether the server at `host:port` calls itself and its models ready."""
    try:
        return _request(url, "GET", "/v2/health/ready", None, _READY_SECONDS)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def infer(url: str, model: str, config: ModelConfig, timeout: float, *, may_refuse: bool) -> None:
    """Have `model` answer one row of zeros, its free axes of length 1 and its attention mask of ones.

    With `may_refuse`, a model that calls such a row an invalid argument has answered too.

    Raises:
        ServerError: the model does not answer.
    """
    body = {"inputs": [_sample(tensor, config) for tensor in config.input if not tensor.optional]}
    path = f"/v2/models/{model}/infer"
    try:
        status, answer = _request(url, "POST", path, json.dumps(body), max(timeout, _SHORTEST_TIMEOUT))
    except (OSError, http.client.HTTPException) as error:
        raise ServerError(f"model '{model}' does not answer: {error}") from error
    if status != 200 and not (may_refuse and status == 400):
        raise ServerError(f"model '{model}' does not answer: {' '.join(answer.split())}")


def _sample(tensor: ModelInput, config: ModelConfig) -> dict[str, Any]:
    shape = [1] * (config.max_batch_size > 0) + [1 if dim == -1 else dim for dim in tensor.dims]
    filler: Any = int(tensor.name == WARMUP_MASK)
    if tensor.data_type == DataType.TYPE_STRING:
        filler = ""
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


def reason_in_log(log: str) -> str:
    """Return the one line of a Triton log that best says why it did not start."""
    lines = log.splitlines()
    for index, line in enumerate(lines):
        found = _UNAVAILABLE.match(line)
        if found:
            reason = found["reason"].strip()
            for more in map(_TABLE_NEXT_LINE.match, lines[index + 1 :]):
                if more is None or more["more"].strip() == "At:":  # a Python stack follows
                    break
                reason = f"{reason} {more['more'].strip()}"
            return f"model '{found['model']}' version {found['version']}: {reason.strip()}"
    errors = [found["message"] for found in map(_LOG_LINE.match, lines) if found]
    errors = [message for message in errors if "CudaDriverHelper" not in message]  # said on every CPU
    if errors:
        return errors[0]
    written = [line.strip() for line in lines if line.strip()]
    refused = [line for line in written if _REFUSED.search(line)]
    return (refused or written[-1:] or ["it wrote no log"])[0]
