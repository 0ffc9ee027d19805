"""A Triton that loads models when a test tells it to, and what tests ask of them."""

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import numpy.typing as npt
import onnx
import psutil
import tritonclient.grpc
from onnx import ModelProto
from serving import wait_for
from tritonclient.utils import InferenceServerException

from sparse_serve.op_library import library_path
from sparse_serve.repository.config import CONFIG_NAME, GRAPH_NAME, graph_config, to_text
from sparse_serve.repository.signature import graph_signature
from sparse_serve.triton.installation import backend_directory, find_triton
from sparse_serve.triton.preflight import claim_ports

Array = npt.NDArray[Any]
Columns = dict[str, Array]
Edit = Callable[[Any], None]
# So long Triton waits for the other requests of a batch, which come at once.
GATHER_MICROSECONDS = 5_000_000
# A build with sanitizers, and what a process loads first that is not built with them.
SANITIZED, PRELOADED = (
    os.environ.get("SPARSE_SERVE_TEST_BACKEND"),
    os.environ.get("SPARSE_SERVE_TEST_PRELOAD"),
)


class LoadingTriton:
    """A Triton that loads models when it is told to."""

    def __init__(self, folder: Path) -> None:
        installation = find_triton("bundled")
        backends = backend_directory(installation, folder / "backends")
        environment = installation.environment()
        if SANITIZED is not None:
            library = backends / "onnxruntime" / "libtriton_onnxruntime.so"
            library.unlink()  # it may be a link to the one that is installed
            shutil.copyfile(SANITIZED, library)
            environment |= {"LD_PRELOAD": PRELOADED or "", "ASAN_OPTIONS": "detect_leaks=0"}  # Triton's own
        self.repository = folder / "models"
        self._numbers = count()
        self.repository.mkdir()
        http, grpc, metrics = claim_ports("127.0.0.1", 0, 0, 0)
        command = [
            str(installation.executable),
            f"--model-repository={self.repository}",
            f"--backend-directory={backends}",
            "--model-control-mode=explicit",
            "--disable-auto-complete-config",
            *(f"--{protocol}-address=127.0.0.1" for protocol in ("http", "grpc", "metrics")),
            *(f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"),
        ]
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = psutil.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        self.metrics_url = f"http://127.0.0.1:{metrics}/metrics"
        self.client = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{grpc}")
        wait_for(self._is_ready)

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return bool(self.client.is_server_ready())
        except InferenceServerException:
            return False

    def load(self, graph: ModelProto, edit: Edit = lambda config: None, file: str = GRAPH_NAME) -> "Model":
        """Serve a graph, its configuration edited; every call makes another model."""
        folder = self.repository / f"model_{next(self._numbers)}"
        (folder / "1").mkdir(parents=True)
        onnx.save(graph, folder / "1" / file)
        config = graph_config(folder.name, served_signature(graph))
        config.model_operations.op_library_filename[:] = [str(library_path())]
        config.max_batch_size = 64
        del config.model_warmup[:]
        edit(config)
        (folder / CONFIG_NAME).write_text(to_text(config))
        self.client.load_model(folder.name)
        return Model(self.client, folder.name)

    def counted(self, model: "Model") -> dict[str, float]:
        """What counters of this package's say of a model, those that count nothing left out."""
        with urlopen(self.metrics_url) as response:
            lines = response.read().decode().splitlines()
        own = [line for line in lines if line.startswith("sparse_serve_") and f'"{model.name}"' in line]
        return {line.split(" ")[0]: float(line.split(" ")[1]) for line in own if not line.endswith(" 0")}

    def stop(self) -> None:
        self.client.close()
        self.process.terminate()
        if SANITIZED is not None:
            # All models have gone; what the process does besides, before it ends, sanitizers lock up.
            wait_for(lambda: "Found 0 live models" in self.log.read_text(errors="replace"))
            self.process.kill()
        self.process.wait(timeout=60)


class Asked(Future[Columns]):
    """What is answered; `cancel_call` has the server told that nobody waits for it any more."""

    cancel_call: Callable[[], Any]


class Model:
    """What a served model answers."""

    def __init__(self, client: Any, name: str) -> None:
        self.client, self.name = client, name

    def begin(self, columns: Columns, *outputs: str, shape: Sequence[int] | None = None) -> "Asked":
        """Ask for outputs, all unless some are named; do not wait for the answer.

        `shape` is told in the place of that of the columns.
        """
        inputs = []
        for key, array in columns.items():
            kind = "BYTES" if array.dtype == object else "INT64"
            inputs.append(tritonclient.grpc.InferInput(key, list(array.shape), kind))
            inputs[-1].set_data_from_numpy(array)
            inputs[-1].set_shape(shape or array.shape)
        wanted = [tritonclient.grpc.InferRequestedOutput(output) for output in outputs]
        future = Asked()

        def answered(result: Any, error: Exception | None) -> None:
            if error is not None:
                future.set_exception(error)
            else:
                names = [tensor.name for tensor in result.get_response().outputs]
                future.set_result({name: result.as_numpy(name) for name in names})

        call = self.client.async_infer(self.name, inputs, answered, outputs=wanted or None)
        future.cancel_call = call.cancel
        return future

    def ask(self, columns: Columns, *outputs: str) -> Columns:
        return self.begin(columns, *outputs).result(timeout=60)

    def together(self, *requests: Columns) -> list[Columns | InferenceServerException]:
        """What requests that are sent at once are answered with."""
        begun = [self.begin(columns) for columns in requests]
        return [each.exception(timeout=60) or each.result() for each in begun]

    def runs(self) -> Counter[int]:
        """How many runs of the graph there were so far, by their rows."""
        (statistics,) = self.client.get_inference_statistics(self.name).model_stats
        return Counter({each.batch_size: each.compute_infer.count for each in statistics.batch_stats})


def served_signature(graph: ModelProto) -> Any:
    """What a configuration can name: outputs of one row each."""
    signature = graph_signature(graph)
    rows = {
        each.name for each in graph.graph.output if each.type.tensor_type.shape.dim[0].dim_param == "batch"
    }
    return replace(signature, outputs=tuple(each for each in signature.outputs if each.name in rows))


def gathering(rows: int) -> Edit:
    """Have Triton wait until it has requests of so many rows for a batch."""

    def edit(config: Any) -> None:
        config.dynamic_batching.preferred_batch_size[:] = [rows]
        config.dynamic_batching.max_queue_delay_microseconds = GATHER_MICROSECONDS

    return edit


def with_parameter(key: str, value: str) -> Edit:
    def edit(config: Any) -> None:
        config.parameters[key].string_value = value

    return edit


def tokens(ids: Any, mask: Any = None) -> Columns:
    ids = np.array(ids, np.int64)
    mask = np.ones_like(ids) if mask is None else np.array(mask, np.int64)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def assert_same(answer: Columns | InferenceServerException, expected: Columns) -> None:
    assert not isinstance(answer, Exception), answer
    assert answer.keys() == expected.keys()
    for name, array in answer.items():
        np.testing.assert_array_equal(array, expected[name])


def assert_refused(answer: object, message: str) -> None:
    """As what the client can put right, in one line."""
    assert isinstance(answer, InferenceServerException), answer
    assert answer.status() == "StatusCode.INVALID_ARGUMENT"
    assert message in answer.message()
    assert "\n" not in answer.message()
