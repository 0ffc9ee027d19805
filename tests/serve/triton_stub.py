"""A stand-in for the Python stub of Triton: runs a `model.py` in this process, and the graph behind it.

Only what the package's text backend uses. Tensors are numpy arrays, text is bytes, as in the real one.
"""

import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any, ClassVar

import numpy.typing as npt
from google.protobuf.json_format import MessageToDict
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from graph_session import open_graph
from sparse_serve.repository.config import CONFIG_NAME, GRAPH_NAME, read_config

FINAL = 1


class Error(Exception):
    INTERNAL, INVALID_ARG, UNAVAILABLE = "INTERNAL", "INVALID_ARG", "UNAVAILABLE"
    CANCELLED = "CANCELLED"

    def __init__(self, message: str, code: str = INTERNAL) -> None:
        super().__init__(message)
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> str:
        return self._code


class Tensor:
    def __init__(self, name: str, array: npt.NDArray[Any]) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> npt.NDArray[Any]:
        return self._array


class Request:
    """An inference request, of a client or of a model that calls another."""

    call: Callable[["Request"], "Response"]

    def __init__(
        self,
        inputs: Sequence[Tensor],
        requested_output_names: Sequence[str],
        model_name: str = "",
        model_version: int = -1,
    ) -> None:
        self.inputs, self.names = list(inputs), list(requested_output_names)
        self.model_name, self.model_version = model_name, model_version
        self.answers: SimpleQueue[Response] = SimpleQueue()
        self.send_failures: list[Exception] = []
        self.is_cancelled = False

    def requested_output_names(self) -> list[str]:
        return self.names

    def get_response_sender(self) -> "Sender":
        return Sender(self)

    def exec(self) -> "Response":
        return Request.call(self)


class Sender:
    """Answers a request later; `answer` waits until it has."""

    def __init__(self, request: Request) -> None:
        self._request, self._answers, self._failures = request, request.answers, request.send_failures

    def is_cancelled(self) -> bool:
        return self._request.is_cancelled

    def send(self, response: "Response", flags: int) -> None:
        assert flags == FINAL
        if self._failures:
            raise self._failures.pop()
        self._answers.put(response)


class Response:
    def __init__(self, output_tensors: Sequence[Tensor] = (), error: Error | None = None) -> None:
        self.tensors, self._error = list(output_tensors), error

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> Error | None:
        return self._error

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        assert self._error is None, self._error
        return {tensor.name(): tensor.as_numpy() for tensor in self.tensors}


class MetricFamily:
    """Counters of one name; those of equal labels are one, as on Triton's metrics port."""

    COUNTER = "counter"

    class _Metric:
        def __init__(self, values: dict[tuple[tuple[str, str], ...], float], labels: dict[str, str]) -> None:
            self._values, self._labels = values, tuple(sorted(labels.items()))
            values.setdefault(self._labels, 0.0)

        def increment(self, value: float) -> None:
            assert value >= 0
            self._values[self._labels] += value

    ports: ClassVar[dict[str, dict[tuple[tuple[str, str], ...], float]]] = {}

    def __init__(self, *, name: str, description: str, kind: str) -> None:
        assert kind == self.COUNTER
        assert description
        self._values = self.ports.setdefault(name, {})

    def Metric(self, *, labels: dict[str, str]) -> "MetricFamily._Metric":  # noqa: N802
        return self._Metric(self._values, labels)


def _find(tensors: Sequence[Tensor], name: str) -> Tensor | None:
    return next((tensor for tensor in tensors if tensor.name() == name), None)


class Graph:
    """NAME_model behind the text backend, recording every call and failing on demand."""

    def __init__(self, folder: Path) -> None:
        self.session: Any = open_graph(folder / "1" / GRAPH_NAME)
        self.calls: list[Request] = []
        self.fault: Callable[[Request], Error | None] = lambda request: None

    def __call__(self, request: Request) -> Response:
        self.calls.append(request)
        if error := self.fault(request):
            return Response(error=error)
        feed = {tensor.name(): tensor.as_numpy() for tensor in request.inputs}
        try:
            arrays = self.session.run(request.names, feed)
        except InvalidArgument as error:
            return Response(error=Error(str(error), Error.INVALID_ARG))
        return Response([Tensor(name, array) for name, array in zip(request.names, arrays, strict=True)])


def answers_of(backend: Any, *requests: Request) -> list[Response]:
    """What requests are answered with, at once or by their senders."""
    returned = backend.execute(list(requests))
    return returned or [each.answers.get(timeout=30) for each in requests]


def load_model(source: Path, model: Path) -> Any:
    """Return the initialized model whose code is `source` and whose Triton folder is `model`."""
    utilities: Any = ModuleType("triton_python_backend_utils")
    utilities.TritonError = Error
    utilities.TritonModelException = type("TritonModelException", (Exception,), {})
    utilities.MetricFamily = MetricFamily
    utilities.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
    utilities.Tensor, utilities.InferenceRequest, utilities.InferenceResponse = Tensor, Request, Response
    utilities.get_input_tensor_by_name = lambda request, name: _find(request.inputs, name)
    utilities.get_output_tensor_by_name = lambda response, name: _find(response.tensors, name)
    specification = importlib.util.spec_from_file_location("served_model", source)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["triton_python_backend_utils"] = utilities
    try:
        specification.loader.exec_module(module)
    finally:
        del sys.modules["triton_python_backend_utils"]
    instance = module.TritonPythonModel()
    instance.initialize(
        {
            "model_config": json.dumps(_config_as_triton_gives_it(model)),
            "model_name": model.name,
            "model_version": "1",
            "model_repository": str(model),
        }
    )
    return instance


def _config_as_triton_gives_it(model: Path) -> dict[str, Any]:
    config: dict[str, Any] = MessageToDict(
        read_config(model / CONFIG_NAME),
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
    return config
