"""The client: what it makes of models of each task, and where there is no server that answers."""

import json
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import grpc
import numpy as np
import pytest
from tiny_entry import SEVERAL, WORDS
from tritonclient.utils import InferenceServerException

from sparse_serve import connection
from sparse_serve.client import Client
from sparse_serve.connection import Protocol
from sparse_serve.errors import OptionError, RefusedTextError, RequestError
from sparse_serve.replies import Answer, Embedding, Entities, Prediction, reply_of
from sparse_serve.tasks import TASKS
from sparse_serve.triton.launcher import TritonServer


@pytest.fixture
def silent_url() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_server_that_never_answers_is_given_up(
    silent_url: str, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_TIMEOUT_SECONDS", 0.2)
    with (
        Client(silent_url, protocol) as asking,
        pytest.raises(RequestError, match=f"no answer from {silent_url} over {protocol}: .*timed out"),
    ):
        asking.classify("tiny", ["w1"])


@pytest.mark.parametrize(
    "url", ["", "host", "ftp://host:1", "host:", "host:65536", "host:x", "a b:1", "host:٣"]
)
def test_malformed_addresses_are_refused(url: str) -> None:
    with pytest.raises(OptionError, match="is no address of a server: give host:port"):
        Client(url)


class Unsteady(BaseHTTPRequestHandler):
    """Answers the metadata of a classifier, after other endings: a status each, or None for a hang-up."""

    endings: ClassVar[list[int | None]] = []

    def do_GET(self) -> None:
        status = self.endings.pop(0) if self.endings else 200
        if status is None:
            self.close_connection = True
            return
        outputs = ("scores", "label", "logits", "token_count", "truncated")
        described = {
            "name": "tiny",
            "inputs": [{"name": "TEXT"}],
            "outputs": [{"name": each} for each in outputs],
        }
        body = json.dumps(described if status == 200 else {"error": "not now"}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def unsteady_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Unsteady) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the client has waited between its attempts, without having waited."""
    waited: list[float] = []
    monkeypatch.setattr("sparse_serve.connection.time.sleep", waited.append)
    return waited


def test_what_may_pass_is_asked_again(
    unsteady_url: str, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Unsteady, "endings", [503, 503, 503, 503])
    with Client(unsteady_url) as asking:
        assert asking.kind("tiny") is Prediction
    assert len(pauses) == 4
    for attempt, pause in enumerate(pauses):
        assert 0.1 * 2**attempt <= pause <= 0.2 * 2**attempt


def test_lost_connections_are_made_again(
    unsteady_url: str, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """geventhttpclient makes some again itself, at once."""
    monkeypatch.setattr(Unsteady, "endings", [None] * 4)
    with Client(unsteady_url) as asking:
        assert asking.kind("tiny") is Prediction
    assert 1 <= len(pauses) <= 4


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        (503, "refused the request to 'tiny': not now"),
        (502, "failed on the request to 'tiny': not now"),
        (None, "no answer from"),
    ],
)
def test_attempts_are_bounded(
    unsteady_url: str,
    pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
    ending: int | None,
    message: str,
) -> None:
    monkeypatch.setattr(Unsteady, "endings", [ending] * 20)
    with Client(unsteady_url, retries=2) as asking, pytest.raises(RequestError, match=message):
        asking.kind("tiny")
    assert len(pauses) == 2
    monkeypatch.setattr(connection, "_RETRY_SECONDS", 0.0)
    with Client(unsteady_url) as asking, pytest.raises(RequestError, match=message):
        asking.kind("tiny")
    assert len(pauses) == 2


def test_what_does_not_pass_is_asked_once(
    unsteady_url: str, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Unsteady, "endings", [400, 500])
    with Client(unsteady_url) as asking:
        for _ in range(2):
            with pytest.raises(RequestError, match="not now"):
                asking.kind("tiny")
    assert (pauses, Unsteady.endings) == ([], [])


def test_grpc_is_asked_again_too(
    server: TritonServer, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [
        InferenceServerException(message, str(grpc.StatusCode.UNAVAILABLE))
        for message in ("queue full", "Socket closed", "This protocol is restricted, expecting header 'x'")
    ]
    with Client(server.grpc_url, "grpc") as asking:
        send = asking._connection._client.get_model_metadata

        def fail(*arguments: Any, **options: Any) -> Any:
            if failures:
                raise failures.pop(0)
            return send(*arguments, **options)

        monkeypatch.setattr(asking._connection._client, "get_model_metadata", fail)
        assert asking._describe("tiny") is None  # kept back, as it is with the third
        assert len(pauses) == 2


@pytest.mark.parametrize(
    ("status", "message", "told", "attempts"),
    [
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", r"timed out after 600 s; is `sparse-serve serve`", 1),
        ("DEADLINE_EXCEEDED", "no answer within 30 s", r"failed on the request to 'tiny': no answer wi", 1),
        ("CANCELLED", "Received RST_STREAM", r"refused the request to 'tiny': Received RST_STREAM", 5),
        ("INTERNAL", "fault", r"failed on the request to 'tiny': fault", 1),
    ],
)
def test_what_a_gateway_says_is_told(
    pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
    status: str,
    message: str,
    told: str,
    attempts: int,
) -> None:
    asked = []

    def fail(*_: Any, **__: Any) -> Any:
        asked.append(message)
        raise InferenceServerException(message, str(grpc.StatusCode[status]))

    with Client("127.0.0.1:1", "grpc") as asking:
        monkeypatch.setattr(asking._connection._client, "get_model_metadata", fail)
        with pytest.raises(RequestError, match=told):
            asking.kind("tiny")
    assert (len(asked), len(pauses)) == (attempts, attempts - 1)


@pytest.mark.parametrize(
    ("url", "protocol", "options", "message"),
    [
        (
            "grpcs://a:1",
            "http",
            {},
            "'grpcs://a:1' is no address for http: give http://host:port, or https://",
        ),
        ("https://a:1", "grpc", {}, "'https://a:1' is no address for grpc: give grpc://host:port, or grpcs:"),
        (
            "ftp://a:1",
            "http",
            {},
            "is no address of a server: give host:port, such as 127.0.0.1:8000, with h",
        ),
        ("https://a", "http", {}, "'https://a' is no address of a server"),
        (
            "a:1",
            "http",
            {"ca_certificates": Path(__file__)},
            "certificates are for TLS, and 'a:1' is without",
        ),
        (
            "https://a:1",
            "http",
            {"ca_certificates": Path(__file__)},
            r"test_client\.py has no certificates of",
        ),
        (
            "grpcs://a:1",
            "grpc",
            {"ca_certificates": Path("nowhere")},
            "nowhere has no certificates .* No such",
        ),
        (
            "a:1",
            "http",
            {"headers": {"a b": "c"}},
            "'a b: c' is no header: give NAME: VALUE in printable ASCII",
        ),
        ("a:1", "grpc", {"headers": {"a": "b\nc"}}, "'a: b c' is no header"),
    ],
)
def test_addresses_and_what_goes_with_them(
    url: str, protocol: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        Client(url, protocol, **options)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_headers_go_with_every_request(
    server: TritonServer, monkeypatch: pytest.MonkeyPatch, protocol: Any
) -> None:
    url = f"{protocol}://{server.http_url if protocol == 'http' else server.grpc_url}"
    with Client(url, protocol, headers={"Authorization": "Bearer x"}) as asking:
        sent = []
        for method in ("get_model_metadata", "get_model_config", "infer"):
            send = getattr(asking._connection._client, method)

            def noted(*arguments: Any, send: Any = send, **options: Any) -> Any:
                sent.append(dict(options["headers"]))
                return send(*arguments, **options)

            monkeypatch.setattr(asking._connection._client, method, noted)
        asking.classify("tiny", ["w1 w2"])
    assert len(sent) > 1
    assert all(each == {"authorization": "Bearer x"} for each in sent)


def test_fewer_than_no_retries_are_refused() -> None:
    with pytest.raises(OptionError, match="retries is -1: give 0 or more"):
        Client("127.0.0.1:1", retries=-1)


class Answered:
    """What a classifier answers to so many texts."""

    def __init__(self, rows: int) -> None:
        self.columns = {
            "label": np.full((rows, 1), b"a", np.object_),
            **{name: np.zeros((rows, 2), np.float32) for name in ("scores", "logits")},
            **{name: np.ones((rows, 1), np.int32) for name in ("token_count", "truncated")},
        }

    def as_numpy(self, output: str) -> Any:
        return self.columns[output]


class Narrow:
    """In the place of Triton's client: a classifier that refuses more than so many bytes at once.

    `message` and `status` are what it says then; `sizes` are those of all requests.
    """

    def __init__(self, most: int, message: str, status: str) -> None:
        self.most, self.message, self.status = most, message, status
        self.sizes: list[int] = []

    def get_model_metadata(self, _name: str, **_options: object) -> dict[str, Any]:
        return {"inputs": [{"name": "TEXT"}], "outputs": [{"name": name} for name in Answered(1).columns]}

    def get_model_config(self, _name: str, **_options: object) -> dict[str, Any]:
        return {"max_batch_size": 64}

    def infer(self, _name: str, inputs: Any, **_options: object) -> Answered:
        (texts,) = inputs
        size = len(texts._get_binary_data())
        self.sizes.append(size)
        if size > self.most:
            raise InferenceServerException(self.message, self.status)
        return Answered(texts.shape()[0])

    def close(self) -> None:
        pass


REQUEST_BYTES = 4 << 20
OF_A_BACKEND = ("the texts of the request have 9 bytes: give at most 8 at once", "400")
OF_A_GATEWAY = ("a request of more than 4 MiB", "413")


def narrow(client: Client, monkeypatch: pytest.MonkeyPatch, most: int, message: str, status: str) -> Narrow:
    server = Narrow(most, message, status)
    monkeypatch.setattr(client._connection, "_client", server)
    return server


def test_long_texts_are_sent_in_requests_of_what_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their bytes: each of these characters has two."""
    with Client("127.0.0.1:1") as client:
        server = narrow(client, monkeypatch, REQUEST_BYTES, *OF_A_GATEWAY)
        assert len(client.classify("tiny", ["é" * (50 << 10)] * 64)) == 64
    assert len(server.sizes) == 2
    assert max(server.sizes) < REQUEST_BYTES


@pytest.mark.parametrize(
    ("message", "status"),
    [OF_A_BACKEND, OF_A_GATEWAY, ("a request of more than 1 KiB", str(grpc.StatusCode.RESOURCE_EXHAUSTED))],
)
def test_of_what_is_too_large_less_is_sent(
    monkeypatch: pytest.MonkeyPatch, message: str, status: str
) -> None:
    """A server's limit is its operator's to set; a client finds it out once."""
    with Client("127.0.0.1:1") as client:
        server = narrow(client, monkeypatch, 1000, message, status)
        assert len(client.classify("tiny", ["w" * 100] * 64)) == 64
        refused = [size for size in server.sizes if size > 1000]
        assert len(refused) == 3
        assert len(client.classify("tiny", [""] * 64)) == 64
        with pytest.raises(RefusedTextError, match=f"{message}; it is text 3, 'www") as raised:
            client.classify("tiny", ["w", "w", "w" * 1001, "w"])
    assert raised.value.row == 2


def test_the_text_that_is_named_is_the_first_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text by text, one may be refused as the server says, or as its answer says: for its length."""
    asked: list[int] = []

    def refuse(name: str, kind: object, batch: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        asked.append(len(batch["TEXT"]))
        if len(batch["TEXT"]) > 1:
            raise RequestError("no") from InferenceServerException("no", "400")
        if batch["TEXT"] == ["long"]:
            raise RefusedTextError("too long", 0, "long")
        return {}

    with Client("127.0.0.1:1") as client:
        narrow(client, monkeypatch, REQUEST_BYTES, *OF_A_GATEWAY)  # of which but the metadata are asked for
        monkeypatch.setattr(client, "_infer", refuse)
        with pytest.raises(RefusedTextError, match="too long; it is text 3, 'long'") as raised:
            client.classify("tiny", ["good", "good", "long", "bad"])
    assert (raised.value.row, asked) == (2, [4, 1, 1, 1])


@pytest.mark.parametrize(
    "given", [{"texts": ["a", "\ud800"]}, {"texts": ["a", "b"], "text_pairs": ["", "\udfff"]}]
)
def test_half_a_surrogate_pair_is_refused(given: dict[str, Any]) -> None:
    with (
        Client("127.0.0.1:1") as client,
        pytest.raises(RequestError, match="text 2 has half a character at 0"),
    ):
        client.classify("tiny", **given)


def test_a_model_called_restricted_is_not_kept_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name in what a server says of it."""

    def refuse(*_: object, **__: object) -> None:
        raise InferenceServerException("Request for unknown model: 'restricted-area' is not found", "400")

    with Client("127.0.0.1:1", "http") as client:
        monkeypatch.setattr(client._connection._client, "get_model_metadata", refuse)
        with pytest.raises(RequestError, match="'restricted-area' is not found"):
            client.kind("restricted-area")


@pytest.mark.parametrize("one", ["a fine film", b"a fine film"])
def test_one_text_is_not_taken_for_its_characters(one: Any) -> None:
    asked: list[Callable[[Client], object]] = [
        lambda client: client.classify("tiny", one),
        lambda client: client.classify("tiny", ["w1"], one),
        lambda client: client.answer("tiny", ["w1"], one),
        lambda client: client.entities("tiny", one),
        lambda client: client.embed("tiny", one),
    ]
    with Client("127.0.0.1:1") as client:
        for ask in asked:
            with pytest.raises(TypeError, match=r"one text is given, b?'a fine film', .*: give a list"):
                ask(client)


@pytest.fixture(params=["http", "grpc"])
def asking(request: pytest.FixtureRequest, server: TritonServer) -> Iterator[Client]:
    url = server.http_url if request.param == "http" else server.grpc_url
    with Client(url, request.param) as client_of_server:
        yield client_of_server


def test_a_model_tells_what_it_answers(asking: Client) -> None:
    kinds = {name: asking.kind(name) for name in ("tiny", "topics", "value", "spans", "tags", "vectors")}
    assert kinds == {
        "tiny": Prediction,
        "topics": Prediction,
        "value": Prediction,
        "spans": Answer,
        "tags": Entities,
        "vectors": Embedding,
    }


def test_any_model_is_asked_alike(asking: Client) -> None:
    assert asking.ask("tiny", ["w1"]) == asking.classify("tiny", ["w1"])
    assert asking.ask("tags", ["w1 w2"]) == asking.entities("tags", ["w1 w2"])
    assert asking.ask("spans", ["w1"], ["w2 w3"]) == asking.answer("spans", ["w1"], ["w2 w3"])
    (ours,), (theirs,) = asking.ask("vectors", ["w1"]), asking.embed("vectors", ["w1"])
    assert isinstance(ours, Embedding)
    np.testing.assert_array_equal(ours.vector, theirs.vector)


def test_a_text_that_is_refused_is_named(asking: Client) -> None:
    """Its request is refused as a whole."""
    texts = [f"w{number} {'w1 ' * 20}" for number in range(20)]
    tasks = ["sts"] * 17 + ["absent"] + ["sts"] * 2
    with pytest.raises(
        RefusedTextError, match=r"no task 'absent'; .*; it is text 18, 'w17( w1){12} …'"
    ) as raised:
        asking.classify("several", texts, task=tasks)
    assert (raised.value.row, raised.value.text) == (17, texts[17])
    with pytest.raises(RefusedTextError, match=r"no task 'absent'; .*; it is text 1, 'w17"):
        asking.classify("several", texts[17:18], task="absent")


def test_more_questions_than_a_batch_are_answered_in_order(asking: Client) -> None:
    """The model takes 8 at a time, and some contexts are of many windows."""
    questions = [f"w{number}" for number in range(20)]
    contexts = [
        " ".join(f"w{(number * word) % 30}" for word in range(1 + 5 * number)) for number in range(20)
    ]
    together = asking.answer("spans", questions, contexts)
    alone = [
        asking.answer("spans", [question], [context])[0]
        for question, context in zip(questions, contexts, strict=True)
    ]
    assert together == alone
    assert [reply.answer for reply in together] == [
        context[reply.start : reply.end] for reply, context in zip(together, contexts, strict=True)
    ]
    assert together[-1].token_count > 96


def test_offsets_are_of_the_text_as_sent(asking: Client) -> None:
    text = "\u200bW3  e\u0301 \r\n👩‍👩‍👧 w4w5, w6 " * 2
    for reply in asking.entities("tags", [text, text[1:]]):
        for entity in reply.entities:
            assert entity.text != ""
    (reply,) = asking.entities("tags", [text])
    assert all(entity.text == text[entity.start : entity.end] for entity in reply.entities)
    (answer,) = asking.answer("spans", ["w1"], [text])
    assert answer.answer == text[answer.start : answer.end]


def test_what_a_model_does_not_do_is_said(asking: Client) -> None:
    with pytest.raises(RequestError, match="'spans' answers questions about a context: it is no model"):
        asking.classify("spans", ["w1"])
    with pytest.raises(RequestError, match="'tiny' classifies texts: it is no model that finds entities"):
        asking.entities("tiny", ["w1"])
    with pytest.raises(RequestError, match="'tags' finds entities: it is no model that embeds texts"):
        asking.embed("tags", ["w1"])
    with pytest.raises(RequestError, match="'vectors' embeds texts: it is no model that answers questions"):
        asking.answer("vectors", ["w1"], ["w2"])
    with pytest.raises(RequestError, match=r"'spans' answers questions .*: give each question its context"):
        asking.ask("spans", ["w1"])
    with pytest.raises(RequestError, match="'tags' finds entities and takes no second text: leave out"):
        asking.ask("tags", ["w1"], ["w2"])
    with pytest.raises(
        RequestError, match=r"'tiny_model' answers with .*logits.*: give the name of an entry"
    ):
        asking.ask("tiny_model", ["w1"])
    with pytest.raises(RequestError, match="unknown model"):
        asking.ask("absent", ["w1"])
    with pytest.raises(ValueError, match="1 texts but 2 text pairs"):
        asking.answer("spans", ["w1"], ["w2", "w3"])


def test_each_text_is_answered_by_its_task(asking: Client) -> None:
    texts, tasks = ["w1 w2", "w3", "w4", "w5 w6"], ["sts", "sentiment", "topics", "paraphrase"]
    replies = asking.classify("several", texts, ["w7"] * 4, task=tasks, top_k=9)
    assert [(reply.task, len(reply.logits)) for reply in replies] == [
        (name, SEVERAL.tasks[name].width) for name in tasks
    ]
    for reply in replies:
        labels = SEVERAL.tasks[reply.task or ""].labels
        assert [best.label for best in reply.top] == sorted(
            labels, key=lambda label: -reply.scores[labels.index(label)]
        )
        assert np.isfinite(reply.logits).all()
    value = replies[0]
    assert (value.score,) == value.scores == value.logits
    assert value.score == pytest.approx(float(value.label))
    values = asking.classify("several", [f"{word} " * 14 for word in WORDS], task="sts")
    # Below 0, too, which the places that are not its own hold.
    assert min(each.score for each in values) < 0
    assert [(each.score,) for each in values] == [each.logits for each in values]
    plain = asking.ask("several", texts, ["w7"] * 4, tasks)
    assert plain == [replace(reply, top=()) for reply in replies]
    for row, reply in enumerate(plain):
        (alone,) = asking.classify("several", [texts[row]], ["w7"], task=tasks[row])
        assert alone.logits == pytest.approx(reply.logits, abs=1e-5)
    many = asking.classify("several", ["w1"] * 100, task="sts")
    assert {reply.task for reply in many} == {"sts"}


def test_tasks_are_named_where_there_are_several(asking: Client) -> None:
    assert list(asking.tasks("several")) == list(SEVERAL.tasks)
    assert asking.tasks("several")["topics"] == ("art", "law", "war")
    known = "sentiment, paraphrase, sts, topics"
    with pytest.raises(RequestError, match=rf"more than one task: say with --task which .* \({known}\)"):
        asking.classify("several", ["w1"])
    with pytest.raises(RequestError, match="model 'tiny' has one task: leave out --task"):
        asking.ask("tiny", ["w1"], task="sts")
    with pytest.raises(RequestError, match=f"there is no task 'absent'; this model's are {known}"):
        asking.classify("several", ["w1"], task="absent")
    with pytest.raises(ValueError, match="1 texts but 2 tasks"):
        asking.classify("several", ["w1"], task=["sts", "sts"])


def test_tasks_of_a_server_that_keeps_its_configurations_to_itself(
    server: TritonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise InferenceServerException("This protocol is restricted, expecting header 'x'")

    with Client(server.http_url) as client_of_server:
        monkeypatch.setattr(client_of_server._connection._client, "get_model_config", refuse)
        (reply,) = client_of_server.classify("several", ["w1"], task="topics", top_k=3)
        assert [best.label for best in reply.top] == [None] * 3
        with pytest.raises(RequestError, match="several, which its server keeps to itself"):
            client_of_server.classify("several", ["w1"])


def test_a_server_may_keep_metadata_to_itself(server: TritonServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise InferenceServerException("This protocol is restricted, expecting header 'x'")

    with Client(server.http_url) as client_of_server:
        monkeypatch.setattr(client_of_server._connection._client, "get_model_metadata", refuse)
        assert client_of_server.kind("tags") is Prediction
        assert len(client_of_server.entities("tags", ["w1 w2"])) == 1
        assert len(client_of_server.classify("tiny", ["w1 w2"])) == 1


def test_every_task_has_its_reply() -> None:
    made = {
        "single_label_classification": Prediction,
        "multi_label_classification": Prediction,
        "regression": Prediction,
        "question_answering": Answer,
        "token_classification": Entities,
        "embedding": Embedding,
    }
    assert made.keys() == TASKS.keys()
    for name, task in TASKS.items():
        settings: dict[str, Any] = {"size": 3} if name == "embedding" else {}
        labels = ("a", "b") if task.fewest_labels else ()
        outputs = [tensor.name for tensor in task(labels=labels, **settings).outputs]
        assert reply_of(["token_count", "truncated", "rho", *outputs]) is made[name]
    assert reply_of(["logits", "rho"]) is None
    assert reply_of(["answer", "start", "end", "score"]) is None
