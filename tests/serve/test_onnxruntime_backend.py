"""This package's onnxruntime backend in a real Triton: configuration as Triton's own reads it, and faults."""

import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import psutil
import pytest
import tritonclient.grpc
from onnx import ModelProto, TensorProto, helper, numpy_helper
from serving import wait_for
from tiny_entry import tiny_graph
from tokenizers import normalizers
from tritonclient.utils import InferenceServerException

from graph_session import open_graph
from sparse_export.graph.tokenizer.derive import derive_tables
from sparse_serve.op_library import library_path
from sparse_serve.processor import physical_cores
from sparse_serve.repository.config import CONFIG_NAME, GRAPH_NAME, graph_config, to_text
from sparse_serve.repository.signature import graph_signature
from sparse_serve.repository.tunable import DEFAULT_REQUEST_BYTES, DEFAULT_TEXT_BYTES
from sparse_serve.stub.runs import RUN_TOKENS
from sparse_serve.triton.installation import backend_directory, find_triton
from sparse_serve.triton.preflight import claim_ports
from tokenizing import shaped_model, word_piece

Array = npt.NDArray[Any]
Columns = dict[str, Array]
Edit = Callable[[Any], None]
# So long Triton waits for the other requests of a batch, which come at once.
GATHER_MICROSECONDS = 5_000_000
ALLOWED = os.sched_getaffinity(0)
# A build with sanitizers, and what a process loads first that is not built with them.
SANITIZED, PRELOADED = (
    os.environ.get("SPARSE_SERVE_TEST_BACKEND"),
    os.environ.get("SPARSE_SERVE_TEST_PRELOAD"),
)


class Server:
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

    def stop(self) -> None:
        self.client.close()
        self.process.terminate()
        if SANITIZED is not None:
            # All models have gone; what the process does besides, before it ends, sanitizers lock up.
            wait_for(lambda: "Found 0 live models" in self.log.read_text(errors="replace"))
            self.process.kill()
        self.process.wait(timeout=60)


class Model:
    """What a served model answers."""

    def __init__(self, client: Any, name: str) -> None:
        self.client, self.name = client, name

    def begin(self, columns: Columns, *outputs: str, shape: Sequence[int] | None = None) -> "Future[Columns]":
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
        future: Future[Columns] = Future()

        def answered(result: Any, error: Exception | None) -> None:
            if error is not None:
                future.set_exception(error)
            else:
                names = [tensor.name for tensor in result.get_response().outputs]
                future.set_result({name: result.as_numpy(name) for name in names})

        self.client.async_infer(self.name, inputs, answered, outputs=wanted or None)
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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("triton"))
    yield started
    started.stop()


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


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelProto:
    """A graph of token ids, whose Gather fails on one that is none."""
    return onnx.load(tiny_graph(tmp_path_factory.mktemp("graphs") / "tiny.onnx"))


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


def test_requests_are_concatenated_and_split_again(server: Server, tiny: ModelProto) -> None:
    model = server.load(tiny, gathering(4))
    requests = [tokens([[2, 5, 3]]), tokens([[2, 6, 3], [2, 7, 3]]), tokens([[2, 8, 3]])]
    session = open_graph(tiny)
    answers = model.together(*requests)
    wait_for(lambda: model.runs() == {4: 1})
    for answer, columns in zip(answers, requests, strict=True):
        logits, rho = session.run(["logits", "rho"], columns)
        assert_same(answer, {"logits": logits, "rho": rho})


def test_only_the_guilty_request_fails(server: Server, tiny: ModelProto) -> None:
    model = server.load(tiny, gathering(3))
    good = tokens([[2, 5, 3]])
    first, second, third = model.together(good, tokens([[2, 10_000, 3]]), good)
    assert_refused(second, "10000")
    assert_same(first, third)


