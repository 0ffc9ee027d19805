"""Requests to a running server by stock tritonclient, as any client would make them."""

from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.grpc
import tritonclient.http

from sparse_serve.triton.launcher import TritonServer

Array = npt.NDArray[Any]

MODULES = {"http": tritonclient.http, "grpc": tritonclient.grpc}


def url_of(server: TritonServer, protocol: str) -> str:
    return server.grpc_url if protocol == "grpc" else server.http_url.removeprefix("http://")


def infer(
    server: TritonServer, protocol: str, name: str, inputs: dict[str, Array], *outputs: str
) -> list[Array]:
    """Ask a model for the named outputs."""
    module = MODULES[protocol]
    tensors = []
    for key, array in inputs.items():
        kind = {"O": "BYTES", "i": "INT64"}[array.dtype.kind]
        tensors.append(module.InferInput(key, list(array.shape), kind))
        tensors[-1].set_data_from_numpy(array)
    with module.InferenceServerClient(url_of(server, protocol)) as client:
        wanted = [module.InferRequestedOutput(output) for output in outputs]
        result = client.infer(name, tensors, outputs=wanted)
        return [result.as_numpy(output) for output in outputs]


def column(*texts: str | bytes) -> Array:
    """Return texts as an input of a model takes them: one a row."""
    return np.array([[text.encode() if isinstance(text, str) else text] for text in texts], dtype=object)


def texts_of(*texts: str | bytes) -> dict[str, Array]:
    return {"TEXT": column(*texts)}
