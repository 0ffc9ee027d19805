"""The gateway: HAProxy before a real Triton, and before servers that are slow, hung or gone."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import ExitStack, suppress
from dataclasses import replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.request import urlopen

import grpc
import numpy as np
import psutil
import pytest
import tritonclient.grpc
import tritonclient.http
from haproxy import ask, check_config, is_ready, needs_haproxy, started, write_gateway
from serving import wait_for
from tiny_entry import PAIRS, SEVERAL, SPANS
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from command_line import outcome
from sparse_serve.cli import app
from sparse_serve.client import Client
from sparse_serve.connection import Protocol
from sparse_serve.deploy.alerts import alerts
from sparse_serve.deploy.deployment import Deployment
from sparse_serve.deploy.gateway import CONFIG, Gateway
from sparse_serve.deploy.limits import Limits, health_request
from sparse_serve.deploy.resources import Resources
from sparse_serve.errors import RequestError
from sparse_serve.replies import Prediction
from sparse_serve.report.document import read_report
from sparse_serve.repository.entries import read_entry
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.triton.launcher import TritonServer

MakeSpec = Callable[..., EntrySpec]

SERVICE = "/inference.GRPCInferenceService"

QUICKLY = ("--lengths=8", "--rounds=1", "--measurement-interval=20")

LIMITS = Limits(
    max_body=100_000, max_requests=1, max_pending_requests=0, request_timeout=2, queue_timeout=0.2
)


@needs_haproxy
@pytest.mark.parametrize("with_tls", [False, True])
def test_haproxy_takes_the_configuration(tmp_path: Path, certificate: Path, with_tls: bool) -> None:
    asked = {"TEXT": "it's"}
    gateway = Gateway(
        models=("a.b", "a.b_model"),
        health_request=asked,
        limits=LIMITS,
        http_server="127.0.0.1:8000",
        grpc_server="127.0.0.1:8001",
    )
    write_gateway(tmp_path, replace(gateway, certificate=str(certificate)) if with_tls else gateway)
    assert "[WARNING]" not in check_config(tmp_path / CONFIG)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, ["TEXT"]),
        ({"task": SPANS}, ["TEXT", "TEXT_PAIR"]),
        ({"task": SEVERAL}, ["TEXT", "TASK"]),
        ({"task": PAIRS, "takes_text": True}, ["TEXT", "TEXT_PAIR"]),
    ],
)
def test_health_asks_for_what_the_entry_needs(
    image: Path, tmp_path: Path, make_spec: MakeSpec, changes: dict[str, Any], names: list[str]
) -> None:
    """And the gateway asks, word for word, what the image's own check does."""
    entry = write_entry(tmp_path, make_spec(**changes))
    asked = health_request(read_entry(entry))
    assert [tensor["name"] for tensor in asked["inputs"]] == names
    program = "import json, pathlib, sys, healthcheck\n"
    program += "print(json.dumps(healthcheck.question(pathlib.Path(sys.argv[1]))))"
    line = [sys.executable, "-S", "-c", program, str(entry)]
    done = subprocess.run(line, cwd=image, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == asked


def metrics(gateway: Gateway) -> str:
    with urlopen(f"http://{gateway.metrics}/metrics", timeout=10) as response:
        text: str = response.read().decode()
    return text


def texts(api: Any, text: bytes) -> list[Any]:
    tensor = api.InferInput("TEXT", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text]], object))
    return [tensor]