def test_a_request_without_rows_is_refused(server: Server, tiny: ModelProto) -> None:
    model = server.load(tiny)
    for columns, shape in [(tokens([[2, 5, 3]]), [0, 3]), (tokens(np.zeros((0, 0), np.int64)), [0, 0])]:
        answer = model.begin(columns, shape=shape).exception(timeout=60)
        assert_refused(answer, "input 'input_ids' has no rows: give at least one")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([2**32 - 1, 0], "rows: give at most 64"),  # which Triton 24.10 takes for −1 rows of no bytes
        ([3, 6148914691236517206], ""),  # two elements, modulo 2⁶⁴
        ([2**31, 2**33], ""),
        ([1, -2], ""),
    ],
)
def test_shapes_that_no_memory_holds_are_refused(
    server: Server, tiny: ModelProto, shape: list[int], message: str
) -> None:
    """By Triton or by the backend; nothing is allocated for them."""
    ids = np.full((1, 2), 5)

    def edit(config: Any) -> None:
        config.input[0].dims[:] = [-1]

    model, wide = server.load(tiny), server.load(echo_graph(), edit)
    empty = np.zeros((1, 0), np.int64) if 0 in shape else ids
    answers = [model.begin(tokens(empty), shape=shape).exception(timeout=60)]
    answers.append(wide.begin({"TEXT": np.array([[b"a", b"b"]], object)}, shape=shape).exception(timeout=60))
    for answer in answers:
        assert_refused(answer, "")
    if message:
        assert_refused(answers[0], message)
    assert len(model.ask(tokens(ids))["logits"]) == 1


def echo_graph() -> ModelProto:
    """A graph that echoes texts of any shape."""
    kind = TensorProto.STRING
    tensors = [helper.make_tensor_value_info(name, kind, ["batch", "texts"]) for name in ("TEXT", "echo")]
    node = helper.make_node("Identity", ["TEXT"], ["echo"])
    made = helper.make_graph([node], "echo", tensors[:1], tensors[1:])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_axes_that_differ_are_refused_where_they_would_broadcast(server: Server, tiny: ModelProto) -> None:
    model = server.load(tiny)
    (answer,) = model.together(tokens([[2, 5, 3]], mask=[[1]]))
    assert_refused(answer, "input 'attention_mask' has sequence 1, input 'input_ids' has 3: they must be")


def test_each_request_gets_the_outputs_that_it_asks_for(server: Server, tiny: ModelProto) -> None:
    model = server.load(tiny, gathering(2))
    begun = [model.begin(tokens([[2, 5, 3]]), "rho"), model.begin(tokens([[2, 6, 3]]), "logits", "rho")]
    answers = [each.result(timeout=60) for each in begun]
    assert [set(answer) for answer in answers] == [{"rho"}, {"logits", "rho"}]
    wait_for(lambda: model.runs() == {2: 1})


def test_rows_are_run_so_many_tokens_at_a_time(server: Server, tiny: ModelProto) -> None:
    model = server.load(tiny)
    rows = 40
    ids = np.full((rows, 64), 5)
    mask = np.ones_like(ids)
    mask[0, 1:] = 0
    answer = model.ask(tokens(ids, mask))
    most = RUN_TOKENS // 64
    wait_for(lambda: model.runs() == Counter([most, most, rows - 2 * most]))
    logits, rho = open_graph(tiny).run(["logits", "rho"], tokens(ids, mask))
    assert_same(answer, {"logits": logits, "rho": rho})


def test_without_a_batch_a_request_is_computed_as_it_is(server: Server) -> None:
    """Of a model with `max_batch_size: 0`: its first axis is no row, nor do outputs have rows."""
    number = TensorProto.INT64
    graph = helper.make_graph(
        [
            helper.make_node("Concat", ["numbers", "numbers"], ["doubled"], axis=0),
            helper.make_node("Neg", ["numbers"], ["negative"]),
        ],
        "without_rows",
        [helper.make_tensor_value_info("numbers", number, ["batch", 2])],
        [
            helper.make_tensor_value_info("doubled", number, ["batch", 2]),
            helper.make_tensor_value_info("negative", number, ["batch", 2]),
        ],
    )

    def edit(config: Any) -> None:
        config.max_batch_size = 0
        config.ClearField("dynamic_batching")
        for tensor in (*config.input, *config.output):
            tensor.dims[:] = [-1, *tensor.dims]

    model = server.load(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), edit
    )
    numbers = np.arange(6000).reshape(3000, 2)
    assert_same(
        model.ask({"numbers": numbers}), {"doubled": np.concatenate([numbers] * 2), "negative": -numbers}
    )


@pytest.fixture(scope="module")
def reading_graph() -> ModelProto:
    """A tokenizer in the graph, and its text as it came."""
    tokenizer = word_piece("[UNK] [CLS] [SEP] [MASK] a b é", normalizers.BertNormalizer(lowercase=False))
    graph = shaped_model(derive_tables(tokenizer), 8, pairs=True)
    graph.graph.node.append(helper.make_node("Identity", ["TEXT"], ["echo"]))
    graph.graph.output.append(helper.make_tensor_value_info("echo", TensorProto.STRING, ["batch", 1]))
    del graph.graph.output[:]
    graph.graph.output.extend(
        helper.make_tensor_value_info(name, kind, ["batch", 1])
        for name, kind in [
            ("token_count", TensorProto.INT32),
            ("truncated", TensorProto.BOOL),
            ("invalid_at", TensorProto.INT32),
            ("echo", TensorProto.STRING),
        ]
    )
    return graph


