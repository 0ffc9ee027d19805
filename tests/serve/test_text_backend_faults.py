"""The text backend in this process: whatever a request is, the others are answered."""

import gc
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import triton_stub as stub
from text_front import OUTPUTS, SPAN_OUTPUTS, Front, LoadFront, Shown, answer, request
from tiny_entry import MAX_LENGTH, SPANS, TAGS, VOCABULARY

from sparse_serve.tasks import Task


def test_a_text_that_is_too_long_is_refused_alone(load_front: LoadFront, shown: Shown) -> None:
    model, graph = load_front(truncation="error")
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
    refused = shown["sparse_serve_refused_total"]
    assert {dict(labels)["reason"]: n for labels, n in refused.items() if n} == {"too_long": 3}
    assert all(response.has_error() for response in stub.answers_of(model, request(f"{exact} w2")))
    assert len(graph.calls) == 1


def test_a_question_that_is_too_long_is_refused(load_front: LoadFront) -> None:
    model, _ = load_front(SPANS, truncation="error")
    (response,) = stub.answers_of(model, request("w1 " * 9, pairs=("w2 " * 30,), names=SPAN_OUTPUTS))
    error = response.error()
    assert error is not None
    assert error.message().startswith("text 1 of the request has 9 tokens, at most 6 are read")
    answer(model, request("w1 " * 6, pairs=("w2 " * 30,), names=SPAN_OUTPUTS))


