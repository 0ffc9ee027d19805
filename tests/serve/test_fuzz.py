"""Requests that clients get wrong, and texts of all kinds: what fails is theirs, and theirs alone.

`FUZZ_REQUESTS` (300) and `FUZZ_TEXTS` (25) make it more, `FUZZ_SEED` others:

    FUZZ_REQUESTS=10000 FUZZ_TEXTS=1000 pytest tests/serve/test_fuzz.py
"""

import json
import os
import random
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import mutations
import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
import tritonclient.grpc
import tritonclient.http
from haproxy import needs_haproxy, started
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from mutations import Mutated, Target
from tiny_entry import SAMPLE, SEVERAL
from tritonclient.grpc.service_pb2 import ModelInferResponse
from tritonclient.utils import InferenceServerException

from sparse_serve.classifier import Classifier
from sparse_serve.deploy.gateway import Gateway
from sparse_serve.deploy.limits import Limits, health_request
from sparse_serve.repository.entries import read_entry
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.tasks.encoding import encode_cut, graph_inputs, load_tokenizer
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.server import ServerOptions

MakeSpec = Callable[..., EntrySpec]
Array = npt.NDArray[np.float32]

REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "300"))
TEXTS = int(os.environ.get("FUZZ_TEXTS", "25"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
BLOCK = 50
"""Requests after which good ones are asked."""
ANSWER_SECONDS, SILENCE_SECONDS = 20.0, 0.3
INFER = "/inference.GRPCInferenceService/ModelInfer"

TARGETS = {
    "sample": Target("sample", {"TEXT": ("BYTES", ["a fine film"])}, "logits"),
    "tiny": Target("tiny", {"TEXT": ("BYTES", ["w1 w2"]), "TEXT_PAIR": ("BYTES", ["w3"])}, "logits"),
    "several": Target("several", {"TEXT": ("BYTES", ["w1 w2"]), "TASK": ("BYTES", ["sts"])}, "logits"),
    "tiny_model": Target(
        "tiny_model",
        {
            "input_ids": ("INT64", [2, 5, 3]),
            "attention_mask": ("INT64", [1, 1, 1]),
            "token_type_ids": ("INT64", [0, 0, 0]),
        },
        "logits",
    ),
}
"""With the tokenizer in the graph, behind the text backend, the same of several tasks, and token ids."""

CLIENTS_MISTAKES = {
    "http": re.compile(r"[24]\d\d|100"),
    "grpc": re.compile("OK|INVALID_ARGUMENT|NOT_FOUND|UNIMPLEMENTED|RESOURCE_EXHAUSTED"),
}


NO_JSON = "failed to parse the request JSON|Unable to (parse|set)|Expected JSON|failed to get request params"


class Own(NamedTuple):
    """What a server answers that it should not, and this package cannot mend."""

    status: str
    message: str
    why: str


TRITONS_OWN = {
    "http": (
        Own(
            "500",
            NO_JSON,
            "what is no JSON is 500",
        ),
        Own("501", "Unsupported compression type|correlation ID", "what it does not support is 501"),
        Own("closed", "", "a head above 8 kB, or with control characters, has the connection closed"),
    ),
    "grpc": (Own("INTERNAL", "Unable to parse request", "gRPC's own library says so of what is no message"),),
}
"""Of Triton 24.10. The gateway turns the HTTP ones into 4xx."""


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory, make_spec: MakeSpec) -> Iterator[TritonServer]:
    """A server of its own: it might end."""
    repository = tmp_path_factory.mktemp("fuzzed")
    write_entry(repository, make_spec())
    write_entry(repository, make_spec(SEVERAL, name="several"))
    shutil.copytree(SAMPLE, repository / "sample")
    options = ServerOptions(repository, http_port=0, grpc_port=0, metrics_port=0)
    with TritonServer(options) as server:
        yield server


class Sender:
    """Sends bytes to a server, and tells how they were answered: status and message."""

    def __init__(self, http_url: str, grpc_url: str) -> None:
        host, port = http_url.split(":")
        self._address = host, int(port)
        self._infer = grpc.insecure_channel(grpc_url).unary_unary(INFER)

    def send(self, protocol: str, request: Mutated) -> tuple[str, str]:
        status, message = (self._http if protocol == "http" else self._grpc)(request)
        return status, message.decode("utf-8", "replace")

    def _http(self, request: Mutated) -> tuple[str, bytes]:
        answer = b""
        limit = ANSWER_SECONDS if request.is_whole else SILENCE_SECONDS
        with socket.create_connection(self._address, limit) as connection:
            try:
                connection.sendall(request.payload)
                while part := connection.recv(1 << 16):
                    answer += part
                    if not request.is_whole and b"\r\n\r\n" in answer:
                        break
            except TimeoutError:
                if request.is_whole:
                    return "no answer", answer
            except OSError:
                pass  # closed before all was read
        if not answer:
            return "closed" if request.is_whole else "100", b""
        head, _, body = answer.partition(b"\r\n\r\n")
        return head.split(b" ")[1].decode() if head.startswith(b"HTTP/") else "no HTTP", body

    def _grpc(self, request: Mutated) -> tuple[str, bytes]:
        try:
            return "OK", self._infer(request.payload, timeout=ANSWER_SECONDS)
        except grpc.RpcError as error:
            return error.code().name, (error.details() or "").encode()

    def good(self) -> dict[str, Array]:
        """Return the logits that each target answers to its good request over both protocols."""
        answers: dict[str, Array] = {}
        for name, target in TARGETS.items():
            body = mutations.encoded(mutations.json_request(target))
            status, found = self._http(Mutated("good", mutations.http(mutations.infer_path(target), body)))
            assert status == "200", (name, found)
            (output,) = json.loads(found)["outputs"]
            answers[f"http {name}"] = np.array(output["data"], np.float32)
            status, found = self._grpc(Mutated("good", mutations.message(target).SerializeToString()))
            assert status == "OK", (name, found)
            (raw,) = ModelInferResponse.FromString(found).raw_output_contents
            answers[f"grpc {name}"] = np.frombuffer(raw, np.float32)
        return answers


def is_expected(protocol: str, status: str, message: str, own: Mapping[str, tuple[Own, ...]]) -> bool:
    if CLIENTS_MISTAKES[protocol].fullmatch(status):
        return True
    return any(status == each.status and re.search(each.message, message) for each in own[protocol])


def faults(
    server: TritonServer, sender: Sender, own: Mapping[str, tuple[Own, ...]], is_guarded: bool
) -> list[str]:
    """Send what is wrong, good requests now and then; return what was not answered as it should be.

    Args:
        is_guarded: whether something in front of Triton refuses shapes that end it; else they are left out.
    """
    rng = random.Random(SEED)
    processes, right = server.process_ids(), sender.good()
    found = []
    for number in range(REQUESTS):
        protocol = rng.choice(["http", "grpc"])
        draw = mutations.http_request if protocol == "http" else mutations.grpc_request
        request = draw(rng, rng.choice(list(TARGETS.values())))
        if protocol == "http" and request.is_huge and not is_guarded:
            continue
        status, message = sender.send(protocol, request)
        if not is_expected(protocol, status, message, own):
            found.append(
                f"{number} {protocol} {request.kind}: {status} {message[:300]} to {request.payload[:600]!r}"
            )
        assert server.process_ids() == processes, (
            f"{number} {request.kind} ended a process: {request.payload[:2000]!r}"
        )
        if number % BLOCK == BLOCK - 1:
            for name, logits in sender.good().items():  # a request that is late may be in one batch with it
                np.testing.assert_allclose(
                    logits, right[name], rtol=0, atol=1e-5, err_msg=f"{name} after {number}"
                )
    return found


def test_wrong_requests(fuzzed: TritonServer) -> None:
    found = faults(fuzzed, Sender(fuzzed.http_url, fuzzed.grpc_url), TRITONS_OWN, is_guarded=False)
    assert not found, "\n".join(found)


@pytest.mark.slow
@needs_haproxy
def test_wrong_requests_by_way_of_the_gateway(fuzzed: TritonServer, tmp_path: Path) -> None:
    entry = read_entry(fuzzed.repository / "tiny")
    gateway = Gateway(
        models=tuple(TARGETS),
        health_request=health_request(entry),
        limits=Limits(max_requests=8, max_pending_requests=8),
        http_server=fuzzed.http_url,
        grpc_server=fuzzed.grpc_url,
    )
    with started(tmp_path, gateway) as running:
        sender = Sender(running.http, running.grpc)
        found = faults(fuzzed, sender, {"http": (), "grpc": TRITONS_OWN["grpc"]}, is_guarded=True)
        assert not found, "\n".join(found)
        for shape in mutations.HUGE_SHAPES:
            request = mutations.json_request(TARGETS["tiny_model"])
            request["inputs"][0]["shape"] = list(shape)
            whole = Mutated("huge", mutations.http("/v2/models/tiny_model/infer", mutations.encoded(request)))
            assert sender.send("http", whole)[0] == "400"
        assert fuzzed.poll() is None


@cache
def classifier() -> Classifier:
    return Classifier(SAMPLE, threads=1)


def text_graph(texts: list[bytes]) -> tuple[Array, list[int]]:
    """Return the logits of texts and where they stop being UTF-8, by the sample's graph in this process."""
    at = [broken_at(text) for text in texts]
    logits = np.full((len(texts), len(classifier().labels)), np.nan, np.float32)
    whole = [row for row, place in enumerate(at) if place < 0]
    for row, answer in zip(whole, classifier()([texts[row].decode() for row in whole]), strict=True):
        logits[row] = answer.logits
    return logits, at


def front(repository: Path, texts: list[str]) -> Array:
    """Return the logits of texts that are tokenized in this process, by the graph of token ids."""
    entry = read_entry(repository / "tiny")
    tokenizer = load_tokenizer(entry.path / "tokenizer.json")
    encoded = encode_cut(tokenizer, texts, None, entry.manifest.max_length)
    session = onnxruntime.InferenceSession(entry.graph_path / "1" / "model.onnx")
    logits: Array = session.run(["logits"], graph_inputs([each.windows[0] for each in encoded], 0))[0]
    return logits


def broken_at(text: bytes) -> int:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return error.start
    return -1


def ask(api: Any, url: str, model: str, texts: list[bytes], *outputs: str) -> list[npt.NDArray[Any]]:
    tensor = api.InferInput("TEXT", [len(texts), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text] for text in texts], object))
    wanted = [api.InferRequestedOutput(output) for output in outputs]
    with api.InferenceServerClient(url) as client:
        result = client.infer(model, [tensor], outputs=wanted)
    return [result.as_numpy(output) for output in outputs]


