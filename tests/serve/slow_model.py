"""A model that sleeps as long as it is asked to, so that requests are in flight."""

import json
from http.client import HTTPConnection
from pathlib import Path

from sparse_serve.repository.config import CONFIG_NAME

_CONFIG = """backend: "python"
max_batch_size: 1
input { name: "SECONDS" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "SLEPT" data_type: TYPE_FP32 dims: [ 1 ] }
"""

_MODEL = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        seconds = pb_utils.get_input_tensor_by_name(request, "SECONDS").as_numpy()
        time.sleep(float(seconds.max()))
        return pb_utils.InferenceResponse([pb_utils.Tensor("SLEPT", seconds)])
"""


def write_slow_model(repository: Path) -> None:
    """Put the model `slow` beside the others of a repository."""
    (repository / "slow" / "1").mkdir(parents=True)
    (repository / "slow" / CONFIG_NAME).write_text(_CONFIG)
    (repository / "slow" / "1" / "model.py").write_text(_MODEL)


def ask_http(connection: HTTPConnection, seconds: float) -> float:
    """Have it sleep for so many seconds; its answer says how many."""
    tensor = {"name": "SECONDS", "shape": [1, 1], "datatype": "FP32", "data": [seconds]}
    connection.request("POST", "/v2/models/slow/infer", json.dumps({"inputs": [tensor]}))
    answer = json.loads(connection.getresponse().read())
    return float(answer["outputs"][0]["data"][0])
