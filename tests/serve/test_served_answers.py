"""A real Triton and stock tritonclient: spans, entities and vectors, over HTTP and gRPC."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tiny_entry import MAX_LENGTH, SPANS, TAGS, VECTORS, WORDS
from tokenizers import Tokenizer
from tritonclient.utils import InferenceServerException

from sparse_serve.repository.writing import EntrySpec
from sparse_serve.tasks.encoding import graph_inputs
from sparse_serve.triton.launcher import TritonServer
from stock_client import Array, column, infer

MakeSpec = Callable[..., EntrySpec]

PROTOCOLS = pytest.mark.parametrize("protocol", ["http", "grpc"])
SPAN_OUTPUTS = ("answer", "start", "end", "score", "token_count", "truncated", "rho")

LONG = " ".join(WORDS[number * 7 % len(WORDS)] for number in range(90))
CONTEXTS = (
    LONG,
    "w1 😀 w2 👩‍👩‍👧 w3 🇩🇪 w4 w5 w6 w7 w8 w9",
    "cafe\u0301 w1 o\u0302\u0323 w2 w3 w4",
    "w1 w2\r\nw3 w4\r\n\r\nw5 w6",
    "",
    "  ",
    "unknown words alone",
)
QUESTIONS = ("w1", "w2 w3", "", "w4 " * 40, "w5", "w6", "w7")


def ask(server: TritonServer, protocol: str, name: str, questions: Any, contexts: Any) -> list[Array]:
    inputs = {"TEXT": column(*questions), "TEXT_PAIR": column(*contexts)}
    return infer(server, protocol, name, inputs, *SPAN_OUTPUTS)


@pytest.fixture(scope="module")
def tokenizer(make_spec: MakeSpec) -> Tokenizer:
    return Tokenizer.from_file(str(make_spec().tokenizer))


@PROTOCOLS
def test_the_tensors_of_a_span(server: TritonServer, protocol: str) -> None:
    arrays = ask(server, protocol, "spans", QUESTIONS, CONTEXTS)
    found = {name: (array.shape, array.dtype.char) for name, array in zip(SPAN_OUTPUTS, arrays, strict=True)}
    rows = len(CONTEXTS)
    assert found == {
        "answer": ((rows, 1), "O"),
        "start": ((rows, 1), "i"),
        "end": ((rows, 1), "i"),
        "score": ((rows, 1), "f"),
        "token_count": ((rows, 1), "i"),
        "truncated": ((rows, 1), "?"),
        "rho": ((rows, 2), "f"),
    }
    answers, starts, ends, scores, _, truncated, _ = (array[:, 0] for array in arrays)
    for context, answer, start, end, score in zip(CONTEXTS, answers, starts, ends, scores, strict=True):
        if context.strip():
            assert context[start:end] == answer.decode() != ""
            assert 0 < score <= 1
        else:
            assert (answer, start, end, score) == (b"", -1, -1, 0)
    assert truncated.tolist() == [False, False, False, True, False, False, False]


@PROTOCOLS
@pytest.mark.parametrize("name", ["spans", "unanswerable"])
def test_a_context_of_ten_windows_is_answered_window_by_window(
    server: TritonServer, protocol: str, tokenizer: Tokenizer, name: str
) -> None:
    """NAME_model is asked for one window at a time; the best of them is the public model's answer."""
    (text,) = SPANS.encode(tokenizer, ["w3 w4"], [LONG], MAX_LENGTH)
    assert len(text.windows) >= 10
    best = (-np.inf, 0, 0)
    null = np.inf
    for window in text.windows:
        arrays = graph_inputs([window], 0)
        (logits,) = infer(server, protocol, f"{name}_model", arrays, "logits")
        sums = logits[0].astype(np.float64)
        null = min(null, sums[0].sum())
        inside = [token for token, sequence in enumerate(window.sequence_ids) if sequence == 1]
        for first in inside:
            for last in inside:
                total = sums[first, 0] + sums[last, 1]
                if first <= last < first + SPANS.max_answer_tokens and total > best[0]:
                    best = (total, window.offsets[first][0], window.offsets[last][1])
    answer, start, end, *_ = (array.item() for array in ask(server, protocol, name, ["w3 w4"], [LONG])[:4])
    if name == "unanswerable" and null > best[0]:
        assert (answer, start, end) == (b"", -1, -1)
    else:
        assert (answer.decode(), start, end) == (LONG[best[1] : best[2]], *best[1:])


@PROTOCOLS
def test_spans_do_not_depend_on_their_companions(server: TritonServer, protocol: str) -> None:
    together = ask(server, protocol, "spans", QUESTIONS, CONTEXTS)
    reverse = ask(server, protocol, "spans", QUESTIONS[::-1], CONTEXTS[::-1])
    for row, (question, context) in enumerate(zip(QUESTIONS, CONTEXTS, strict=True)):
        alone = ask(server, protocol, "spans", [question], [context])
        for each, one, other in zip(together, alone, reverse, strict=True):
            np.testing.assert_array_equal(each[row], one[0])
            np.testing.assert_array_equal(each[row], other[len(QUESTIONS) - 1 - row])