@needs_haproxy
def test_before_a_real_triton(
    server: TritonServer, tmp_path: Path, certificate: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = read_entry(server.repository / "tiny")
    limits = replace(LIMITS, max_requests=8, max_pending_requests=8, request_timeout=10)
    gateway = Gateway(
        models=tuple(entry.models),
        health_request=health_request(entry),
        limits=limits,
        http_server=server.http_url,
        grpc_server=server.grpc_url,
    )

    def answers(api: Any, url: str, text: bytes = b"w1 w2", **options: Any) -> list[Any]:
        with api.InferenceServerClient(url, **options) as client:
            result = client.infer("tiny", texts(api, text))
        return [result.as_numpy(name).tolist() for name in ("label", "scores", "token_count")]

    direct = answers(tritonclient.grpc, server.grpc_url)
    with started(tmp_path / "plain", gateway) as plain:
        both = ((tritonclient.http, plain.http), (tritonclient.grpc, plain.grpc))
        for api, url in both:
            assert answers(api, url) == direct
            assert answers(api, url, b"w1 " * 30_000)[2] == [[16]]
            with api.InferenceServerClient(url) as client:
                assert client.is_server_live()
                assert client.is_server_ready()
                assert client.is_model_ready("tiny")
                assert "tiny" in str(client.get_model_metadata("tiny"))
            with futures.ThreadPoolExecutor(4) as pool:
                large = pool.submit(answers, api, url, b"w" * 20_000_000)
                others = [pool.submit(answers, *each) for each in both for _ in range(4)]
                assert all(other.result() == direct for other in others)
                assert large.exception() is not None
        with tritonclient.grpc.InferenceServerClient(plain.grpc) as client:
            # Of a client that is still sending, gRPC says so only by CANCELLED.
            with pytest.raises(InferenceServerException, match=r"more than 100000 bytes|CANCELLED"):
                client.infer("tiny", texts(tritonclient.grpc, b"w" * 100_001))
            with pytest.raises(InferenceServerException, match="without compression"):
                # Short ones are sent as they are.
                client.infer("tiny", texts(tritonclient.grpc, b"w1 " * 1000), compression_algorithm="gzip")
            with pytest.raises(InferenceServerException, match="UNIMPLEMENTED"):
                client.get_model_repository_index()
        infer = "/v2/models/tiny/infer"
        assert ask(plain, "POST", infer, b"{}", {"content-encoding": "gzip"})[0] == 415
        assert ask(plain, "POST", infer, None, {"transfer-encoding": "chunked"})[0] == 411
        status, answer, _ = ask(plain, "POST", infer, None, {"content-length": "100001"})
        assert (status, answer) == (413, '{"error": "a request of more than 100000 bytes"}')
        assert ask(plain, "POST", infer, None, {"content-length": str(2**64)})[0] == 413
        mistakes: list[dict[str, Any]] = [
            {"outputs": [{"name": "logits", "parameters": {"classification": [0]}}]},
            {"parameters": {"sequence_id": "x" * 129}},
        ]
        for mistake in mistakes:
            assert ask(plain, "POST", infer, json.dumps({**gateway.health_request, **mistake}))[0] == 400
        for closed in ("/v2/repository/index", "/v2/models/spans/infer"):
            assert ask(plain, "POST", closed, b"{}")[0] == 404
        refused = 'haproxy_frontend_http_responses_total{proxy="http",code="4xx"}'
        (count,) = re.findall(rf"^{re.escape(refused)} (\d+)$", metrics(plain), re.MULTILINE)
        assert int(count) >= 5
    with started(tmp_path / "tls", replace(gateway, certificate=str(certificate))) as secure:
        status, answer, _ = ask(secure, "POST", infer, json.dumps(gateway.health_request))
        assert (status, json.loads(answer)["outputs"][0]["name"]) == (200, "token_count")
        trusted: dict[str, Any] = {"ssl": True, "root_certificates": str(certificate)}
        assert answers(tritonclient.grpc, secure.grpc, **trusted) == direct
        assert_own_client_speaks_tls(secure, certificate)
        given = ["-u", f"grpcs://{secure.grpc}", "--ca-certificates", certificate]
        folders = ["--model-repository", server.repository, "--output-dir", tmp_path / "report"]
        assert outcome(capsys, app, "profile", "tiny", *given, *folders, *QUICKLY)[0] == 0
        assert len(read_report(tmp_path / "report" / "report.json").measurements) == 1


def assert_own_client_speaks_tls(secure: Any, certificate: Path) -> None:
    protocols: dict[Protocol, str] = {"http": f"https://{secure.http}", "grpc": f"grpcs://{secure.grpc}"}
    for protocol, address in protocols.items():
        with Client(address, protocol, 0, ca_certificates=certificate) as client:
            assert client.kind("tiny") is Prediction
        with Client(address, protocol, 0) as client:
            with pytest.raises(RequestError, match=r"(?i)certificate.verify.failed") as error:
                client.kind("tiny")
            assert "\n" not in str(error.value)


class Stub(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # generated
    """A server of both protocols that answers health checks, or nothing, and inferences when it may."""

    def __init__(self) -> None:
        self.may_answer, self.is_hung = threading.Event(), threading.Event()
        self.in_flight = self.most_in_flight = 0
        self._lock = threading.Lock()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                is_check = b"health check" in self.rfile.read(int(self.headers["content-length"]))
                if is_check:
                    while stub.is_hung.is_set():
                        time.sleep(0.05)
                else:
                    stub.infer()
                self.do_GET()

            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()

            do_HEAD = do_GET  # noqa: N815  the base class's own name

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        self._grpc = grpc.server(futures.ThreadPoolExecutor(8))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._grpc)
        grpc_port = self._grpc.add_insecure_port("127.0.0.1:0")
        self._grpc.start()
        self.http_url, self.grpc_url = (
            f"127.0.0.1:{port}" for port in (self._http.server_address[1], grpc_port)
        )

    def infer(self) -> None:
        with self._lock:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.may_answer.wait(30)
        with self._lock:
            self.in_flight -= 1

    def ModelInfer(self, _request: object, _context: object) -> object:  # noqa: N802  gRPC's own name
        self.infer()
        return service_pb2.ModelInferResponse(model_name="m")

    def ModelStreamInfer(  # noqa: N802  gRPC's own name
        self, requests: Iterator[object], _context: object
    ) -> Iterator[object]:
        for _ in requests:
            self.infer()
            yield service_pb2.ModelStreamInferResponse()

    def stop(self) -> None:
        self.is_hung.clear()
        self.may_answer.set()
        self._http.shutdown()
        self._http.server_close()
        self._grpc.stop(0)


@pytest.fixture
def stub() -> Iterator[Stub]:
    made = Stub()
    yield made
    made.stop()


def infer_both(gateway: Gateway) -> dict[str, Callable[[], tuple[object, str]]]:
    """Return inferences by protocol, each of which returns its status and what was said."""

    def over_http() -> tuple[object, str]:
        status, answer, headers = ask(gateway, "POST", "/v2/models/m/infer", b"{}")
        if status == 503:
            assert headers["retry-after"] == "1"
        return status, answer

    def over_grpc() -> tuple[object, str]:
        with grpc.insecure_channel(gateway.grpc) as channel:
            call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
            try:
                call(service_pb2.ModelInferRequest(model_name="m"), timeout=30)
            except grpc.RpcError as error:
                return error.code(), error.details()
        return grpc.StatusCode.OK, ""

    return {"http": over_http, "grpc": over_grpc}


def code_of_open_call(url: str, method: str, *messages: bytes) -> grpc.StatusCode:
    """Return what a call sees that sends messages, waits for an answer to each, and only then ends."""
    sending: SimpleQueue[bytes | None] = SimpleQueue()
    for message in messages:
        sending.put(message)
    with grpc.insecure_channel(url) as channel:
        call = channel.stream_stream(f"{SERVICE}/{method}")(iter(sending.get, None), timeout=30)
        with suppress(grpc.RpcError):
            for _ in messages or (None,):
                next(call)
        sending.put(None)
        code: grpc.StatusCode = call.code()
    return code


def received(address: str, sent: bytes, last: bytes | None = None) -> bytes:
    """Return what comes until the connection ends, or what is `last` has come."""
    host, port = address.split(":")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(sent)
        while (last is None or last not in answer) and (part := client.recv(1 << 16)):
            answer += part
    return answer


def refusal_of_open_call(gateway: Gateway, method: str, message: bytes = b"") -> bytes:
    """Return what is sent to a gRPC call that does not end, until its stream is reset.

    HAProxy writes headers as they are. gRPC's own client loses those that a reset comes behind.
    """

    def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
        return len(content).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + content

    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"{SERVICE}/{method}",
        ":authority": "m",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    literals = b"".join(
        b"\0" + b"".join(bytes((len(each),)) + each.encode() for each in header) for header in headers.items()
    )
    frames = [frame(4, 0, 0, b""), frame(1, 4, 1, literals)] + [frame(0, 0, 1, message)] * bool(message)
    reset = frame(3, 0, 1, bytes(4))[:-4]
    return received(gateway.grpc, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"".join(frames), reset)


STATUS: dict[str, dict[str, object]] = {
    "http": {"ok": 200, "overloaded": 503, "late": 504},
    "grpc": {
        "ok": grpc.StatusCode.OK,
        "overloaded": grpc.StatusCode.UNAVAILABLE,
        "late": grpc.StatusCode.DEADLINE_EXCEEDED,
    },
}


def of_stub(stub: Stub, limits: Limits) -> Gateway:
    return Gateway(
        models=("m",),
        health_request={"TEXT": "health check"},
        limits=limits,
        http_server=stub.http_url,
        grpc_server=stub.grpc_url,
    )


@needs_haproxy
def test_no_method_carries_a_body_past_the_limit(stub: Stub, tmp_path: Path) -> None:
    of_unknown_length, too_large = {"transfer-encoding": "chunked"}, {"content-length": "100001"}
    infer, about = "/v2/models/m/infer", "/v2/models/m"
    with started(tmp_path, of_stub(stub, LIMITS)) as gateway:
        for path, methods in ((infer, ("PUT", "GET", "DELETE")), (about, ("PUT", "POST", "DELETE"))):
            for method in methods:
                for headers in ({}, of_unknown_length, too_large):
                    assert ask(gateway, method, path, None, headers)[0] == 405, (method, path, headers)
        for path in (about, "/v2"):
            assert ask(gateway, "GET", path, None, of_unknown_length)[0] == 411
            assert ask(gateway, "GET", path, None, too_large)[0] == 413
            assert ask(gateway, "GET", path)[0] == ask(gateway, "HEAD", path)[0] == 200


@needs_haproxy
def test_a_message_that_is_sent_whole_is_told_the_limit(stub: Stub, tmp_path: Path) -> None:
    too_large = r"RESOURCE_EXHAUSTED.* a request of more than 1000 bytes"
    with (
        started(tmp_path, of_stub(stub, replace(LIMITS, max_body=1000))) as gateway,
        tritonclient.grpc.InferenceServerClient(gateway.grpc) as client,
        pytest.raises(InferenceServerException, match=too_large),
    ):
        client.infer("m", texts(tritonclient.grpc, b"w" * 3000))
    assert stub.most_in_flight == 0


@needs_haproxy
def test_a_stream_reaches_no_server(stub: Stub, tmp_path: Path) -> None:
    message = service_pb2.ModelInferRequest(model_name="m").SerializeToString()
    stub.may_answer.set()
    with started(tmp_path, of_stub(stub, LIMITS)) as gateway:
        framed = b"\0" + len(message).to_bytes(4, "big") + message
        assert b"grpc-status\x0212" in refusal_of_open_call(gateway, "ModelStreamInfer", framed)
        seen = code_of_open_call(gateway.grpc, "ModelStreamInfer", message)
        assert seen in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.CANCELLED)
    assert stub.most_in_flight == 0
    assert code_of_open_call(stub.grpc_url, "ModelStreamInfer", message) == grpc.StatusCode.OK
    assert stub.most_in_flight == 1


