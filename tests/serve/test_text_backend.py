"""The text backend in this process: tokenization, answers by task, and fault isolation."""

import gc
import json
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import triton_stub as stub
from serving import wait_for
from tiny_entry import CLASSES, MAX_LENGTH, SPANS, TAGS, VECTORS, VOCABULARY, tiny_graph

from sparse_serve.repository.config import read_config, to_text
from sparse_serve.repository.manifest import Attention
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.runs import RUN_TOKENS
from sparse_serve.stub.meter import TEXTS, TOKENS, Meter
from sparse_serve.tasks import MultiLabel, Regression, Task
from sparse_serve.triton.installation import backend_directory, find_triton

TRITON = Path(str(files("sparse_serve") / "triton"))
OUTPUTS = ("scores", "label", "logits", "token_count", "truncated", "rho")
MakeSpec = Callable[..., EntrySpec]
Port = dict[str, dict[tuple[tuple[str, str], ...], float]]


COUNTED = {
    f"sparse_serve_{name}_total"
    for name in ("texts", "tokens", "truncated", "refused", "padding_saved", "stage_seconds")
}


@pytest.fixture
def load(tmp_path: Path, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Write an entry and return its public model with the graph behind it."""

    def load_entry(task: Task = CLASSES, **changes: Any) -> tuple[Any, stub.Graph]:
        public = write_entry(tmp_path, make_spec(task, **changes))
        graph = stub.Graph(tmp_path / f"{public.name}_model")
        monkeypatch.setattr(stub.Request, "call", graph, raising=False)
        return stub.load_model(TRITON / "text_backend" / "model.py", public), graph

    return load_entry


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Port:
    """What the metrics port shows of entries that are loaded from here on."""
    port: Port = {}
    monkeypatch.setattr(stub.MetricFamily, "ports", port)
    return port


@pytest.fixture
def tiny(load: Callable[..., tuple[Any, stub.Graph]]) -> tuple[Any, stub.Graph]:
    return load()


def request(
    *texts: str | bytes, pairs: tuple[str, ...] | None = None, names: tuple[str, ...] = OUTPUTS
) -> stub.Request:
    def tensor(name: str, rows: tuple[Any, ...]) -> stub.Tensor:
        values = [row if isinstance(row, bytes) else row.encode() for row in rows]
        return stub.Tensor(name, np.array(values, dtype=np.object_)[:, None])

    tensors = [tensor("TEXT", texts)]
    if pairs is not None:
        tensors.append(tensor("TEXT_PAIR", pairs))
    return stub.Request(tensors, names)


def answer(model: Any, *requests: stub.Request) -> list[dict[str, npt.NDArray[Any]]]:
    return [response.arrays() for response in stub.answers_of(model, *requests)]


def test_the_graph_gets_the_tokens_of_the_tokenizer(tiny: tuple[Any, stub.Graph]) -> None:
    model, graph = tiny
    answer(model, request("w1 w2", "w3"), request("unknown"))
    (call,) = graph.calls
    sent = {tensor.name(): tensor.as_numpy() for tensor in call.inputs}
    cls, sep, unknown = (VOCABULARY[token] for token in ("[CLS]", "[SEP]", "[UNK]"))
    w1, w2, w3 = (VOCABULARY[token] for token in ("w1", "w2", "w3"))
    assert sent["input_ids"].tolist() == [[cls, w1, w2, sep], [cls, w3, sep, 0], [cls, unknown, sep, 0]]
    assert sent["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 0]]
    assert all(array.dtype == np.int64 for array in sent.values())
    assert (call.model_name, call.model_version) == ("tiny_model", 1)


def test_pairs_and_single_texts_share_a_batch(tiny: tuple[Any, stub.Graph]) -> None:
    model, graph = tiny
    single, pair = answer(model, request("w1"), request("w1", pairs=("w2 w3",)))
    (call,) = graph.calls
    segments = {tensor.name(): tensor.as_numpy() for tensor in call.inputs}["token_type_ids"]
    assert segments.tolist() == [[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]]
    assert (single["token_count"].item(), pair["token_count"].item()) == (3, 6)
    assert single["logits"].tolist() != pair["logits"].tolist()


def test_long_texts_are_cut_from_the_right_and_flagged(tiny: tuple[Any, stub.Graph]) -> None:
    model, _ = tiny
    exact, longer = "w1 " * (MAX_LENGTH - 2), "w1 " * (MAX_LENGTH - 2) + "w2"
    (arrays,) = answer(model, request(exact, longer, "x" * 100_000, ("w3 " * 40_000)))
    assert arrays["truncated"][:, 0].tolist() == [False, True, False, True]
    assert arrays["token_count"][:, 0].tolist() == [MAX_LENGTH, MAX_LENGTH, 3, MAX_LENGTH]
    assert arrays["token_count"].dtype == np.int32
    np.testing.assert_array_equal(arrays["logits"][0], arrays["logits"][1])


def test_of_a_pair_the_longer_text_is_cut_first(tiny: tuple[Any, stub.Graph]) -> None:
    model, graph = tiny
    (arrays,) = answer(model, request("w1", pairs=("w2 " * 50,)))
    ids = graph.calls[0].inputs[0].as_numpy()[0].tolist()
    assert ids[:3] == [VOCABULARY["[CLS]"], VOCABULARY["w1"], VOCABULARY["[SEP]"]]
    assert arrays["truncated"].item()


def test_a_pair_of_long_texts_costs_its_bytes(tiny: tuple[Any, stub.Graph]) -> None:
    """The library would make a row of every two parts that it cuts off: here 10⁸ of them."""
    model, graph = tiny
    (arrays,) = answer(model, request("w1 " * 60_000, pairs=("w2 " * 60_000,)))
    (ids,) = graph.calls[0].inputs[0].as_numpy().tolist()
    room = MAX_LENGTH - 3
    assert ids.count(VOCABULARY["w1"]) == room // 2
    assert ids.count(VOCABULARY["w2"]) == room - room // 2
    assert arrays["truncated"].item()


def test_the_end_of_a_text_stays_where_the_left_is_cut(load: Callable[..., Any]) -> None:
    model, graph = load(truncation="left")
    long = " ".join(f"w{number}" for number in range(30))
    (arrays,) = answer(model, request(long))
    (ids,) = graph.calls[0].inputs[0].as_numpy().tolist()
    last = [VOCABULARY[f"w{number}"] for number in range(30)][2 - MAX_LENGTH :]
    assert ids == [VOCABULARY["[CLS]"], *last, VOCABULARY["[SEP]"]]
    assert arrays["truncated"].item()


def test_a_text_that_is_too_long_is_refused_alone(
    load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stub.MetricFamily, "ports", {})
    model, graph = load(truncation="error")
    exact = "w1 " * (MAX_LENGTH - 2)
    responses = stub.answers_of(
        model, request(exact), request("w1", f"{exact} w2"), request("w3"), request("w1", pairs=(exact,))
    )
    assert [response.has_error() for response in responses] == [False, True, False, True]
    errors = [error for response in responses if (error := response.error()) is not None]
    assert [error.message() for error in errors] == [
        f"text {number} of the request has {length} tokens, at most 16 are read: shorten it, or leave it out"
        for number, length in ((2, MAX_LENGTH + 1), (1, MAX_LENGTH + 2))
    ]
    assert {error.code() for error in errors} == {stub.Error.INVALID_ARG}
    (call,) = graph.calls
    assert len(call.inputs[0].as_numpy()) == 2
    model.meter.publish()
    refused = stub.MetricFamily.ports["sparse_serve_refused_total"]
    assert {dict(labels)["reason"]: n for labels, n in refused.items() if n} == {"too_long": 3}
    assert all(response.has_error() for response in stub.answers_of(model, request(f"{exact} w2")))
    assert len(graph.calls) == 1


def test_a_question_that_is_too_long_is_refused(load: Callable[..., Any]) -> None:
    model, _ = load(SPANS, truncation="error")
    (response,) = stub.answers_of(model, request("w1 " * 9, pairs=("w2 " * 30,), names=SPAN_OUTPUTS))
    error = response.error()
    assert error is not None
    assert error.message().startswith("text 1 of the request has 9 tokens, at most 6 are read")
    answer(model, request("w1 " * 6, pairs=("w2 " * 30,), names=SPAN_OUTPUTS))


def test_short_requests_do_not_wait_for_long_ones(load: Callable[..., Any]) -> None:
    model, graph = load(SPANS)
    let = Event()

    def hold_windows(call: stub.Request) -> None:
        if VOCABULARY["w7"] in call.inputs[0].as_numpy():
            assert let.wait(30)

    graph.fault = hold_windows
    long = request("w1", pairs=("w7 " * 2000,), names=SPAN_OUTPUTS)
    short = request("w1", pairs=("w2 w3",), names=SPAN_OUTPUTS)
    assert model.execute([long, short]) is None
    assert not short.answers.get(timeout=30).has_error()
    (response,) = model.execute([request("w1", pairs=("w2 w3",), names=SPAN_OUTPUTS)])
    assert not response.has_error()
    assert long.answers.empty()
    let.set()
    assert long.answers.get(timeout=30).arrays()["token_count"].item() > 2000
    model.finalize()


def test_the_time_that_a_long_request_waits_for_a_thread_is_counted(
    load: Callable[..., Any], port: Port
) -> None:
    """By which an autoscaler sees that a server has too much to do."""
    model, graph = load()
    let = Event()
    graph.fault = lambda call: None if let.wait(30) else stub.Error("held")
    long = [request("w1 " * 5000) for _ in range(3)]
    assert model.execute(long) is None
    begun = time.perf_counter()
    wait_for(lambda: len(graph.calls) == 2)
    time.sleep(0.05)
    waited = time.perf_counter() - begun
    let.set()
    assert not any(each.answers.get(timeout=30).has_error() for each in long)
    model.meter.publish()
    stages = {dict(labels)["stage"]: n for labels, n in port["sparse_serve_stage_seconds_total"].items()}
    assert stages["wait"] >= waited
    model.finalize()


def test_a_long_request_is_answered_whatever_happens(
    tiny: tuple[Any, stub.Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = tiny

    def fail(*_: object) -> None:
        raise MemoryError("no\nroom")

    monkeypatch.setattr(model, "_count", fail)
    (response,) = stub.answers_of(model, request("w1 " * 5000))
    error = response.error()
    assert error is not None
    assert (error.code(), error.message()) == (stub.Error.INTERNAL, "MemoryError: no room")


def test_a_long_request_that_was_given_up_is_not_computed(tiny: tuple[Any, stub.Graph]) -> None:
    model, graph = tiny
    given_up, other = request("w1 " * 5000), request("w2 " * 5000)
    given_up.is_cancelled = True
    cancelled, answered = stub.answers_of(model, given_up, other)
    error = cancelled.error()
    assert error is not None
    assert (error.code(), error.message()) == (
        stub.Error.CANCELLED,
        "the request was cancelled by its client",
    )
    assert not answered.has_error()
    assert len(graph.calls) == 1


def test_a_counter_that_cannot_be_published_is_published_later(monkeypatch: pytest.MonkeyPatch) -> None:
    family = stub.MetricFamily
    counted = Meter(family, {"model": "published_later"}, [(TEXTS, {}), (TOKENS, {})])
    increment, failures = family._Metric.increment, [MemoryError("no room")]

    def fail_once(metric: Any, value: float) -> None:
        if failures:
            raise failures.pop()
        increment(metric, value)

    monkeypatch.setattr(family._Metric, "increment", fail_once)
    counted.add(TEXTS, 3)
    counted.add(TOKENS, 7)
    counted.publish()
    counted.publish()
    values = {name: family.ports[f"sparse_serve_{name}_total"] for name in ("texts", "tokens")}
    own = (("model", "published_later"),)
    assert {name: each[own] for name, each in values.items()} == {"texts": 3, "tokens": 7}


def test_an_answer_that_cannot_be_sent_is_no_concern_of_the_others(
    tiny: tuple[Any, stub.Graph],
) -> None:
    model, _ = tiny
    asked = [request("w1 " * 5000), request("w1"), request("w1 " * 5000), request("w1")]
    for each in asked[:2]:
        each.send_failures = [MemoryError("no\nroom")]
    answers = stub.answers_of(model, *asked)
    for response in answers[:2]:
        error = response.error()
        assert error is not None
        assert (error.code(), error.message()) == (stub.Error.INTERNAL, "MemoryError: no room")
    assert not any(response.has_error() for response in answers[2:])


@pytest.mark.parametrize("run_tokens", [None, 200, 1 << 20])
def test_windows_are_asked_for_so_many_tokens_at_a_time(
    tmp_path: Path, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch, run_tokens: int | None
) -> None:
    """By the configuration, which says how many fill what computes them, and the graph's rows."""
    public = write_entry(tmp_path, make_spec(SPANS, max_batch_size=500))
    if run_tokens is not None:
        edited = read_config(public / "config.pbtxt")
        edited.parameters["run_tokens"].string_value = str(run_tokens)
        (public / "config.pbtxt").write_text(to_text(edited))
    graph = stub.Graph(tmp_path / "tiny_model")
    monkeypatch.setattr(stub.Request, "call", graph, raising=False)
    model = stub.load_model(TRITON / "text_backend" / "model.py", public)
    (arrays,) = answer(model, request("w1", pairs=("w2 " * 1500,), names=SPAN_OUTPUTS))
    tokens = [int(call.inputs[1].as_numpy().sum()) for call in graph.calls]
    most = run_tokens or RUN_TOKENS
    assert max(tokens) <= most
    assert min(tokens[:-1], default=most) > most - MAX_LENGTH
    assert sum(tokens) == arrays["token_count"].item() > 1500
    if run_tokens == 1 << 20:
        assert [call.inputs[1].as_numpy().shape[0] for call in graph.calls[:-1]] == [500] * (len(tokens) - 1)


@pytest.mark.parametrize(
    ("parameters", "texts", "message"),
    [
        (
            {"max_text_bytes": "8"},
            ("w1 w2 w3", "w1 w2 w3 w4"),
            "input 'TEXT' has a text of 11 bytes: give at",
        ),
        ({"max_request_bytes": "10"}, ("w1 w2", "w3 w4 w5"), "the texts of the request have 13 bytes: give"),
    ],
)
def test_limits_are_the_operators(
    tmp_path: Path,
    make_spec: MakeSpec,
    monkeypatch: pytest.MonkeyPatch,
    parameters: dict[str, str],
    texts: tuple[str, ...],
    message: str,
) -> None:
    config = write_entry(tmp_path, make_spec()) / "config.pbtxt"
    edited = read_config(config)
    for key, value in parameters.items():
        edited.parameters[key].string_value = value
    config.write_text(to_text(edited))
    monkeypatch.setattr(stub.Request, "call", stub.Graph(tmp_path / "tiny_model"), raising=False)
    model = stub.load_model(TRITON / "text_backend" / "model.py", config.parent)
    refused, answered = stub.answers_of(model, request(*texts), request(texts[0]))
    error = refused.error()
    assert error is not None
    assert error.message().startswith(message)
    assert error.code() == stub.Error.INVALID_ARG
    assert not answered.has_error()


@pytest.mark.parametrize("beside", [0, 1])
@pytest.mark.parametrize("text", ["w1 " * 400_000, b"caf\xe9", "w2 " * 50, "w1 " * 5_000, "fault"])
def test_a_refused_request_is_let_go_at_once(
    load: Callable[..., tuple[Any, stub.Graph]], text: str | bytes, beside: int
) -> None:
    """Of too many bytes, no text, of too many tokens, on a thread of its own too, or refused by the graph."""
    model, graph = load(truncation="error")
    if text == "fault":
        graph.fault = lambda request: stub.Error("no") if len(request.inputs[0].as_numpy()) != 2 else None
    gc.disable()
    try:
        refused = request(text)
        held = weakref.ref(refused)
        first, *others = stub.answers_of(model, refused, *[request("w1", "w2")] * beside)
        assert first.has_error()
        assert not any(other.has_error() for other in others)
        model.finalize()
        graph.calls.clear()
        del refused, first
        assert held() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "\u00a0"])
