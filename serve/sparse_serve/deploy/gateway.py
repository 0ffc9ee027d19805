"""The gateway before Triton: an HAProxy configuration, and what it answers gRPC with."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparse_serve.deploy.files import render
from sparse_serve.deploy.limits import HEALTH_FALL, Limits

CONFIG = "haproxy.cfg"
# The branch that the tests run; it is maintained until 2027.
GATEWAY_IMAGE = "haproxy:2.6"

_RESOURCE_EXHAUSTED, _UNIMPLEMENTED, _UNAVAILABLE, _DEADLINE_EXCEEDED = 8, 12, 14, 4
_KIB, _MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """Where a gateway listens, and where what it answers from is: `host:port`, as HAProxy takes them.

    Attributes:
        models: the names of the Triton models that clients may ask.
        health_request: the JSON of an inference of the first of them.
        certificate: PEM file with certificate and key for both protocols; None for no TLS.
    """

    models: tuple[str, ...]
    health_request: Mapping[str, Any]
    limits: Limits
    http: str = ":8000"
    grpc: str = ":8001"
    metrics: str = ":8404"
    http_server: str = "triton:8000"
    grpc_server: str = "triton:8001"
    certificate: str | None = None


def gateway_files(gateway: Gateway) -> dict[str, str]:
    """Return the files of a folder that HAProxy starts from, by name."""
    limits = gateway.limits
    replies = {
        "slow": (_DEADLINE_EXCEEDED, "the request did not come within 10 s"),
        "too_large": (_RESOURCE_EXHAUSTED, too_large(limits)),
        "unimplemented": (_UNIMPLEMENTED, "only unary calls about models, without compression, are answered"),
        "overloaded": (_UNAVAILABLE, "too many requests, or the server is down: try again later"),
        "deadline": (_DEADLINE_EXCEEDED, f"no answer within {limits.request_timeout:g} s"),
    }
    config = render(
        "haproxy.cfg.j2",
        gateway=gateway,
        limits=limits,
        admitted=limits.max_requests + limits.max_pending_requests,
        models="|".join(map(re.escape, gateway.models)),
        health_fall=HEALTH_FALL,
        messages={name: message for name, (_, message) in replies.items()},
    )
    return {CONFIG: config} | {
        f"grpc_{name}.http": grpc_reply(status, message) for name, (status, message) in replies.items()
    }


def too_large(limits: Limits) -> str:
    """Return what a request is told that is above the limit."""
    unit, name = (_MIB, "MiB") if limits.max_body % _MIB == 0 else (_KIB, "KiB")
    size = f"{limits.max_body // unit} {name}" if limits.max_body % unit == 0 else f"{limits.max_body} bytes"
    return f"a request of more than {size}"


def grpc_reply(status: int, message: str) -> str:
    """Return an answer of gRPC without a message, as the HTTP response that HAProxy sends from a file."""
    headers = {
        "content-type": "application/grpc",
        "grpc-status": status,
        "grpc-message": message,
        "content-length": 0,
    }
    lines = ["HTTP/1.1 200 OK", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines)
