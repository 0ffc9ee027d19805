"""A real Triton with tiny entries: the answers of the contract, and right refusals."""

import http.client
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from tiny_entry import CLASSES, LAYERS, LONG, MAX_LENGTH
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from sparse_serve.client import Client
from sparse_serve.profiling.workload import Tokens
from sparse_serve.repository.writing import EntrySpec
from sparse_serve.text_backend.meter import PUBLISH_SECONDS
from sparse_serve.triton.launcher import TritonServer
from stock_client import column

TEXTS = ["w1", "", "w2 w3 " * 30, "w4 w5 w6", "nothing known", "   ", "w9 w8 w7 w6 w5", "w29"] * 4


class Wire:
    """One stock tritonclient, HTTP or gRPC, with one way to ask."""

    def __init__(self, api: ModuleType, url: str) -> None:
        self.api = api
        self.client = api.InferenceServerClient(url)

    def infer(
        self, model: str, tensors: dict[str, Any], outputs: Sequence[str] = (), **options: Any
    ) -> dict[str, npt.NDArray[Any]]:
        inputs = []
        for name, array in tensors.items():
            inputs.append(self.api.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
            inputs[-1].set_data_from_numpy(array)
        requested = [self.api.InferRequestedOutput(name, **options) for name in outputs]
        result = self.client.infer(model, inputs, outputs=requested or None)
        return {name: result.as_numpy(name) for name in outputs}


@pytest.fixture(params=["http", "grpc"])
def wire(request: pytest.FixtureRequest, server: TritonServer) -> Iterator[Wire]:
    if request.param == "http":
        made = Wire(triton_http, server.http_url)
    else:
        made = Wire(triton_grpc, server.grpc_url)
    yield made
    made.client.close()


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: TritonServer) -> Iterator[Client]:
    url = server.http_url if request.param == "http" else server.grpc_url
    with Client(url, request.param) as made:
        yield made


def post(server: TritonServer, path: str, body: object) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(server.http_url, timeout=30)
    connection.request("POST", path, json.dumps(body))
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def test_all_tensors_of_the_contract(wire: Wire) -> None:
    names = ["scores", "label", "logits", "token_count", "truncated", "rho"]
    arrays = wire.infer("tiny", {"TEXT": column("w1 w2", "w3 " * 50)}, names)
    assert {name: (array.shape, array.dtype.char) for name, array in arrays.items()} == {
        "scores": ((2, 2), "f"),
        "label": ((2, 1), "O"),
        "logits": ((2, 2), "f"),
        "token_count": ((2, 1), "i"),
        "truncated": ((2, 1), "?"),
        "rho": ((2, LAYERS), "f"),
    }
    assert arrays["truncated"][:, 0].tolist() == [False, True]
    assert arrays["token_count"][:, 0].tolist() == [4, MAX_LENGTH]


def test_the_graph_answers_as_onnxruntime_does(wire: Wire, make_spec: Callable[..., EntrySpec]) -> None:
    ids = np.array([[2, 5, 6, 3], [2, 7, 3, 0]], np.int64)
    feed = {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64), "token_type_ids": ids * 0}
    session = onnxruntime.InferenceSession(make_spec().graph, providers=["CPUExecutionProvider"])
    for name, expected in zip(("logits", "rho"), session.run(["logits", "rho"], feed), strict=True):
        np.testing.assert_array_equal(wire.infer("tiny_model", feed, [name])[name], expected)


def test_classification_extension_gives_the_top_classes(wire: Wire) -> None:
    scores = wire.infer("tiny", {"TEXT": column("w1 w2 w3")}, ["scores"], class_count=2)["scores"]
    best, other = (value.decode().split(":") for value in scores.reshape(-1))
    assert {best[2], other[2]} == {"negative", "positive"}
    assert float(best[0]) >= float(other[0])
    assert best[1] == str(["negative", "positive"].index(best[2]))


def test_generate_takes_plain_json(server: TritonServer) -> None:
    status, answer = post(server, "/v2/models/tiny/generate", {"TEXT": "w1 w2", "TEXT_PAIR": "w3"})
    assert status == 200
    assert answer["token_count"] == 6
    assert answer["label"] in ("negative", "positive")


def test_a_batch_answers_as_single_requests_in_any_order(client: Client) -> None:
    alone = [client.classify("tiny", [each])[0] for each in TEXTS]
    for order in (slice(None), slice(None, None, -1)):
        together = client.classify("tiny", TEXTS[order])
        for one, other in zip(together, alone[order], strict=True):
            np.testing.assert_allclose(one.logits, other.logits, atol=1e-5)
            assert (one.label, one.token_count, one.truncated) == (
                other.label,
                other.token_count,
                other.truncated,
            )