def test_blank_texts_are_valid(tiny: tuple[Any, stub.Graph], text: str) -> None:
    (arrays,) = answer(tiny[0], request(text))
    assert arrays["token_count"].item() == 2
    assert np.isfinite(arrays["scores"]).all()


def test_companions_do_not_change_an_answer(tiny: tuple[Any, stub.Graph]) -> None:
    model, _ = tiny
    texts = ["w1", "", "w2 w3 " * 30, "w4 w5 w6", "nothing known"]
    alone = [answer(model, request(text))[0] for text in texts]
    for order in (texts, texts[::-1]):
        together = answer(model, *(request(text) for text in order))
        for text, arrays in zip(order, together, strict=True):
            expected = alone[texts.index(text)]
            np.testing.assert_allclose(arrays["logits"], expected["logits"], atol=1e-6)
            assert arrays["label"].tolist() == expected["label"].tolist()


def test_invalid_utf8_fails_its_own_request_only(tiny: tuple[Any, stub.Graph]) -> None:
    model, graph = tiny
    good = request("w1")
    responses = model.execute([good, request("w1", b"caf\xe9"), request("w2", pairs=("w3",)), good])
    assert [response.has_error() for response in responses] == [False, True, False, False]
    error = responses[1].error()
    assert error.code() == stub.Error.INVALID_ARG
    assert error.message() == "TEXT must be UTF-8, got unexpected end of data at byte 3"
    assert len(graph.calls) == 1


