"""What Triton could do besides answering is closed, to who knows its command line too."""

import socket
import struct
from contextlib import suppress

import psutil
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from sparse_serve.triton.launcher import TritonServer


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_closed_apis_are_closed(server: TritonServer, protocol: str) -> None:
    apis = {"http": tritonclient.http, "grpc": tritonclient.grpc}
    urls = {"http": server.http_url, "grpc": server.grpc_url}
    with apis[protocol].InferenceServerClient(urls[protocol]) as client:
        calls = [
            client.get_model_repository_index,
            client.get_system_shared_memory_status,
            client.get_trace_settings,
            client.get_log_settings,
        ]
        for call in calls:
            with pytest.raises(InferenceServerException, match="restricted"):
                call()


def test_who_reads_the_command_line_cannot_open_them(server: TritonServer) -> None:
    line = psutil.Process(server.process_ids()[0]).cmdline()
    (header,) = {each.partition(":")[2] for each in line if "-restricted-" in each}
    name, value = header.encode().split(b"=")
    path = b"/inference.GRPCInferenceService/RepositoryIndex"
    assert b"restricted" in over_http(server.http_url, b"/v2/repository/index", b"x", value)
    assert b"restricted" in over_grpc(server.grpc_url, path, b"triton-grpc-protocol-x", value)
    assert b"restricted" in over_http(server.http_url, b"/v2/repository/index", name, value)
    assert b"READY" not in over_grpc(server.grpc_url, path, b"triton-grpc-protocol-" + name, value)


def over_http(url: str, path: bytes, name: bytes, value: bytes) -> bytes:
    """What a POST is answered with a header that no client would send."""
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n" % path
    return exchanged(url, head + b"%b: %b\r\n\r\n{}" % (name, value))


def over_grpc(url: str, path: bytes, name: bytes, value: bytes) -> bytes:
    """What a call without arguments is answered with a header that no client would send."""

    def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
        return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content

    headers = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": path,
        b":authority": b"x",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
        name: value,
    }
    # Literals without Huffman's code, each with its length in a byte (RFC 7541, 6.2.2).
    block = b"".join(
        b"\0" + b"".join(bytes([len(text)]) + text for text in header) for header in headers.items()
    )
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"")
    return exchanged(url, preface + frame(1, 4, 1, block) + frame(0, 1, 1, bytes(5)))


def exchanged(url: str, sent: bytes) -> bytes:
    """What comes back within a second, or until the connection is closed."""
    host, port = url.split(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=1) as connection:
        connection.sendall(sent)
        with suppress(TimeoutError, ConnectionResetError):
            while part := connection.recv(65536):
                received += part
    return received
