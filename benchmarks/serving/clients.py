"""Clients of a model, and what they are told."""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from sparse_serve.connection import Protocol

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from servers import OUTPUT

TIMEOUT_S = 60.0
WIRE_TYPES = {"O": "BYTES", "i": "INT64", "f": "FP32"}
MESSAGE_CHARACTERS = 120
Answer = npt.NDArray[np.float32]
Request = Mapping[str, npt.NDArray[Any]]


class StockClient:
    """Stock tritonclient of one protocol, which waits so long and no longer; for one thread."""

    def __init__(self, url: str, protocol: Protocol) -> None:
        self.protocol = protocol
        self.api: Any = tritonclient.http if protocol == "http" else tritonclient.grpc
        self._options: dict[str, float] = {}
        if protocol == "http":
            self._client = self.api.InferenceServerClient(
                url, connection_timeout=TIMEOUT_S, network_timeout=TIMEOUT_S
            )
        else:
            self._client = self.api.InferenceServerClient(url)
            self._options = {"client_timeout": TIMEOUT_S}

    def infer(self, model: str, inputs: Sequence[Any], output: str = OUTPUT) -> Any:
        """Return what is answered for one output, as numbers."""
        wanted = [self.api.InferRequestedOutput(output)]
        return self._client.infer(model, inputs, outputs=wanted, **self._options).as_numpy(output)


class Asker(StockClient):
    """A client of one model."""

    def __init__(self, url: str, protocol: Protocol, model: str) -> None:
        super().__init__(url, protocol)
        self._model = model

    def ask(self, request: Request) -> Answer:
        answer: Answer = self.infer(self._model, tensors_of(self.api, request))
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
