"""Clients of a model, what they are told, and how long that took."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import tritonclient.grpc
import tritonclient.http
from servers import OUTPUT
from tritonclient.utils import InferenceServerException

from sparse_serve.connection import Protocol
from sparse_serve.profiling.measure import PERCENTILE_METHOD

TIMEOUT_S = 60.0
WIRE_TYPES = {"O": "BYTES", "i": "INT64", "f": "FP32"}
MESSAGE_CHARACTERS = 120
Answer = npt.NDArray[np.float32]
Request = Mapping[str, npt.NDArray[Any]]


class Asker:
    """A client of one model, by stock tritonclient."""

    def __init__(self, url: str, protocol: Protocol, model: str) -> None:
        self._api: Any = tritonclient.http if protocol == "http" else tritonclient.grpc
        self._model = model
        self._options: dict[str, float] = {}
        if protocol == "http":
            self._client = self._api.InferenceServerClient(
                url, connection_timeout=TIMEOUT_S, network_timeout=TIMEOUT_S
            )
        else:
            self._client = self._api.InferenceServerClient(url)
            self._options = {"client_timeout": TIMEOUT_S}

    def ask(self, request: Request) -> Answer:
        wanted = [self._api.InferRequestedOutput(OUTPUT)]
        inputs = tensors_of(self._api, request)
        result = self._client.infer(self._model, inputs, outputs=wanted, **self._options)
        answer: Answer = result.as_numpy(OUTPUT)
        return answer


def tensors_of(api: Any, request: Request) -> list[Any]:
    """Return a request's inputs as the client of a protocol sends them."""
    tensors = []
    for name, array in request.items():
        tensors.append(api.InferInput(name, list(array.shape), WIRE_TYPES[array.dtype.kind]))
        tensors[-1].set_data_from_numpy(array)
    return tensors


def one_line(error: Exception) -> str:
    """Return a message with its numbers as N, so that equal ones are counted together."""
    if isinstance(error, InferenceServerException):
        text = error.message()
    elif isinstance(error, grpc.RpcError):
        text = error.details()
    else:
        text = f"{type(error).__name__}: {error}"
    return re.sub(r"\d+", "N", " ".join(str(text).split()))[:MESSAGE_CHARACTERS]


def percentile_ms(seconds: Sequence[float], percentile: float) -> float:
    return float(np.percentile(seconds, percentile, method=PERCENTILE_METHOD)) * 1000