def test_a_request_without_text_fails_alone(tiny: tuple[Any, stub.Graph]) -> None:
    pair_only = request("w1", pairs=("w2",))
    del pair_only.inputs[0]
    responses = tiny[0].execute([request("w1"), pair_only])
    assert [response.has_error() for response in responses] == [False, True]
    assert responses[1].error().message() == "input TEXT is missing"


def test_an_unforeseen_fault_stays_with_its_request(tiny: tuple[Any, stub.Graph]) -> None:
    model, _ = tiny
    own = model.tokenizer

    class Tokenizer:
        def __getattr__(self, name: str) -> Any:
            return getattr(own, name)

        def encode_batch_fast(self, texts: list[str]) -> Any:
            if "w9" in texts:
                raise RuntimeError("out\nof order")
            return own.encode_batch_fast(texts)

    model.tokenizer = Tokenizer()
    responses = model.execute([request("w1"), request("w9")])
    assert [response.has_error() for response in responses] == [False, True]
    assert responses[1].error().message() == "RuntimeError: out of order"
    assert responses[1].error().code() == stub.Error.INTERNAL


def test_a_server_that_ends_is_not_called_a_fault(tiny: tuple[Any, stub.Graph]) -> None:
    model, graph = tiny
    graph.fault = lambda request: stub.Error("Error when running inference: Server not ready")
    (response,) = model.execute([request("w1")])
    assert response.error().code() == stub.Error.UNAVAILABLE