@pytest.mark.slow
@needs_haproxy
def test_who_sends_too_slowly_is_told(stub: Stub, tmp_path: Path) -> None:
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nhost: m\r\n"
    slow = "the request did not come within 10 s"
    with started(tmp_path, of_stub(stub, LIMITS)) as gateway, futures.ThreadPoolExecutor(4) as pool:
        headers = pool.submit(received, gateway.http, head)
        body = pool.submit(received, gateway.http, head + b"content-length: 9\r\n\r\n{")
        call = pool.submit(refusal_of_open_call, gateway, "ModelInfer")
        code = pool.submit(code_of_open_call, gateway.grpc, "ModelInfer")
        # Of headers, HAProxy says so with a page of its own.
        assert headers.result().startswith(b"HTTP/1.1 408 ")
        start, _, answer = body.result().partition(b"\r\n\r\n")
        assert start.startswith(b"HTTP/1.1 408 ")
        assert b"content-type: application/json" in start
        assert json.loads(answer) == {"error": slow}
        assert b"grpc-status\x014" in call.result()
        assert slow.encode() in call.result()
        assert code.result() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
    assert stub.most_in_flight == 0


@needs_haproxy
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_overload_is_refused_and_is_not_death(stub: Stub, tmp_path: Path, protocol: str) -> None:
    status = STATUS[protocol]
    limits = replace(LIMITS, max_requests=2, max_pending_requests=1, request_timeout=20, queue_timeout=3)
    with started(tmp_path, of_stub(stub, limits)) as gateway, futures.ThreadPoolExecutor(8) as pool:
        infer = infer_both(gateway)[protocol]
        running = [pool.submit(infer) for _ in range(2)]
        wait_for(lambda: stub.in_flight == 2)
        # One waits, and is told after a while that it was in vain; another one is told at once.
        waiting = pool.submit(infer)
        queued = f'haproxy_backend_current_queue{{proxy="{protocol}_inference"}} 1'
        wait_for(lambda: queued in metrics(gateway))
        found, message = infer()
        assert found == status["overloaded"]
        assert "too many requests" in message
        assert not waiting.done()
        assert waiting.result()[0] == status["overloaded"]
        assert is_ready(gateway)
        assert not any(each.done() for each in running)
        stub.may_answer.set()
        assert [each.result()[0] for each in running] == [status["ok"]] * 2
        assert infer()[0] == status["ok"]
        assert stub.most_in_flight == 2