def test_a_long_request_is_answered_whatever_happens(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = front

    def fail(*_: object) -> None:
        raise MemoryError("no\nroom")

    monkeypatch.setattr(model, "_count", fail)
    (response,) = stub.answers_of(model, request("w1 " * 5000))
    error = response.error()
    assert error is not None
    assert (error.code(), error.message()) == (stub.Error.INTERNAL, "MemoryError: no room")


def test_a_long_request_that_was_given_up_is_not_computed(front: Front) -> None:
    model, graph = front
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


def test_an_answer_that_cannot_be_sent_is_no_concern_of_the_others(
    front: Front,
) -> None:
    model, _ = front
    asked = [request("w1 " * 5000), request("w1"), request("w1 " * 5000), request("w1")]
    for each in asked[:2]:
        each.send_failures = [MemoryError("no\nroom")]
    answers = stub.answers_of(model, *asked)
    for response in answers[:2]:
        error = response.error()
        assert error is not None
        assert (error.code(), error.message()) == (stub.Error.INTERNAL, "MemoryError: no room")
    assert not any(response.has_error() for response in answers[2:])


@pytest.mark.parametrize("beside", [0, 1])
@pytest.mark.parametrize("text", ["w1 " * 400_000, b"caf\xe9", "w2 " * 50, "w1 " * 5_000, "fault"])
def test_a_refused_request_is_let_go_at_once(load_front: LoadFront, text: str | bytes, beside: int) -> None:
    """Of too many bytes, no text, of too many tokens, on a thread of its own too, or refused by the graph."""
    model, graph = load_front(truncation="error")
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


def test_companions_do_not_change_an_answer(front: Front) -> None:
    model, _ = front
    texts = ["w1", "", "w2 w3 " * 30, "w4 w5 w6", "nothing known"]
    alone = [answer(model, request(text))[0] for text in texts]
    for order in (texts, texts[::-1]):
        together = answer(model, *(request(text) for text in order))
        for text, arrays in zip(order, together, strict=True):
            expected = alone[texts.index(text)]
            np.testing.assert_allclose(arrays["logits"], expected["logits"], atol=1e-6)
            assert arrays["label"].tolist() == expected["label"].tolist()


def test_invalid_utf8_fails_its_own_request_only(front: Front) -> None:
    model, graph = front
    good = request("w1")
    responses = model.execute([good, request("w1", b"caf\xe9"), request("w2", pairs=("w3",)), good])
    assert [response.has_error() for response in responses] == [False, True, False, False]
    error = responses[1].error()
    assert error.code() == stub.Error.INVALID_ARG
    assert error.message() == "TEXT 2 of the request must be UTF-8, got unexpected end of data at byte 3"
    assert len(graph.calls) == 1


def test_a_request_without_text_fails_alone(front: Front) -> None:
    pair_only = request("w1", pairs=("w2",))
    del pair_only.inputs[0]
    responses = front[0].execute([request("w1"), pair_only])
    assert [response.has_error() for response in responses] == [False, True]
    assert responses[1].error().message() == "input TEXT is missing"


def test_an_unforeseen_fault_stays_with_its_request(front: Front) -> None:
    model, _ = front
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


def test_a_server_that_ends_is_not_called_a_fault(front: Front) -> None:
    model, graph = front
    graph.fault = lambda request: stub.Error("Error when running inference: Server not ready")
    (response,) = model.execute([request("w1")])
    assert response.error().code() == stub.Error.UNAVAILABLE


def test_a_request_that_cannot_be_read_at_all_fails_alone(front: Front) -> None:
    class Broken(stub.Tensor):
        def as_numpy(self) -> npt.NDArray[Any]:
            raise MemoryError("cannot\nallocate")

    class Nameless(stub.Request):
        def requested_output_names(self) -> list[str]:
            raise RuntimeError("no names")

    good = request("w1")
    unreadable = stub.Request([Broken("TEXT", np.array([]))], OUTPUTS)
    uneven = request("w1", "w2", pairs=("w3",))
    responses = front[0].execute([good, unreadable, uneven, Nameless(good.inputs, OUTPUTS), good])
    assert [response.has_error() for response in responses] == [False, True, True, True, False]
    errors = [response.error() for response in responses[1:4]]
    codes = [error.code() for error in errors]
    assert codes == [stub.Error.INTERNAL, stub.Error.INVALID_ARG, stub.Error.INTERNAL]
    assert errors[0].message() == "MemoryError: cannot allocate"


def test_an_output_that_is_not_there_fails_its_own_request_only(front: Front) -> None:
    responses = front[0].execute([request("w1"), request("w2", names=("colour",))])
    assert [response.has_error() for response in responses] == [False, True]


def test_a_batch_of_unreadable_requests_asks_no_graph(front: Front) -> None:
    model, graph = front
    assert all(response.has_error() for response in model.execute([request(b"\xff")] * 2))
    assert not graph.calls


def test_a_graph_that_fails_on_one_text_answers_the_others(front: Front) -> None:
    model, graph = front

    def fault(call: stub.Request) -> stub.Error | None:
        is_guilty = VOCABULARY["w9"] in call.inputs[0].as_numpy()
        return stub.Error("no", stub.Error.INVALID_ARG) if is_guilty else None

    graph.fault = fault
    responses = model.execute([request("w1"), request("w9"), request("w2")])
    assert [response.has_error() for response in responses] == [False, True, False]
    assert responses[1].error().code() == stub.Error.INVALID_ARG
    assert len(graph.calls) == 4


def test_a_text_with_a_token_that_the_graph_does_not_know_is_refused_alone(
    front: Front,
) -> None:
    """A graph says so by NaN."""
    model, graph = front
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


def test_an_overloaded_graph_is_asked_once(front: Front) -> None:
    model, graph = front
    graph.fault = lambda call: stub.Error("Exceeds maximum queue size", stub.Error.UNAVAILABLE)
    responses = model.execute([request("w1"), request("w2")])
    assert [response.error().code() for response in responses] == [stub.Error.UNAVAILABLE] * 2
    assert len(graph.calls) == 1


@pytest.mark.parametrize(
    ("task", "pairs", "message"),
    [
        (SPANS, None, "question answering needs TEXT_PAIR beside TEXT"),
        (TAGS, ("w2",), "token classification reads TEXT alone: leave out TEXT_PAIR"),
    ],
)
def test_texts_that_a_task_cannot_have_fail_alone(
    load_front: LoadFront, task: Task, pairs: tuple[str, ...] | None, message: str
) -> None:
    model, graph = load_front(task)
    names = tuple(output.name for output in task.outputs)
    good = request("w1", pairs=("w2",) if pairs is None else None, names=names)
    responses = model.execute([good, request("w1", pairs=pairs, names=names), good])
    assert [response.has_error() for response in responses] == [False, True, False]
    assert responses[1].error().message() == message
    assert responses[1].error().code() == stub.Error.INVALID_ARG
    assert len(graph.calls) == 1
