"""A profile's requests against one model of a running Triton, over gRPC, timed part by part."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from sparse_serve.connection import grpc_client
from sparse_serve.errors import ServerError
from sparse_serve.profiling.windows import GpuSample, ServerTimes, Timing
from sparse_serve.profiling.workload import Batch
from sparse_serve.repository.signature import TASK_INPUT, TEXT_INPUT, TEXT_PAIR_INPUT

# Portable attention at full length can take seconds; a server that hangs must still end the profile.
_TIMEOUT_S = 300.0

# How long a request that was answered is waited for in the statistics, and how often they are asked for it.
_COUNTED_S, _ASKED_AGAIN_S = 1.0, 0.001

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Answer:
    """The tensors a request was answered with, by name, and its timing."""

    tensors: dict[str, Array]
    timing: Timing


class Gauges(Protocol):
    """What can be seen of a server's processes and its machine from beside it."""

    def processor_ns(self) -> int:
        """Return the processor time of the server so far, in ns."""

    def energy_mj(self) -> int:
        """Return the energy that the machine has taken so far, in mJ; 0 where it does not tell."""

    def gpu_sample(self) -> GpuSample | None:
        """Return what the GPU does now; None where there is none."""


class TritonLoad:
    """One client of one model; sends batches as the model takes them, as text or as token ids.

    As a `measure.Load` it sends the batches given to `repeat`. Clients of one server share a
    connection, as perf_analyzer's do: what arrives together is batched together. `headers` open the server's
    statistics.
    """

    def __init__(
        self,
        grpc_url: str,
        model: str,
        output: str,
        gauges: Gauges | None = None,
        headers: Mapping[str, str] | None = None,
        ca_certificates: Path | None = None,
    ) -> None:
        self.model = model
        self.output = output
        self._gauges = gauges
        self._headers = dict(headers or {})
        self._has_statistics = True
        self._client = grpc_client(grpc_url, ca_certificates)
        self._batches: Iterator[tuple[int, Batch]] = iter(())
        try:
            metadata = self._client.get_model_metadata(model, client_timeout=_TIMEOUT_S)
            self.server_version = str(self._client.get_server_metadata(client_timeout=_TIMEOUT_S).version)
        except InferenceServerException as error:
            self._client.close()
            raise self._failure(error) from error
        self._inputs = [str(tensor.name) for tensor in metadata.inputs]
        self.takes_text = TEXT_INPUT in self._inputs
        self.outputs: Sequence[str] = [str(tensor.name) for tensor in metadata.outputs]

    def __enter__(self) -> "TritonLoad":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def repeat(self, batches: Sequence[Batch], order: Sequence[int]) -> None:
        """Set the batches that `request` sends, over and over, in the `order` of their numbers."""
        self._batches = cycle([(number, batches[number]) for number in order])

    def request(self) -> Timing:
        """Send the next batch.

        Raises:
            ServerError: the server refused it, or is gone.
        """
        number, batch = next(self._batches)
        return replace(self.send(batch, (self.output,)).timing, batch=number)

    def send(self, batch: Batch, outputs: Sequence[str]) -> Answer:
        """Send one batch, ask for `outputs`, and return them.

        Raises:
            ServerError: the server refused the request, or is gone.
        """
        start = time.perf_counter_ns()
        inputs = [_input(name, array) for name, array in self._tensors(batch).items()]
        wanted = [InferRequestedOutput(name) for name in outputs]
        sent = time.perf_counter_ns()
        try:
            result = self._client.infer(self.model, inputs, outputs=wanted, client_timeout=_TIMEOUT_S)
        except InferenceServerException as error:
            raise self._failure(error) from error
        answered = time.perf_counter_ns()
        tensors = {name: result.as_numpy(name) for name in outputs}
        received = time.perf_counter_ns()
        return Answer(tensors, Timing(sent - start, answered - sent, received - answered))

    def server_times(self, at_least: int = 0) -> ServerTimes:
        """Return Triton's statistics of the model since it was loaded, and what the gauges show.

        They are asked for until they have `at_least` so many requests, or a moment has passed. A running
        server that keeps its statistics closed is taken to have none.

        Raises:
            ServerError: the server is gone.
        """
        deadline = time.monotonic() + _COUNTED_S
        while (told := self._statistics()).requests < at_least and self._has_statistics:
            if time.monotonic() >= deadline:
                break
            time.sleep(_ASKED_AGAIN_S)
        return told + self._gauged()

    def _statistics(self) -> ServerTimes:
        total = ServerTimes()
        if not self._has_statistics:
            return total
        try:
            answer = self._client.get_inference_statistics(
                self.model, headers=self._headers, client_timeout=_TIMEOUT_S
            )
        except InferenceServerException as error:
            if self._gauges is not None or "UNAVAILABLE" in str(error.status()):
                raise self._failure(error) from error
            self._has_statistics = False
            return total
        for version in answer.model_stats:
            stats = version.inference_stats
            total += ServerTimes(
                requests=stats.success.count,
                queue_ns=stats.queue.ns,
                compute_input_ns=stats.compute_input.ns,
                compute_infer_ns=stats.compute_infer.ns,
                compute_output_ns=stats.compute_output.ns,
            )
        return total

    def gpu_sample(self) -> GpuSample | None:
        """Return what the GPU does now; None where there is none, or it is another machine's."""
        return None if self._gauges is None else self._gauges.gpu_sample()

    def _gauged(self) -> ServerTimes:
        if self._gauges is None:
            return ServerTimes()
        return ServerTimes(processor_ns=self._gauges.processor_ns(), energy_mj=self._gauges.energy_mj())

    def _tensors(self, batch: Batch) -> dict[str, Array]:
        if self.takes_text:
            texts = {TEXT_INPUT: batch.texts, TEXT_PAIR_INPUT: batch.text_pairs, TASK_INPUT: batch.tasks}
            return {
                name: np.array([[text.encode()] for text in column], dtype=np.object_)
                for name, column in texts.items()
                if column is not None
            }
        return {name: batch.arrays[name] for name in self._inputs}

    def _failure(self, error: InferenceServerException) -> ServerError:
        reason = " ".join(str(error.message() or error).split())
        return ServerError(f"model '{self.model}' did not answer while it was measured: {reason}")


def _input(name: str, array: Array) -> InferInput:
    tensor = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array)
    return tensor