def test_a_request_that_cannot_be_read_at_all_fails_alone(tiny: tuple[Any, stub.Graph]) -> None:
    class Broken(stub.Tensor):
        def as_numpy(self) -> npt.NDArray[Any]:
            raise MemoryError("cannot\nallocate")

    class Nameless(stub.Request):
        def requested_output_names(self) -> list[str]:
            raise RuntimeError("no names")

    good = request("w1")
    unreadable = stub.Request([Broken("TEXT", np.array([]))], OUTPUTS)
    uneven = request("w1", "w2", pairs=("w3",))
    responses = tiny[0].execute([good, unreadable, uneven, Nameless(good.inputs, OUTPUTS), good])
    assert [response.has_error() for response in responses] == [False, True, True, True, False]
    errors = [response.error() for response in responses[1:4]]
    codes = [error.code() for error in errors]
    assert codes == [stub.Error.INTERNAL, stub.Error.INVALID_ARG, stub.Error.INTERNAL]
    assert errors[0].message() == "MemoryError: cannot allocate"


def test_an_output_that_is_not_there_fails_its_own_request_only(tiny: tuple[Any, stub.Graph]) -> None:
    responses = tiny[0].execute([request("w1"), request("w2", names=("colour",))])
    assert [response.has_error() for response in responses] == [False, True]