@pytest.mark.slow
@needs_haproxy
def test_late_hung_and_stopped(stub: Stub, tmp_path: Path) -> None:
    with started(tmp_path, of_stub(stub, LIMITS)) as gateway, futures.ThreadPoolExecutor(8) as pool:
        both = infer_both(gateway)
        late = {protocol: pool.submit(infer) for protocol, infer in both.items()}
        for protocol, each in late.items():
            found, message = each.result()
            assert found == STATUS[protocol]["late"]
            assert "no answer within 2 s" in message
        assert is_ready(gateway)
        stub.may_answer.set()
        stub.is_hung.set()
        wait_for(lambda: not is_ready(gateway))
        assert ask(gateway, "GET", "/v2/health/live")[0] == 200
        for protocol, infer in both.items():
            assert infer()[0] == STATUS[protocol]["overloaded"]
        stub.is_hung.clear()
        wait_for(lambda: is_ready(gateway))
        assert all(infer()[0] == STATUS[protocol]["ok"] for protocol, infer in both.items())
        stub.stop()
        wait_for(lambda: not is_ready(gateway))
        assert all(infer()[0] == STATUS[protocol]["overloaded"] for protocol, infer in both.items())


@needs_haproxy
def test_probes_are_no_requests(stub: Stub, tmp_path: Path, make_spec: MakeSpec) -> None:
    """The alert of what is refused has a quiet service's requests alone, on both sides of its fraction."""
    deployment = Deployment(
        entry=read_entry(write_entry(tmp_path / "models", make_spec())),
        limits=LIMITS,
        image="a:1",
        resources=Resources(memory=1, memory_limit=1, cpu=None, gpus=0, basis=""),
    )
    (refuses,) = (each.expression for each in alerts(deployment) if each.name == "SparseServeRefuses")
    counters = [
        rf'^{name}{{proxy="(?:{proxies})"[^}}]*}} (\S+)'
        for name, proxies in re.findall(r'(haproxy_\w+){job="tiny", proxy=~"([^"]+)"', refuses)
    ]
    assert len(counters) == 4

    def counted() -> list[float]:
        found = metrics(gateway)
        return [sum(map(float, re.findall(each, found, re.MULTILINE))) for each in counters]

    with started(tmp_path / "gateway", of_stub(stub, LIMITS)) as gateway:
        assert is_ready(gateway)
        assert ask(gateway, "GET", "/v2/health/live")[0] == 200
        assert counted() == [0] * 4
        stub.stop()
        wait_for(lambda: not is_ready(gateway))
        assert not is_ready(gateway)
        assert counted() == [0] * 4
        assert infer_both(gateway)["http"]()[0] == 503
        assert ask(gateway, "GET", "/v2/models/other")[0] == 404
        # One is refused before it comes to the server's place, and one there.
        assert counted() == [1, 1, 1, 1]


