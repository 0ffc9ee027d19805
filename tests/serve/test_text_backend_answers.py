"""The text backend in this process: what it answers by task, and what it counts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import triton_stub as stub
from text_front import SPAN_OUTPUTS, Front, LoadFront, Shown, answer, request
from tiny_entry import MAX_LENGTH, SPANS, TAGS, VECTORS, VOCABULARY, tiny_graph

from sparse_serve.repository.manifest import Attention
from sparse_serve.tasks import MultiLabel, Regression
from sparse_serve.text_backend.meter import TEXTS, TOKENS, Meter

COUNTED = {
    f"sparse_serve_{name}_total"
    for name in ("texts", "tokens", "truncated", "refused", "padding_saved", "stage_seconds")
}


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


def test_rho_is_computed_only_when_asked_for(front: Front) -> None:
    model, graph = front
    without = request("w1", names=("label", "scores"))
    (arrays,) = answer(model, without)
    assert list(arrays) == ["label", "scores"]
    mixed = answer(model, without, request("w1 w2", names=("rho",)))
    assert [call.requested_output_names() for call in graph.calls] == [["logits"], ["logits", "rho"]]
    assert [list(arrays) for arrays in mixed] == [["label", "scores"], ["rho"]]


def test_metrics_are_sums_over_the_texts_answered(
    load_front: LoadFront, tmp_path: Path, shown: Shown
) -> None:
    graph = tiny_graph(tmp_path / "axes.onnx", axes=True)
    model, served = load_front(
        graph=graph, attention=Attention(normalizer="softmax", pattern="axis"), metrics=True
    )
    counted = [f"sparse_serve_{name}_total" for name in ("texts", "tokens", "truncated")]
    families = [f"sparse_serve_{name}_total" for name in ("rho", "rows_on", "columns_on")]
    assert set(shown) == {*families, *COUNTED}
    assert not any(value for counters in shown.values() for value in counters.values())

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
    assert [shown[name] for name in counted] == [{entry: 2}, {entry: 4 + 3}, {entry: 0}]
    sums = {name: [shown[name][(("layer", f"{layer}"), *entry)] for layer in (1, 2)] for name in families}
    np.testing.assert_allclose(sums[families[0]], [2 / 4 + 2 / 3, 1 + 1], rtol=1e-6)
    np.testing.assert_allclose(sums[families[1]], [1 / 4 + 1 / 3, 2 / 4 + 2 / 3], rtol=1e-6)
    np.testing.assert_allclose(sums[families[2]], [2 / 4 + 2 / 3, 3 / 4 + 2 / 3], rtol=1e-6)


def test_what_is_read_and_refused_is_counted(load_front: LoadFront, shown: Shown) -> None:
    model, graph = load_front()
    faults = {"w8": stub.Error("full", stub.Error.UNAVAILABLE), "w9": stub.Error("no")}
    graph.fault = lambda call: next(
        (error for word, error in faults.items() if VOCABULARY[word] in call.inputs[0].as_numpy()), None
    )
    asked = [request("w1", "w2 w3"), request("w4 " * 50), request(b"\xff")]
    asked += [request("w1" * 600_000), request("w1", pairs=("w2", "w3")), request("w1 w2")]
    for requests in asked, [request("w8")], [request("w9", "w1")]:
        stub.answers_of(model, *requests)
    model.meter.publish()
    entry = (("model", "tiny"), ("version", "1"))
    assert shown.keys() == COUNTED
    counted = {name: values[entry] for name, values in shown.items() if entry in values}
    assert counted["sparse_serve_texts_total"] == 4
    assert counted["sparse_serve_tokens_total"] == 3 + 4 + MAX_LENGTH + 4
    assert counted["sparse_serve_truncated_total"] == 1
    assert counted["sparse_serve_padding_saved_total"] > 0
    reasons = {dict(labels)["reason"]: n for labels, n in shown["sparse_serve_refused_total"].items()}
    assert {reason: n for reason, n in reasons.items() if n} == {
        "too_large": 1,
        "not_utf8": 1,
        "malformed": 1,
        "graph": 1,
        "fault": 2,
    }
    stages = {dict(labels)["stage"]: n for labels, n in shown["sparse_serve_stage_seconds_total"].items()}
    assert stages.pop("wait") == 0
    assert stages.keys() == {"tokenize", "graph", "answer"}
    assert all(seconds > 0 for seconds in stages.values())


def test_single_label_scores_are_a_softmax(front: Front) -> None:
    (arrays,) = answer(front[0], request("w1", "w2 w3 w4"))
    exponentials = np.exp(arrays["logits"].astype(np.float64))
    np.testing.assert_allclose(arrays["scores"], exponentials / exponentials.sum(1, keepdims=True), rtol=1e-5)
    labels = np.array([b"negative", b"positive"])[arrays["logits"].argmax(1)]
    assert arrays["label"][:, 0].tolist() == labels.tolist()
    assert arrays["scores"].dtype == np.float32


def test_multi_label_scores_are_sigmoids(load_front: LoadFront) -> None:
    labels = ("a", "bé", 'c "d"')
    model, _ = load_front(MultiLabel(labels))
    (arrays,) = answer(model, request("w1", "w2 w3 w4", "w7 " * 30))
    logits = arrays["logits"].astype(np.float64)
    np.testing.assert_allclose(arrays["scores"], 1 / (1 + np.exp(-logits)), rtol=1e-4, atol=1e-7)
    for row, text in zip(logits, arrays["label"][:, 0], strict=True):
        assert json.loads(text) == [label for label, logit in zip(labels, row, strict=True) if logit >= 0]
    assert arrays["scores"].dtype == np.float32


def test_regression_gives_the_value_itself(load_front: LoadFront) -> None:
    model, _ = load_front(Regression(("value",)))
    (arrays,) = answer(model, request("w1", "w2"))
    np.testing.assert_array_equal(arrays["scores"], arrays["logits"])
    assert [np.float32(text) for text in arrays["label"][:, 0]] == arrays["logits"][:, 0].tolist()


def test_several_values_are_a_json_array(load_front: LoadFront) -> None:
    model, _ = load_front(Regression(("length", "width")))
    (arrays,) = answer(model, request("w1"))
    assert np.float32(json.loads(arrays["label"].item())).tolist() == arrays["logits"][0].tolist()


def test_a_question_is_answered_from_all_windows_of_its_context(load_front: LoadFront) -> None:
    """Windows of several requests share the graph's batches, of at most its size."""
    model, graph = load_front(SPANS, max_batch_size=4)
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


def test_rho_of_a_question_is_the_mean_of_its_windows(load_front: LoadFront) -> None:
    model, graph = load_front(SPANS)
    context = " ".join(["w20"] * 30)
    (arrays,) = answer(model, request("w21", pairs=(context,), names=SPAN_OUTPUTS))
    masks = graph.calls[0].inputs[1].as_numpy()
    assert len(masks) > 1
    np.testing.assert_allclose(arrays["rho"][0], [(3 / masks.sum(axis=1)).mean()] * 2, rtol=1e-6)


def test_tags_of_batches_of_several_lengths_become_entities(load_front: LoadFront) -> None:
    model, graph = load_front(TAGS, max_batch_size=2)
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


def test_an_embedding_is_the_graphs(load_front: LoadFront) -> None:
    model, graph = load_front(VECTORS)
    (arrays,) = answer(model, request("w1", "w2 w3", "", names=("embedding", "token_count")))
    assert arrays["embedding"].shape == (3, VECTORS.size)
    assert arrays["embedding"].dtype == np.float32
    assert graph.calls[0].requested_output_names() == ["embedding"]