def ask_json(url: str, model: str, texts: list[str]) -> Array:
    host, port = url.split(":")
    tensor = {"name": "TEXT", "shape": [len(texts), 1], "datatype": "BYTES", "data": texts}
    body = mutations.encoded({"inputs": [tensor], "outputs": [{"name": "logits"}]})
    connection = HTTPConnection(host, int(port), timeout=ANSWER_SECONDS)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", body)
        answer = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    (output,) = answer["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


ALL_OF_UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
LONE_SURROGATES = st.text(st.characters(categories=["Cs"]), min_size=1, max_size=3).map(
    lambda text: text.encode("utf-8", "surrogatepass")
)
BYTES = st.one_of(
    ALL_OF_UNICODE.map(str.encode),
    st.binary(max_size=60),
    st.builds(
        lambda *parts: b"".join(parts), ALL_OF_UNICODE.map(str.encode), LONE_SURROGATES, st.binary(max_size=5)
    ),
)
MEBIBYTE = 1 << 20
LARGE = [
    b"x" * MEBIBYTE,
    b"a fine film " * (MEBIBYTE // 12),
    "\U0001f3ac".encode() * (MEBIBYTE // 4),
    b"\0" * MEBIBYTE,
    "e\u0301".encode() * (MEBIBYTE // 3),
]


@settings(
    max_examples=TEXTS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=SEED == 0,
    database=None,
)
@given(texts=st.lists(BYTES, min_size=1, max_size=16))
@example([b"", b" ", b"\0", b"a\0b", b"\xed\xa0\x80", b"a fine \xe4\xb8", "\ufeff\u202e\ufffe".encode()])
@example([b"\xff"])
def test_any_text(fuzzed: TritonServer, texts: list[bytes]) -> None:
    logits, at = text_graph(texts)
    valid = [text.decode() for text, place in zip(texts, at, strict=True) if place < 0]
    for api, url in ((tritonclient.http, fuzzed.http_url), (tritonclient.grpc, fuzzed.grpc_url)):
        found, invalid_at = ask(api, url, "sample", texts, "logits", "invalid_at")
        np.testing.assert_allclose(found, logits, rtol=0, atol=1e-5)
        assert invalid_at[:, 0].tolist() == at
        if valid:
            (answered,) = ask(api, url, "tiny", [text.encode() for text in valid], "logits")
            np.testing.assert_allclose(answered, front(fuzzed.repository, valid), rtol=0, atol=1e-5)
        if len(valid) < len(texts):
            with pytest.raises(InferenceServerException, match=r"TEXT [0-9]+ of the request must be UTF-8"):
                ask(api, url, "tiny", texts, "logits")
    if valid:
        is_valid = np.array(at) < 0
        np.testing.assert_allclose(
            ask_json(fuzzed.http_url, "sample", valid), logits[is_valid], rtol=0, atol=1e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(LARGE)))
def test_texts_of_a_mebibyte(fuzzed: TritonServer, number: int) -> None:
    text = LARGE[number]
    logits, at = text_graph([text])
    for api, url in ((tritonclient.http, fuzzed.http_url), (tritonclient.grpc, fuzzed.grpc_url)):
        found, invalid_at = ask(api, url, "sample", [text], "logits", "invalid_at")
        np.testing.assert_allclose(found, logits, rtol=0, atol=1e-5)
        assert invalid_at[:, 0].tolist() == at
        (answered,) = ask(api, url, "tiny", [text], "logits")
        np.testing.assert_allclose(answered, front(fuzzed.repository, [text.decode()]), rtol=0, atol=1e-5)
        with pytest.raises(InferenceServerException, match=r"has a text of \d+ bytes: give at most 1048576"):
            ask(api, url, "sample", [text.ljust(MEBIBYTE + 1)], "logits")
    fuzzed.check()