def texts(*rows: tuple[bytes, bytes]) -> Columns:
    columns = (np.array(column, object)[:, None] for column in zip(*rows, strict=True))
    return dict(zip(("TEXT", "TEXT_PAIR"), columns, strict=True))


def test_bytes_reach_the_graph_as_they_are(server: Server, reading_graph: ModelProto) -> None:
    """What is no text, and NUL, of requests in one run with others; text comes back as it went."""
    requests = [
        texts((b"a b", b"a")),
        texts((b"a", b""), (b"a\x00\xff b", b"b"), ("é".encode(), b"a b")),
        texts((b"", b"b\x00\xe4\xb8"), (b"\xed\xa0\x80", b"\xff")),
        texts((b"a\x00b", "é 中 😀".encode())),
    ]
    model = server.load(reading_graph, gathering(7))
    answers = model.together(*requests)
    wait_for(lambda: model.runs() == {7: 1})
    columns = [answer for answer in answers if isinstance(answer, dict)]
    assert [each["invalid_at"][:, 0].tolist() for each in columns] == [[-1], [-1, 2, -1], [2, 0], [-1]]
    assert [each["token_count"][:, 0].tolist() for each in columns] == [[6], [4, 3, 6], [3, 3], [7]]
    for each, columns_sent in zip(columns, requests, strict=True):
        assert each["echo"].tolist() == columns_sent["TEXT"].tolist()


def test_a_text_of_too_many_bytes_is_refused_alone(server: Server, reading_graph: ModelProto) -> None:
    most = DEFAULT_TEXT_BYTES
    model = server.load(reading_graph, gathering(3))
    bad, fits = texts((b"a", b" " * (most + 1))), texts((b"a", b" " * most))
    first, second, third = model.together(texts((b"a", b"b")), bad, fits)
    assert not isinstance(first, Exception)
    assert not isinstance(third, Exception)
    message = f"input 'TEXT_PAIR' has a text of {most + 1} bytes: give at most {most}"
    assert_refused(second, f"{message} (max_text_bytes of config.pbtxt)")