def test_a_batch_of_unreadable_requests_asks_no_graph(tiny: tuple[Any, stub.Graph]) -> None:
    model, graph = tiny
    assert all(response.has_error() for response in model.execute([request(b"\xff")] * 2))
    assert not graph.calls


def test_a_graph_that_fails_on_one_text_answers_the_others(tiny: tuple[Any, stub.Graph]) -> None:
    model, graph = tiny

    def fault(call: stub.Request) -> stub.Error | None:
        is_guilty = VOCABULARY["w9"] in call.inputs[0].as_numpy()
        return stub.Error("no", stub.Error.INVALID_ARG) if is_guilty else None

    graph.fault = fault
    responses = model.execute([request("w1"), request("w9"), request("w2")])
    assert [response.has_error() for response in responses] == [False, True, False]
    assert responses[1].error().code() == stub.Error.INVALID_ARG
    assert len(graph.calls) == 4


def test_a_text_with_a_token_that_the_graph_does_not_know_is_refused_alone(
    tiny: tuple[Any, stub.Graph],
) -> None:
    """A graph says so by NaN."""
    model, graph = tiny
    session = graph.session

    class Session:
        def run(self, names: list[str], feed: dict[str, Any]) -> list[Any]:
            is_unknown = (feed["input_ids"] == VOCABULARY["w9"]).any(1)
            answers: list[Any] = session.run(names, feed)
            answers[names.index("logits")][is_unknown] = np.nan
            return answers

    graph.session = Session()
    responses = model.execute([request("w1"), request("w3", "w9"), request("w2")])
    assert [response.has_error() for response in responses] == [False, True, False]
    error = responses[1].error()
    assert error.code() == stub.Error.INTERNAL
    assert "tiny_model answers NaN: the tokenizer has tokens that it does not know" in error.message()