def test_concurrent_questions_get_their_own_answers_and_errors(server: TritonServer) -> None:
    """Long contexts, short ones and requests that cannot be read meet in one server's dynamic batches."""
    expected = [
        ask(server, "grpc", "spans", [question], [context])
        for question, context in zip(QUESTIONS, CONTEXTS, strict=True)
    ]

    def work(number: int) -> None:
        for step in range(10):
            row = (number + step) % len(QUESTIONS)
            found = ask(server, "grpc", "spans", [QUESTIONS[row]], [CONTEXTS[row]])
            for one, other in zip(found, expected[row], strict=True):
                np.testing.assert_array_equal(one, other)
            with pytest.raises(InferenceServerException, match="TEXT_PAIR 1 of the request must be UTF-8"):
                ask(server, "grpc", "spans", ["w1"], [b"w2 \xff"])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


@PROTOCOLS
def test_entities_are_code_points_of_the_text_as_sent(server: TritonServer, protocol: str) -> None:
    texts = [*CONTEXTS, "w1 " * 50]
    outputs = ("entities", "token_count", "truncated", "rho")
    entities, counts, truncated, rho = infer(server, protocol, "tags", {"TEXT": column(*texts)}, *outputs)
    assert (counts.dtype.char, rho.shape) == ("i", (len(texts), 2))
    assert truncated[:, 0].tolist() == [True, *[False] * 6, True]
    kinds = {tag.partition("-")[2] for tag in TAGS.labels} - {""}
    number = 0
    for row, text in enumerate(texts):
        found = json.loads(entities[row, 0])
        number += len(found)
        for entity in found:
            assert list(entity) == ["label", "start", "end", "text", "score"]
            assert text[entity["start"] : entity["end"]] == entity["text"] != ""
            assert entity["label"] in kinds
            assert 0 < entity["score"] <= 1
        (alone,) = infer(server, protocol, "tags", {"TEXT": column(text)}, "entities")
        assert alone.item() == entities[row, 0]
    assert number > len(texts)
    assert [json.loads(entities[row, 0]) for row in (4, 5)] == [[], []]


@PROTOCOLS
def test_vectors_are_the_graphs(server: TritonServer, protocol: str, tokenizer: Tokenizer) -> None:
    texts = ("w1 w2", "w3", "", "w4 " * 50)
    embedding, counts = infer(
        server, protocol, "vectors", {"TEXT": column(*texts)}, "embedding", "token_count"
    )
    assert (embedding.shape, embedding.dtype.char) == ((4, VECTORS.size), "f")
    assert counts[:, 0].tolist() == [4, 3, 2, MAX_LENGTH]
    for row, text in enumerate(VECTORS.encode(tokenizer, texts, None, MAX_LENGTH)):
        (alone,) = infer(server, protocol, "vectors_model", graph_inputs(text.windows, 0), "embedding")
        np.testing.assert_allclose(embedding[row], alone[0], rtol=1e-5, atol=1e-5)


@PROTOCOLS
@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("spans", {"TEXT": column("w1")}, "expected 2 inputs but got 1"),
        ("spans", {"TEXT_PAIR": column("w1")}, "expected 2 inputs but got 1"),
        (
            "spans",
            {"TEXT": column(b"\xff"), "TEXT_PAIR": column("w1")},
            "TEXT 1 of the request must be UTF-8, got invalid",
        ),
        ("spans", {"TEXT": column("a", "b"), "TEXT_PAIR": column("a")}, "batch"),
        ("tags", {"TEXT": column("w1"), "TEXT_PAIR": column("w2")}, "token classification reads TEXT alone"),
        ("tags", {"TEXT": column("w1", b"w\xe9")}, "TEXT 2 of the request must be UTF-8, got .* at byte 1"),
        ("vectors", {"TEXT": column(*["w1"] * 65)}, "batch-size must be <= 64"),
    ],
)
def test_faults_are_one_line_and_the_next_request_is_answered(
    server: TritonServer, protocol: str, name: str, inputs: dict[str, Array], message: str
) -> None:
    output = {"spans": "answer", "tags": "entities", "vectors": "embedding"}[name]
    with pytest.raises(InferenceServerException, match=message) as raised:
        infer(server, protocol, name, inputs, output)
    assert raised.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    assert "\n" not in raised.value.message()
    good = {"TEXT": column("w1")} | ({"TEXT_PAIR": column("w2")} if name == "spans" else {})
    assert infer(server, protocol, name, good, output)[0].shape[0] == 1
    server.check()


@PROTOCOLS
def test_an_entry_of_an_earlier_version_answers(server: TritonServer, protocol: str) -> None:
    outputs = ("label", "scores", "logits", "token_count", "truncated", "rho")
    texts = {"TEXT": column("a fine film", "")}
    arrays = dict(zip(outputs, infer(server, protocol, "sample", texts, *outputs), strict=True))
    best = arrays["logits"].argmax(axis=1)
    assert arrays["label"][:, 0].tolist() == [(b"negative", b"positive")[each] for each in best]
    np.testing.assert_allclose(arrays["scores"].sum(axis=1), 1, rtol=1e-5)
    assert arrays["token_count"][1, 0] == 2