def test_texts_of_a_request_have_a_limit_together(server: Server, reading_graph: ModelProto) -> None:
    """Of one input, or of both."""
    model = server.load(reading_graph, with_parameter("max_request_bytes", "10"))
    assert model.ask(texts((b"12345", b"12345")))["token_count"].item() == 5
    for rows in ([(b"12345", b"12345"), (b"1", b"")], [(b"123456", b""), (b"12345", b"")]):
        (answer,) = model.together(texts(*rows))
        assert_refused(answer, "the texts of the request have 11 bytes: give at most 10 at once, others in")
    most = DEFAULT_REQUEST_BYTES
    (answer,) = server.load(reading_graph).together(texts(*[(b" " * (most // 4), b"")] * 5))
    assert_refused(
        answer, f"the texts of the request have {most // 4 * 5} bytes: give at most {most} at once"
    )


def test_tasks_that_are_no_json_are_refused_at_load(server: Server, reading_graph: ModelProto) -> None:
    with pytest.raises(InferenceServerException, match="the parameter tasks is no JSON: at byte 1"):
        server.load(reading_graph, with_parameter("tasks", "{sst2"))


def test_a_model_that_is_loaded_again_goes_on_counting(server: Server, reading_graph: ModelProto) -> None:
    model = server.load(reading_graph)

    def counted() -> dict[str, float]:
        with urlopen(server.metrics_url) as response:
            lines = response.read().decode().splitlines()
        own = [line for line in lines if line.startswith("sparse_serve_") and f'"{model.name}"' in line]
        return {line.split(" ")[0]: float(line.split(" ")[1]) for line in own if not line.endswith(" 0")}

    rows = [(b"a", b"b"), (b"\xff", b""), (b"a b", b"")]
    model.ask(texts(*rows))
    model.together(texts(*[(b"a", b" " * (DEFAULT_TEXT_BYTES + 1))] * 2))
    first = counted()
    config = server.repository / model.name / CONFIG_NAME
    config.write_text(config.read_text() + "\n# another\n")
    server.client.load_model(model.name)
    model.ask(texts(*rows))
    again = {name: value for name, value in counted().items() if "seconds" not in name}
    assert sum(value for name, value in again.items() if "texts_total" in name) == 4
    assert sum(value for name, value in again.items() if "not_utf8" in name) == 2
    assert sum(value for name, value in again.items() if "too_large" in name) == 2
    assert again.keys() == first.keys() - {name for name in first if "seconds" in name}


def laborious(loops: int) -> ModelProto:
    """A graph that takes its time: so many turns of a loop for each token, then the sum of a row's ids."""
    number, flag = TensorProto.INT64, TensorProto.BOOL
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Add", ["before", "turn"], ["after"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", number, []),
            helper.make_tensor_value_info("go", flag, []),
            helper.make_tensor_value_info("before", number, []),
        ],
        [
            helper.make_tensor_value_info("go_on", flag, []),
            helper.make_tensor_value_info("after", number, []),
        ],
    )
    graph = helper.make_graph(
        [
            helper.make_node("ReduceSum", ["attention_mask"], ["tokens"], keepdims=0),
            helper.make_node("Mul", ["tokens", "loops"], ["turns"]),
            helper.make_node("Loop", ["turns", "", "zero"], ["looped"], body=body),
            helper.make_node("Mul", ["looped", "zero"], ["nothing"]),
            helper.make_node("Gather", ["table", "input_ids"], ["values"]),
            helper.make_node("ReduceSum", ["values", "last"], ["sums"], keepdims=1),
            helper.make_node("Add", ["sums", "nothing"], ["logits"]),
        ],
        "laborious",
        [
            helper.make_tensor_value_info(name, number, ["batch", "sequence"])
            for name in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info("logits", number, ["batch", 1])],
        [
            numpy_helper.from_array(np.array(loops), "loops"),
            numpy_helper.from_array(np.array(0), "zero"),
            numpy_helper.from_array(np.array([1]), "last"),
            numpy_helper.from_array(np.arange(100), "table"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def labour(ids: Array) -> Columns:
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


SHORT = labour(np.array([[2, 5, 3]]))


def test_short_requests_do_not_wait_for_long_ones(server: Server) -> None:
    model = server.load(laborious(500))
    short = [model.begin(SHORT) for _ in range(3)]  # so that others are expected
    long = model.begin(labour(np.full((10, 64), 5)))
    for each in short:
        each.result(timeout=60)
    for _ in range(5):
        assert model.ask(SHORT)["logits"].item() == 10
    assert not long.done()
    assert long.result(timeout=60)["logits"].tolist() == [[320]] * 10


def beside_short_ones(model: Model, requests: Sequence[Columns]) -> list[Columns | InferenceServerException]:
    """What long requests are answered with while short ones are."""
    model.ask(SHORT)
    begun = [model.begin(columns) for columns in requests]
    while not all(each.done() for each in begun):
        assert model.ask(SHORT)["logits"].item() == 10
    return [each.exception() or each.result() for each in begun]


def test_many_long_requests_beside_short_ones_are_computed_in_parts(server: Server) -> None:
    """What is larger than a run gets one answer."""
    model = server.load(laborious(4))
    rng = np.random.default_rng(1)
    ids = [rng.integers(5, 30, (rows, 64)) for rows in [40, 5, 16, 33] * 5]
    for each, answer in zip(ids, beside_short_ones(model, [labour(each) for each in ids]), strict=True):
        assert_same(answer, {"logits": each.sum(1, keepdims=True)})
    assert max(model.runs()) == RUN_TOKENS // 64


def test_a_part_that_fails_fails_its_request_alone(server: Server) -> None:
    model = server.load(laborious(4))
    ids = np.full((40, 64), 5)
    bad = ids.copy()
    bad[35, 3] = 10_000
    first, *others = beside_short_ones(model, [labour(bad), *[labour(ids)] * 15])
    assert_refused(first, "10000")
    for each in others:
        assert_same(each, {"logits": np.full((40, 1), 320)})


def test_what_was_asked_is_answered_before_a_model_goes(server: Server) -> None:
    model = server.load(laborious(50))
    model.ask(SHORT)
    begun = [model.begin(labour(np.full((20, 64), 5))) for _ in range(4)]
    wait_for(lambda: model.ask(SHORT))
    server.client.unload_model(model.name)
    for each in begun:
        assert each.result(timeout=60)["logits"].tolist() == [[320]] * 20


def test_statistics_count_what_is_answered_later(server: Server) -> None:
    model = server.load(laborious(4))
    model.ask(SHORT)
    model.ask(labour(np.full((40, 64), 5)))

    def counted() -> tuple[int, int]:
        (statistics,) = server.client.get_inference_statistics(model.name).model_stats
        return statistics.inference_stats.success.count, statistics.inference_stats.compute_infer.count

    wait_for(lambda: counted() == (2, 2))
    wait_for(lambda: model.runs() == {1: 1, 16: 2, 8: 1})


@pytest.fixture(scope="module")
def levelled() -> ModelProto:
    """A graph whose numbers differ by the level at which it is optimized."""
    rng = np.random.default_rng(0)
    width = 32

    def constant(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)

    constants = [
        constant("kernel", width, width, 3, 3),
        *(constant(name, width) for name in ("scale", "shift", "mean")),
        numpy_helper.from_array(rng.uniform(0.1, 1, width).astype(np.float32), "variance"),
        constant("weight", 8, 64),
        constant("bias", 64),
        *(
            numpy_helper.from_array(np.array(value, np.float32), name)
            for name, value in [("root", np.sqrt(2)), ("one", 1), ("half", 0.5)]
        ),
        numpy_helper.from_array(np.array([-1, width, 8, 8]), "image"),
        numpy_helper.from_array(np.array([0, width * 8 * 64]), "flat"),
    ]
    steps: list[tuple[str, list[str], dict[str, Any]]] = [
        ("Cast", ["numbers"], {"to": TensorProto.FLOAT}),
        ("Reshape", ["0", "image"], {}),
        ("Conv", ["1", "kernel"], {"pads": [1, 1, 1, 1]}),
        ("BatchNormalization", ["2", "scale", "shift", "mean", "variance"], {}),
        ("Relu", ["3"], {}),
        ("Conv", ["4", "kernel"], {"pads": [1, 1, 1, 1]}),
        ("MatMul", ["5", "weight"], {}),
        ("Add", ["6", "bias"], {}),
        ("Div", ["7", "root"], {}),
        ("Erf", ["8"], {}),
        ("Add", ["9", "one"], {}),
        ("Mul", ["7", "10"], {}),
        ("Mul", ["11", "half"], {}),
        ("Reshape", ["12", "flat"], {}),
    ]
    nodes = [
        helper.make_node(kind, inputs, [str(number) if number < len(steps) - 1 else "answer"], **attributes)
        for number, (kind, inputs, attributes) in enumerate(steps)
    ]
    graph = helper.make_graph(
        nodes,
        "levelled",
        [helper.make_tensor_value_info("numbers", TensorProto.INT64, ["batch", width * 64])],
        [helper.make_tensor_value_info("answer", TensorProto.FLOAT, ["batch", width * 8 * 64])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (-1, "ORT_ENABLE_BASIC"),
        (0, "ORT_ENABLE_ALL"),
        (1, "ORT_ENABLE_EXTENDED"),
        (2, "ORT_DISABLE_ALL"),
        (7, "ORT_ENABLE_ALL"),
    ],
)
def test_graph_level_means_what_the_cpp_backend_means(
    server: Server, levelled: ModelProto, level: int, expected: str
) -> None:
    def edit(config: Any) -> None:
        config.optimization.graph.level = level

    columns = {"numbers": np.arange(32 * 64)[None] % 7 - 3}
    answer = server.load(levelled, edit).ask(columns)["answer"]
    for name in LEVELS:
        own = getattr(onnxruntime.GraphOptimizationLevel, name)
        session = open_graph(levelled, graph_optimization_level=own)
        is_same = np.array_equal(session.run(None, columns)[0], answer)
        assert is_same == (name == expected), name


def settled_threads(server: Server) -> int:
    """How many threads the server has, once those have gone that load and unload."""
    counts = [0]

    def is_settled() -> bool:
        counts.append(server.process.num_threads())
        time.sleep(0.05)
        return len(set(counts[-5:])) == 1

    wait_for(is_settled)
    return counts[-1]


def threads_for(server: Server, tiny: ModelProto, **parameters: str) -> int:
    """How many threads more a model has than one that computes on one."""

    def edit(config: Any) -> None:
        for key, value in parameters.items():
            config.parameters[key].string_value = value

    def threads_of(edit_one: Edit) -> int:
        model = server.load(tiny, edit_one)
        threads = settled_threads(server)
        assert all(os.sched_getaffinity(thread.id) == ALLOWED for thread in server.process.threads())
        server.client.unload_model(model.name)
        return threads - settled_threads(server)

    return threads_of(edit) - threads_of(with_parameter("intra_op_thread_count", "1"))


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"intra_op_thread_count": "3"}, 2),
        ({}, physical_cores() - 1),
        ({"intra_op_thread_count": "0"}, physical_cores() - 1),
        ({"intra_op_thread_count": "-1"}, physical_cores() - 1),
        ({"intra_op_thread_count": "1", "inter_op_thread_count": "3"}, 0),
        ({"intra_op_thread_count": "1", "inter_op_thread_count": "3", "execution_mode": "1"}, 2),
    ],
)
def test_threads_are_as_many_as_asked_for_and_run_wherever_the_process_may(
    server: Server, tiny: ModelProto, parameters: dict[str, str], expected: int
) -> None:
    """Left to choose, ONNX Runtime binds each to a core, allowed or not."""
    assert threads_for(server, tiny, **parameters) == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("enable_mem_arena", "0"),
        ("enable_mem_arena", "True"),
        ("enable_mem_pattern", "off"),
        ("memory.enable_memory_arena_shrinkage", "cpu:0"),
        ("session.use_device_allocator_for_initializers", "1"),
    ],
)
def test_parameters_of_the_session_are_accepted(
    server: Server, tiny: ModelProto, key: str, value: str
) -> None:
    model = server.load(tiny, with_parameter(key, value))
    (logits,) = open_graph(tiny).run(["logits"], tokens([[2, 5, 3]]))
    assert_same(model.ask(tokens([[2, 5, 3]]), "logits"), {"logits": logits})