def test_an_overloaded_graph_is_asked_once(tiny: tuple[Any, stub.Graph]) -> None:
    model, graph = tiny
    graph.fault = lambda call: stub.Error("Exceeds maximum queue size", stub.Error.UNAVAILABLE)
    responses = model.execute([request("w1"), request("w2")])
    assert [response.error().code() for response in responses] == [stub.Error.UNAVAILABLE] * 2
    assert len(graph.calls) == 1


def test_rho_is_computed_only_when_asked_for(tiny: tuple[Any, stub.Graph]) -> None:
    model, graph = tiny
    without = request("w1", names=("label", "scores"))
    (arrays,) = answer(model, without)
    assert list(arrays) == ["label", "scores"]
    mixed = answer(model, without, request("w1 w2", names=("rho",)))
    assert [call.requested_output_names() for call in graph.calls] == [["logits"], ["logits", "rho"]]
    assert [list(arrays) for arrays in mixed] == [["label", "scores"], ["rho"]]


def test_metrics_are_sums_over_the_texts_answered(
    load: Callable[..., Any], tmp_path: Path, port: Port
) -> None:
    graph = tiny_graph(tmp_path / "axes.onnx", axes=True)
    model, served = load(graph=graph, attention=Attention(normalizer="softmax", pattern="axis"), metrics=True)
    counted = [f"sparse_serve_{name}_total" for name in ("texts", "tokens", "truncated")]
    families = [f"sparse_serve_{name}_total" for name in ("rho", "rows_on", "columns_on")]
    assert set(port) == {*families, *COUNTED}
    assert not any(value for counters in port.values() for value in counters.values())

    served.fault = lambda call: stub.Error("no") if VOCABULARY["w9"] in call.inputs[0].as_numpy() else None
    # [CLS] w0 w1 [SEP] and [CLS] w1 [SEP], once together with a text that the graph refuses.
    responses = model.execute([request("w0 w1", names=("label",)), request("w9"), request("w1")])
    assert [response.has_error() for response in responses] == [False, True, False]
    assert set(responses[0].arrays()) == {"label"}
    assert all(
        set(call.requested_output_names()) == {"logits", "rho", "rows_on", "columns_on"}
        for call in served.calls
    )
    model.meter.publish()
    entry = (("model", "tiny"), ("version", "1"))
    assert [port[name] for name in counted] == [{entry: 2}, {entry: 4 + 3}, {entry: 0}]
    sums = {name: [port[name][(("layer", f"{layer}"), *entry)] for layer in (1, 2)] for name in families}
    np.testing.assert_allclose(sums[families[0]], [2 / 4 + 2 / 3, 1 + 1], rtol=1e-6)
    np.testing.assert_allclose(sums[families[1]], [1 / 4 + 1 / 3, 2 / 4 + 2 / 3], rtol=1e-6)
    np.testing.assert_allclose(sums[families[2]], [2 / 4 + 2 / 3, 3 / 4 + 2 / 3], rtol=1e-6)


def test_what_is_read_and_refused_is_counted(load: Callable[..., Any], port: Port) -> None:
    model, graph = load()
    graph.fault = lambda call: stub.Error("no") if VOCABULARY["w9"] in call.inputs[0].as_numpy() else None
    asked = [request("w1", "w2 w3"), request("w4 " * 50), request("w9", "w1"), request(b"\xff")]
    asked += [request("w1" * 600_000), request("w1", pairs=("w2", "w3")), request("w1 w2")]
    stub.answers_of(model, *asked)
    model.meter.publish()
    entry = (("model", "tiny"), ("version", "1"))
    assert port.keys() == COUNTED
    counted = {name: values[entry] for name, values in port.items() if entry in values}
    assert counted["sparse_serve_texts_total"] == 4
    assert counted["sparse_serve_tokens_total"] == 3 + 4 + MAX_LENGTH + 4
    assert counted["sparse_serve_truncated_total"] == 1
    assert counted["sparse_serve_padding_saved_total"] > 0
    reasons = {dict(labels)["reason"]: n for labels, n in port["sparse_serve_refused_total"].items()}
    assert {reason: n for reason, n in reasons.items() if n} == {
        "too_large": 1,
        "not_utf8": 1,
        "malformed": 1,
        "graph": 2,
    }
    stages = {dict(labels)["stage"]: n for labels, n in port["sparse_serve_stage_seconds_total"].items()}
    assert stages.pop("wait") == 0
    assert stages.keys() == {"tokenize", "graph", "answer"}
    assert all(seconds > 0 for seconds in stages.values())


