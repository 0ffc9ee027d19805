"""A client of the public models: texts in, labels and scores out, over HTTP or gRPC."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any, Literal

import grpc
import numpy as np
import numpy.typing as npt
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.utils import InferenceServerException

from sparse_serve.errors import OptionError, RequestError
from sparse_serve.tasks import json_array

Protocol = Literal["http", "grpc"]

_TIMEOUT_SECONDS = 600.0
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[\w.-]+):(?P<port>[0-9]{1,5})")
_HIGHEST_PORT = 65535
_OUTPUTS = ("label", "scores", "logits", "token_count", "truncated")
# Used where the server keeps its model configurations to itself; a lower limit is read from its refusal.
_ASSUMED_BATCH_SIZE = 64
# gRPC gives these the status with which Triton itself says that it is overloaded.
_LOST_CONNECTION = re.compile(
    "failed to connect|socket closed|connection reset|broken pipe|goaway", re.IGNORECASE
)
_BATCH_LIMIT = re.compile(r"batch-size must be <= (\d+)")


@dataclass(frozen=True)
class ClassScore:
    """One class and its score; `label` is None on models without labels."""

    index: int
    label: str | None
    score: float


@dataclass(frozen=True)
class Prediction:
    """What a public model answers for one text.

    `label` is the best label, for multi-label models a JSON array of all with a score of at least 0.5, for
    regression the value, or a JSON array of several. `score` is the highest score, for regression the
    largest value; `top` the best classes, best first. `token_count` counts the tokens the model saw,
    `truncated` tells whether the text had more.
    """

    label: str
    score: float
    top: tuple[ClassScore, ...]
    logits: tuple[float, ...]
    token_count: int
    truncated: bool

    @property
    def answer(self) -> str | list[object]:
        """The label, with a JSON array as the list it is."""
        array = json_array(self.label)
        return self.label if array is None else array


class Classifier:
    """Classifies texts with a served entry. Not thread-safe over HTTP: use one for each thread."""

    def __init__(self, url: str, protocol: Protocol = "http") -> None:
        """Prepare a client for the server at `host:port`; nothing is sent yet.

        Raises:
            OptionError: the address is malformed.
        """
        self.url = url
        self.protocol = protocol
        self._api: ModuleType = triton_http if protocol == "http" else triton_grpc
        self._labels: dict[str, list[str | None]] = {}
        self._batch_sizes: dict[str, int] = {}
        address = _ADDRESS.fullmatch(url)
        if address is None or int(address["port"]) > _HIGHEST_PORT:
            raise OptionError(f"'{url}' is no address of a server: give host:port, such as 127.0.0.1:8000")
        if protocol == "http":
            # Over gRPC the time limit goes with each call.
            timeouts = {"connection_timeout": _TIMEOUT_SECONDS, "network_timeout": _TIMEOUT_SECONDS}
            self._client = triton_http.InferenceServerClient(url, **timeouts)
        else:
            self._client = triton_grpc.InferenceServerClient(url)

    def __enter__(self) -> "Classifier":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def classify(
        self,
        name: str,
        texts: Sequence[str],
        text_pairs: Sequence[str] | None = None,
        top_k: int | None = None,
    ) -> list[Prediction]:
        """Classify texts, or pairs of texts, in batches of at most the model's size.

        `top_k` fills `Prediction.top` with that many classes.

        Raises:
            RequestError: the server cannot be reached or refuses a request.
            ValueError: `text_pairs` has another length than `texts`, or `top_k` is below 1.
        """
        if text_pairs is not None and len(text_pairs) != len(texts):
            raise ValueError(f"{len(texts)} texts but {len(text_pairs)} text pairs")
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k is {top_k}, at least 1 is needed")
        labels = [] if top_k is None else self.labels(name)
        predictions: list[Prediction] = []
        while len(predictions) < len(texts):
            start = len(predictions)
            rows = slice(start, start + self.batch_size(name))
            try:
                answer = self._infer(name, texts[rows], None if text_pairs is None else text_pairs[rows])
            except RequestError as error:
                limit = _BATCH_LIMIT.search(str(error))
                if limit is None or int(limit[1]) >= self._batch_sizes[name]:
                    raise
                self._batch_sizes[name] = int(limit[1])
                continue
            predictions += _predictions(answer, labels, top_k)
        return predictions

    def batch_size(self, name: str) -> int:
        """Return how many texts the model takes in one request.

        Raises:
            RequestError: the server cannot be reached or does not know the model.
        """
        if name not in self._batch_sizes:
            self._batch_sizes[name] = self._configured_batch_size(name)
        return self._batch_sizes[name]

    def labels(self, name: str) -> list[str | None]:
        """Return the model's labels in the order of its scores; None where it has none.

        Raises:
            RequestError: the server cannot be reached or does not know the model.
        """
        if name not in self._labels:
            metadata = self._call(name, "get_model_metadata", name, **self._as_json())
            shapes = {tensor["name"]: tensor["shape"] for tensor in metadata["outputs"]}
            if "scores" not in shapes:
                raise RequestError(f"model '{name}' has no output 'scores': it is no text classifier of ours")
            count = int(shapes["scores"][-1])
            scores = self._api.InferRequestedOutput("scores", class_count=count)
            result = self._call(name, "infer", name, self._inputs([""], None), outputs=[scores])
            classes = [value.decode().split(":", 2) for value in result.as_numpy("scores").reshape(-1)]
            found = {int(parts[1]): parts[2] if len(parts) > 2 else None for parts in classes}
            self._labels[name] = [found.get(index) for index in range(count)]
        return self._labels[name]

    def _configured_batch_size(self, name: str) -> int:
        try:
            config = self._call(name, "get_model_config", name, **self._as_json())
        except RequestError as error:
            if isinstance(error.__cause__, InferenceServerException) and "restricted" in str(error):
                return _ASSUMED_BATCH_SIZE
            raise
        return max(1, int(config.get("config", config).get("max_batch_size", 1)))

    def _infer(
        self, name: str, texts: Sequence[str], text_pairs: Sequence[str] | None
    ) -> dict[str, npt.NDArray[Any]]:
        outputs = [self._api.InferRequestedOutput(output) for output in _OUTPUTS]
        result = self._call(name, "infer", name, self._inputs(texts, text_pairs), outputs=outputs)
        return {output: result.as_numpy(output) for output in _OUTPUTS}

    def _inputs(self, texts: Sequence[str], text_pairs: Sequence[str] | None) -> list[Any]:
        inputs = []
        for tensor, values in (("TEXT", texts), ("TEXT_PAIR", text_pairs)):
            if values is None:
                continue
            array = np.array([value.encode() for value in values], dtype=np.object_)[:, None]
            inputs.append(self._api.InferInput(tensor, list(array.shape), "BYTES"))
            inputs[-1].set_data_from_numpy(array)
        return inputs

    def _as_json(self) -> dict[str, bool]:
        return {"as_json": True} if self.protocol == "grpc" else {}

    def _call(self, name: str, method: str, *args: Any, **kwargs: Any) -> Any:
        if self.protocol == "grpc":
            kwargs["client_timeout"] = _TIMEOUT_SECONDS
        try:
            return getattr(self._client, method)(*args, **kwargs)
        except InferenceServerException as error:
            if error.status() == str(grpc.StatusCode.DEADLINE_EXCEEDED):
                raise self._unreachable(f"timed out after {_TIMEOUT_SECONDS:g} s") from error
            is_unavailable = error.status() == str(grpc.StatusCode.UNAVAILABLE)
            if is_unavailable and _LOST_CONNECTION.search(str(error.message())):
                raise self._unreachable(error.message()) from error
            message = " ".join(str(error.message()).split())
            raise RequestError(
                f"the server at {self.url} refused the request to '{name}': {message}"
            ) from error
        except Exception as error:  # whatever geventhttpclient and sockets raise on a broken connection
            raise self._unreachable(str(error) or type(error).__name__) from error

    def _unreachable(self, reason: str) -> RequestError:
        return RequestError(
            f"no answer from {self.url} over {self.protocol}: {' '.join(reason.split())}; "
            "is `sparse-serve serve` running there?"
        )


def _predictions(
    answer: dict[str, npt.NDArray[Any]], labels: list[str | None], top_k: int | None
) -> list[Prediction]:
    return [
        Prediction(
            label=label.decode(),
            score=float(scores.max()),
            top=tuple(
                ClassScore(int(index), labels[index], float(scores[index]))
                for index in np.argsort(-scores, kind="stable")[: top_k or 0]
            ),
            logits=tuple(map(float, logits)),
            token_count=int(token_count),
            truncated=bool(truncated),
        )
        for label, scores, logits, token_count, truncated in zip(
            answer["label"][:, 0],
            answer["scores"],
            answer["logits"],
            answer["token_count"][:, 0],
            answer["truncated"][:, 0],
            strict=True,
        )
    ]