def test_another_file_name_is_served(server: Server, tiny: ModelProto) -> None:
    def edit(config: Any) -> None:
        config.default_model_filename = "other.onnx"

    assert len(server.load(tiny, edit, file="other.onnx").ask(tokens([[2, 3]]))["logits"]) == 1


def set_field(field: str, kind: str, value: object) -> Edit:
    def edit(config: Any) -> None:
        setattr(getattr(config, kind)[0], field, value)

    return edit


def with_dims(config: Any) -> None:
    config.output[0].dims[0] = 5


def with_ragged_input(config: Any) -> None:
    config.input[0].allow_ragged_batch = True


def with_reshape(config: Any) -> None:
    config.output[0].reshape.shape[:] = [1, 2]


def with_accelerator(config: Any) -> None:
    config.optimization.execution_accelerators.cpu_execution_accelerator.add(name="openvino")


def without_an_input(config: Any) -> None:
    del config.input[2]


def with_foreign_library(config: Any) -> None:
    config.model_operations.op_library_filename.append("libnowhere.so")


def with_another_file(config: Any) -> None:
    config.default_model_filename = "absent.onnx"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (with_parameter("execution_mode", "2"), "Expected values for execution_mode are 0 or 1 but got 2"),
        (with_parameter("intra_op_thread_count", "two"), "failed to convert intra_op_thread_count 'two'"),
        (with_parameter("enable_mem_arena", "maybe"), "failed to convert enable_mem_arena 'maybe'"),
        (with_parameter("max_text_bytes", "0"), "max_text_bytes is '0': give a number of bytes from 1 to"),
        (with_parameter("max_length", "0"), "max_length is '0': give a number of tokens"),
        (
            set_field("data_type", "input", 11),
            "configuration expects datatype TYPE_FP32 for input 'input_ids', model provides tensor(int64)",
        ),
        (
            set_field("name", "output", "pooled"),
            "unexpected inference output 'pooled', allowed outputs are: logits, rho",
        ),
        (
            with_dims,
            "'logits': the model expects shape [-1, 2] but the configuration specifies [-1, 5]",
        ),
        (without_an_input, "configuration expects 2 inputs, model provides 3"),
        (
            with_ragged_input,
            "asks for allow_ragged_batch, which this package's onnxruntime backend does not",
        ),
        (with_reshape, "asks for reshape"),
        (with_accelerator, "asks for execution_accelerators"),
        (with_foreign_library, "libnowhere.so"),
        (with_another_file, "absent.onnx"),
    ],
)
def test_what_cannot_be_served_is_refused_at_load(
    server: Server, tiny: ModelProto, edit: Edit, message: str
) -> None:
    with pytest.raises(InferenceServerException) as raised:
        server.load(tiny, edit)
    assert message in raised.value.message()
    assert server.process.is_running()