def test_single_label_scores_are_a_softmax(tiny: tuple[Any, stub.Graph]) -> None:
    (arrays,) = answer(tiny[0], request("w1", "w2 w3 w4"))
    exponentials = np.exp(arrays["logits"].astype(np.float64))
    np.testing.assert_allclose(arrays["scores"], exponentials / exponentials.sum(1, keepdims=True), rtol=1e-5)
    labels = np.array([b"negative", b"positive"])[arrays["logits"].argmax(1)]
    assert arrays["label"][:, 0].tolist() == labels.tolist()
    assert arrays["scores"].dtype == np.float32


def test_multi_label_scores_are_sigmoids(load: Callable[..., Any]) -> None:
    labels = ("a", "bé", 'c "d"')
    model, _ = load(MultiLabel(labels))
    (arrays,) = answer(model, request("w1", "w2 w3 w4", "w7 " * 30))
    logits = arrays["logits"].astype(np.float64)
    np.testing.assert_allclose(arrays["scores"], 1 / (1 + np.exp(-logits)), rtol=1e-4, atol=1e-7)
    for row, text in zip(logits, arrays["label"][:, 0], strict=True):
        assert json.loads(text) == [label for label, logit in zip(labels, row, strict=True) if logit >= 0]
    assert arrays["scores"].dtype == np.float32


def test_regression_gives_the_value_itself(load: Callable[..., Any]) -> None:
    model, _ = load(Regression(("value",)))
    (arrays,) = answer(model, request("w1", "w2"))
    np.testing.assert_array_equal(arrays["scores"], arrays["logits"])
    assert [np.float32(text) for text in arrays["label"][:, 0]] == arrays["logits"][:, 0].tolist()


def test_several_values_are_a_json_array(load: Callable[..., Any]) -> None:
    model, _ = load(Regression(("length", "width")))
    (arrays,) = answer(model, request("w1"))
    assert np.float32(json.loads(arrays["label"].item())).tolist() == arrays["logits"][0].tolist()


SPAN_OUTPUTS = ("answer", "start", "end", "score", "token_count", "truncated", "rho")