def test_concurrent_clients_get_their_own_answers(server: TritonServer) -> None:
    """Single texts and pairs, readable and not, meet in the dynamic batches of one server."""
    with Client(server.grpc_url, "grpc") as client:
        expected = {each: client.classify("tiny", [each])[0].logits for each in set(TEXTS)}
        paired = client.classify("tiny", ["w1"], ["w2"])[0].logits

    def ask(number: int) -> None:
        with Client(server.grpc_url, "grpc") as own:
            wire = Wire(triton_grpc, server.grpc_url)
            for step in range(20):
                each = TEXTS[(number + step) % len(TEXTS)]
                np.testing.assert_allclose(own.classify("tiny", [each])[0].logits, expected[each], atol=1e-5)
                np.testing.assert_allclose(own.classify("tiny", ["w1"], ["w2"])[0].logits, paired, atol=1e-5)
                with pytest.raises(InferenceServerException, match="UTF-8"):
                    wire.infer("tiny", {"TEXT": column(b"\xff\xfe")}, ["label"])
            wire.client.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))


def test_long_requests_among_short_ones_get_their_own_answers(server: TritonServer) -> None:
    """Those of more than a run too, and so many at a time that they take turns."""
    rng = np.random.default_rng(1)
    shapes = [(64, MAX_LENGTH * 3), (40, MAX_LENGTH), (1, 3)] * 8
    asked = [rng.integers(5, 30, shape) for shape in shapes]

    def logits(ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
        wire = Wire(triton_grpc, server.grpc_url)
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        answer = wire.infer("tiny_model", feed, ["logits"])["logits"]
        wire.client.close()
        return answer

    alone = [logits(ids) for ids in asked]
    assert all(np.isfinite(each).all() for each in alone)
    with ThreadPoolExecutor(len(asked)) as pool:
        for together, expected in zip(pool.map(logits, asked * 3), alone * 3, strict=True):
            np.testing.assert_allclose(together, expected, atol=1e-5)


def test_more_texts_than_a_batch_are_answered_in_order(client: Client) -> None:
    texts = [f"w{number % 30}" for number in range(150)]
    predictions = client.classify("tiny", texts, top_k=1)
    assert client.batch_size("tiny") == 64
    assert len(predictions) == 150
    assert [prediction.logits for prediction in predictions[:30]] == [
        prediction.logits for prediction in predictions[30:60]
    ]
    assert all(prediction.top[0].label == prediction.label for prediction in predictions)


def test_a_smaller_batch_is_learnt_from_the_refusal(client: Client) -> None:
    client._batch_sizes["topics"] = 64  # as where the server keeps its configuration to itself
    assert len(client.classify("topics", ["w1"] * 10)) == 10
    assert client.batch_size("topics") == 4


def test_answers_by_problem_type(client: Client) -> None:
    (topics,) = client.classify("topics", ["w1 w2"], top_k=3)
    assert {best.label for best in topics.top} == {"a", "b", "c"}
    assert json.loads(topics.label) == [
        label for label, logit in zip("abc", topics.logits, strict=True) if logit >= 0
    ]
    (value,) = client.classify("value", ["w1 w2"], top_k=1)
    assert value.score == value.logits[0]
    assert value.top[0].label is None


def test_a_hundred_kilobytes_are_cut_and_flagged(client: Client) -> None:
    (prediction,) = client.classify("tiny", ["w1 " * 34_000])
    assert prediction.truncated
    assert prediction.token_count == MAX_LENGTH


def test_a_document_of_4096_tokens_is_read_whole(client: Client, wire: Wire) -> None:
    whole = "w1 " * (LONG - 2)
    exact, longer = client.classify("documents", [whole, f"{whole} w2"])
    assert (exact.token_count, exact.truncated) == (LONG, False)
    assert (longer.token_count, longer.truncated) == (LONG, True)
    ids = np.full((4, LONG), 5, np.int64)
    ids[:, [0, -1]] = 2, 3
    feed = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
    for row in wire.infer("documents_model", feed, ["logits"])["logits"]:
        np.testing.assert_allclose(row, exact.logits, rtol=1e-5)


IDS = np.ones((1, 3), np.int64)
GRAPH_INPUTS = {"input_ids": IDS, "attention_mask": IDS, "token_type_ids": IDS * 0}

FAULTS = {
    "wrong tensor name": ("tiny", {"TEXTS": column("w1")}, "unexpected inference input 'TEXTS'"),
    "missing tensor": ("tiny", {"TEXT_PAIR": column("w1")}, "input TEXT is missing"),
    "wrong dtype": ("tiny", {"TEXT": IDS[:, :1]}, "data-type is 'INT64', .* expects 'BYTES'"),
    "wrong shape": ("tiny", {"TEXT": column("w1", "w2").reshape(1, 2)}, r"unexpected shape for input 'TEXT'"),
    "too few axes": ("tiny", {"TEXT": column("w1").reshape(1)}, r"unexpected shape for input 'TEXT'"),
    "invalid UTF-8": ("tiny", {"TEXT": column(b"caf\xe9")}, "must be UTF-8"),
    "invalid UTF-8 in a pair": ("tiny", {"TEXT": column("a"), "TEXT_PAIR": column(b"\xff")}, "must be UTF-8"),
    "batch above the maximum": ("tiny", {"TEXT": column(*["w1"] * 65)}, "batch-size must be <= 64"),
    "pairs of another number": ("tiny", {"TEXT": column("a", "b"), "TEXT_PAIR": column("a")}, "batch"),
    "a text of too many bytes": (
        "tiny",
        {"TEXT": column("w1", "w2 " * 400_000)},
        r"input 'TEXT' has a text of 1200000 bytes: give at most 1048576 \(max_text_bytes of config.pbtxt\)",
    ),
    "a second text of too many bytes": (
        "tiny",
        {"TEXT": column("w1"), "TEXT_PAIR": column("w" * 1_048_577)},
        "input 'TEXT_PAIR' has a text of 1048577 bytes: give at most 1048576",
    ),
    "a context of too many bytes": (
        "spans",
        {"TEXT": column("w1"), "TEXT_PAIR": column("w2 " * 100_000)},
        "input 'TEXT_PAIR' has a text of 300000 bytes: give at most 262144",
    ),
    "texts of too many bytes": (
        "tiny",
        {"TEXT": column(*["w1 " * 300_000] * 5)},
        "the texts of the request have 4500000 bytes: give at most 4194304 at once, others in further",
    ),
    "a text of too many tokens, where that is an error": (
        "strict",
        {"TEXT": column("w1", "w2 " * 50)},
        "text 2 of the request has 52 tokens, at most 16 are read: shorten it, or leave it out",
    ),
    "unknown model": ("unknown", {"TEXT": column("w1")}, "unknown model"),
    "graph: wrong dtype": (
        "tiny_model",
        GRAPH_INPUTS | {"input_ids": IDS.astype(np.int32)},
        "data-type is 'INT32', .* expects 'INT64'",
    ),
    "graph: lengths that differ": (
        "tiny_model",
        GRAPH_INPUTS | {"attention_mask": IDS[:, :1]},
        "has sequence 1",
    ),
    "graph: id outside the vocabulary": ("tiny_model", GRAPH_INPUTS | {"input_ids": IDS * 999}, "999"),
    "graph: missing tensor": ("tiny_model", {"input_ids": IDS}, "expected 3 inputs but got 1"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_refused_and_the_next_request_is_answered(
    wire: Wire, server: TritonServer, fault: str
) -> None:
    model, tensors, message = FAULTS[fault]
    with pytest.raises(InferenceServerException, match=message) as raised:
        wire.infer(model, tensors)
    not_found = fault == "unknown model"
    expected = (
        ("404" if not_found else "400")
        if wire.api is triton_http
        else ("StatusCode.NOT_FOUND" if not_found else "StatusCode.INVALID_ARGUMENT")
    )
    assert raised.value.status() == expected
    assert "\n" not in raised.value.message()
    assert wire.infer("tiny", {"TEXT": column("w1 w2")}, ["token_count"])["token_count"].item() == 4
    server.check()


def test_rows_and_columns_on_are_answered_where_asked_for(wire: Wire) -> None:
    ids = np.array([[2, 4, 5, 3], [2, 7, 3, 0]], np.int64)
    feed = {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64), "token_type_ids": ids * 0}
    answered = wire.infer("aaa_model", feed, ["rows_on", "columns_on"])
    np.testing.assert_allclose(answered["rows_on"], [[1 / 4, 2 / 4], [1 / 3, 2 / 3]], rtol=1e-6)
    np.testing.assert_allclose(answered["columns_on"], [[2 / 4, 3 / 4], [2 / 3, 2 / 3]], rtol=1e-6)
    with pytest.raises(InferenceServerException, match="unexpected inference output 'rows_on'"):
        wire.infer("tiny_model", feed, ["rows_on"])


def scrape(server: TritonServer) -> dict[str, float]:
    """The metrics port's values, by name and labels as they are printed."""
    host, path = server.metrics_url.removeprefix("http://").split("/", 1)
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request("GET", f"/{path}")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    values = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in values}


def settled(server: TritonServer) -> dict[str, float]:
    """The metrics port's values once what was asked before has been told."""
    time.sleep(4 * PUBLISH_SECONDS)
    return scrape(server)


def grown_since(
    server: TritonServer, before: dict[str, float], is_done: Callable[[dict[str, float]], bool]
) -> dict[str, float]:
    """What the package's counters have grown by, once that is as it should be: they are told now and then."""
    deadline = time.monotonic() + 30
    while True:
        after = scrape(server)
        grown = {key: after[key] - before.get(key, 0) for key in after if key.startswith("sparse_serve_")}
        if is_done(grown):
            return grown
        assert time.monotonic() < deadline, grown
        time.sleep(0.1)


def test_metrics_are_served(server: TritonServer) -> None:
    found = scrape(server)
    assert any(name.startswith('nv_inference_request_success{model="tiny"') for name in found)


@pytest.mark.parametrize(
    ("name", "measures"), [("aaa", ("rho", "rows_on", "columns_on")), ("value", ("rho",))]
)
def test_metrics_are_the_sums_of_what_the_graph_measures(
    server: TritonServer, make_spec: Callable[..., EntrySpec], name: str, measures: tuple[str, ...]
) -> None:
    """Each text counts once, whatever batch it came in and whatever was asked of it."""
    before = settled(server)
    wire = Wire(triton_grpc, server.grpc_url)
    with Client(server.grpc_url, "grpc") as client, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda text: client.classify(name, [text]), TEXTS))
    wire.infer(name, {"TEXT": column("w0", "w0 w1 w2")}, ["rho"])
    texts = f'sparse_serve_texts_total{{model="{name}",version="1"}}'
    grown = grown_since(server, before, lambda grown: grown[texts] >= len(TEXTS) + 2)
    assert grown[texts] == len(TEXTS) + 2

    tokens = Tokens(make_spec().tokenizer, CLASSES, MAX_LENGTH)
    own = [key for key in grown if "layer=" in key and f'model="{name}"' in key]
    expected = dict.fromkeys(own, 0.0)
    for row in (*TEXTS, "w0", "w0 w1 w2"):
        batch = tokens.batch([row])
        for measure, (shares,) in wire.infer(f"{name}_model", batch.arrays, measures).items():
            for layer, share in enumerate(shares.tolist(), start=1):
                labels = f'{{layer="{layer}",model="{name}",version="1"}}'
                expected[f"sparse_serve_{measure}_total{labels}"] += share
    wire.client.close()
    assert len(expected) == len(measures) * LAYERS
    assert {key: grown[key] for key in own} == pytest.approx(expected, rel=1e-5)


def test_what_becomes_of_texts_is_counted(server: TritonServer, wire: Wire) -> None:
    before = settled(server)
    wire.infer("tiny", {"TEXT": column("w1 w2", "w3 " * 50)}, ["label"])
    for fault in ("invalid UTF-8", "a text of too many bytes"):
        with pytest.raises(InferenceServerException):
            wire.infer("tiny", FAULTS[fault][1], ["label"])
    entry = 'model="tiny",version="1"'
    expected = {
        f"texts_total{{{entry}}}": 2,
        f"tokens_total{{{entry}}}": 4 + MAX_LENGTH,
        f"truncated_total{{{entry}}}": 1,
        f"padding_saved_total{{{entry}}}": MAX_LENGTH - 4,
        'refused_total{model="tiny",reason="not_utf8",version="1"}': 1,
        'refused_total{model="tiny",reason="too_large",version="1"}': 1,
    }
    wanted = {f"sparse_serve_{key}": value for key, value in expected.items()}
    grown = grown_since(server, before, lambda grown: {key: grown[key] for key in wanted} == wanted)
    for stage in ("tokenize", "graph", "answer"):
        assert grown[f'sparse_serve_stage_seconds_total{{model="tiny",stage="{stage}",version="1"}}'] > 0