@needs_haproxy
def test_one_address_leaves_connections_to_others_and_to_probes(stub: Stub, tmp_path: Path) -> None:
    def status_from(source: str, address: str, path: str) -> int:
        connection = HTTPConnection(address, timeout=10, source_address=(source, 0))
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    with started(tmp_path, of_stub(stub, LIMITS)) as gateway, ExitStack() as held:
        host, port = gateway.http.split(":")
        for _ in range(500):
            held.enter_context(socket.create_connection((host, int(port))))
        sessions = 'haproxy_frontend_current_sessions{proxy="http"} 500'
        wait_for(lambda: sessions in metrics(gateway))
        with pytest.raises(ConnectionError):
            status_from("127.0.0.1", gateway.http, "/v2/health/live")
        assert status_from("127.0.0.2", gateway.http, "/v2/health/live") == 200
        for path in ("live", "ready"):
            assert status_from("127.0.0.1", gateway.metrics, f"/v2/health/{path}") == 200
        held.close()
        wait_for(lambda: sessions not in metrics(gateway))
        assert is_ready(gateway)
        stub.stop()
        wait_for(lambda: not is_ready(gateway))
        assert status_from("127.0.0.1", gateway.metrics, "/v2/health/ready") == 503


@needs_haproxy
def test_a_gateway_that_is_told_to_end_answers_what_it_has(stub: Stub, tmp_path: Path) -> None:
    """By the stop signal of HAProxy's image: one request is with the server, one waits, a client is idle."""
    limits = replace(LIMITS, max_pending_requests=1, request_timeout=10, queue_timeout=10)
    with started(tmp_path, of_stub(stub, limits)) as gateway, futures.ThreadPoolExecutor(3) as pool:
        both = infer_both(gateway)
        in_flight = [pool.submit(infer) for infer in both.values()]
        wait_for(lambda: stub.in_flight == 2)
        waiting = pool.submit(both["http"])
        wait_for(lambda: 'haproxy_backend_current_queue{proxy="http_inference"} 1' in metrics(gateway))
        idle = HTTPConnection(gateway.http, timeout=10)
        idle.request("GET", "/v2/health/live")
        assert idle.getresponse().read() == b""
        (process,) = (
            each for each in psutil.Process().children() if str(tmp_path) in " ".join(each.cmdline())
        )
        process.send_signal(signal.SIGUSR1)
        wait_for(lambda: not is_listening(gateway.http))
        assert not any(each.done() for each in in_flight)
        stub.may_answer.set()
        assert [each.result()[0] for each in in_flight] == [STATUS[each]["ok"] for each in both]
        assert waiting.result()[0] == 200
        assert process.wait(10) in (0, None)


def is_listening(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0