def test_a_question_is_answered_from_all_windows_of_its_context(load: Callable[..., Any]) -> None:
    """Windows of several requests share the graph's batches, of at most its size."""
    model, graph = load(SPANS, max_batch_size=4)
    long = " ".join(f"w{number % 30}" for number in range(40))
    short = request("w1", pairs=("w2 w3",), names=SPAN_OUTPUTS)
    responses = answer(model, request("w4", "w5", pairs=(long, "w6"), names=SPAN_OUTPUTS), short)
    rows = [len(call.inputs[0].as_numpy()) for call in graph.calls]
    windows = sum(rows)
    assert rows == [4] * (windows // 4) + [windows % 4] * (windows % 4 > 0)
    assert windows > 4
    counts = [arrays["token_count"][:, 0].tolist() for arrays in responses]
    assert counts[0][0] > MAX_LENGTH
    assert (counts[0][1], counts[1]) == (5, [6])
    for arrays in responses:
        for row, context in enumerate((long, "w6") if arrays is responses[0] else ("w2 w3",)):
            start, end = arrays["start"][row, 0], arrays["end"][row, 0]
            assert context[start:end] == arrays["answer"][row, 0].decode() != ""
        assert not arrays["truncated"].any()
    alone = answer(model, request("w4", pairs=(long,), names=SPAN_OUTPUTS))[0]
    for name in SPAN_OUTPUTS:
        np.testing.assert_array_equal(alone[name][0], responses[0][name][0])


def test_rho_of_a_question_is_the_mean_of_its_windows(load: Callable[..., Any]) -> None:
    model, graph = load(SPANS)
    context = " ".join(["w20"] * 30)
    (arrays,) = answer(model, request("w21", pairs=(context,), names=SPAN_OUTPUTS))
    masks = graph.calls[0].inputs[1].as_numpy()
    assert len(masks) > 1
    np.testing.assert_allclose(arrays["rho"][0], [(3 / masks.sum(axis=1)).mean()] * 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("task", "pairs", "message"),
    [
        (SPANS, None, "question answering needs TEXT_PAIR beside TEXT"),
        (TAGS, ("w2",), "token classification reads TEXT alone: leave out TEXT_PAIR"),
    ],
)
def test_texts_that_a_task_cannot_have_fail_alone(
    load: Callable[..., Any], task: Task, pairs: tuple[str, ...] | None, message: str
) -> None:
    model, graph = load(task)
    names = tuple(output.name for output in task.outputs)
    good = request("w1", pairs=("w2",) if pairs is None else None, names=names)
    responses = model.execute([good, request("w1", pairs=pairs, names=names), good])
    assert [response.has_error() for response in responses] == [False, True, False]
    assert responses[1].error().message() == message
    assert responses[1].error().code() == stub.Error.INVALID_ARG
    assert len(graph.calls) == 1


def test_tags_of_batches_of_several_lengths_become_entities(load: Callable[..., Any]) -> None:
    model, graph = load(TAGS, max_batch_size=2)
    texts = ["w1 w2", "w3", "w4 w5 w6 w7 w8", "", "w9 w10"]
    names = ("entities", "truncated", "token_count")
    together = answer(model, *(request(text, names=names) for text in texts))
    assert [call.inputs[0].as_numpy().shape for call in graph.calls] == [(2, 4), (2, 7), (1, 4)]
    for text, arrays in zip(texts, together, strict=True):
        alone = answer(model, request(text, names=names))[0]
        assert json.loads(arrays["entities"].item()) == json.loads(alone["entities"].item())
        for entity in json.loads(arrays["entities"].item()):
            assert text[entity["start"] : entity["end"]] == entity["text"]
    assert json.loads(together[3]["entities"].item()) == []


def test_an_embedding_is_the_graphs(load: Callable[..., Any]) -> None:
    model, graph = load(VECTORS)
    (arrays,) = answer(model, request("w1", "w2 w3", "", names=("embedding", "token_count")))
    assert arrays["embedding"].shape == (3, VECTORS.size)
    assert arrays["embedding"].dtype == np.float32
    assert graph.calls[0].requested_output_names() == ["embedding"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('key: "tasks"', 'key: "task"', r"config\.pbtxt is missing or malformed \('tasks'\): export"),
        ('string_value: "16"', 'string_value: "sixteen"', r"malformed \(invalid literal .*'sixteen'\)"),
        ('string_value: "{', 'string_value: "', "malformed"),
        ('string_value: "1048576"', 'string_value: "1e6"', r"malformed \(max_text_bytes is '1e6': give a"),
        (
            '{\\"default\\": {',
            '{\\"a\\": {\\"type\\": \\"regression\\", \\"labels\\": [\\"x\\"]}, \\"b\\": {',
            r"malformed \(2 tasks for the inputs input_ids,attention_mask,token_type_ids\): export",
        ),
    ],
)
def test_parameters_that_cannot_be_read_are_named_at_load(
    tmp_path: Path, make_spec: MakeSpec, old: str, new: str, message: str
) -> None:
    config = write_entry(tmp_path, make_spec()) / "config.pbtxt"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new, 1))
    with pytest.raises(Exception, match=message) as raised:
        stub.load_model(TRITON / "text_backend" / "model.py", config.parent)
    assert type(raised.value).__name__ == "TritonModelException"
    assert "\n" not in str(raised.value)


def test_an_entry_of_a_task_that_the_front_does_not_know_is_refused_at_load(
    tmp_path: Path, make_spec: MakeSpec
) -> None:
    public = write_entry(tmp_path, make_spec())
    config = public / "config.pbtxt"
    config.write_text(config.read_text().replace("single_label_classification", "translation"))
    with pytest.raises(Exception, match=r"task 'translation' is not known here, .*: upgrade") as raised:
        stub.load_model(TRITON / "text_backend" / "model.py", public)
    assert type(raised.value).__name__ == "TritonModelException"
    assert "\n" not in str(raised.value)


BARE = """
import importlib.util, sys
from types import ModuleType
sys.path.append({packages!r})
sys.modules["triton_python_backend_utils"] = ModuleType("triton_python_backend_utils")
specification = importlib.util.spec_from_file_location("model", {model!r})
module = importlib.util.module_from_spec(specification)
specification.loader.exec_module(module)
own = [name for name in sys.modules if name.split(".")[0] == "sparse_serve"]
assert all(sys.modules[name].__file__.startswith({backend!r}) for name in own), own
foreign = [name for name in ("onnx", "pydantic", "tritonclient", "sklearn", "torch") if name in sys.modules]
print(len(own), foreign)
"""


def test_the_backend_needs_no_installed_package(tmp_path: Path) -> None:
    """The container's Python has numpy and tokenizers; without `site`, nothing finds sparse_serve."""
    backends = backend_directory(find_triton("bundled"), tmp_path / "backends")
    backend = backends / "sparse_serve_text"
    packages = str(Path(np.__file__).parents[1])
    code = BARE.format(packages=packages, model=str(backend / "model.py"), backend=str(backend))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    count, foreign = done.stdout.split(maxsplit=1)
    assert int(count) > 10
    assert foreign.strip() == "[]"
