"""The client where there is no server that answers."""

import socket
from collections.abc import Iterator

import pytest

from sparse_serve import client
from sparse_serve.client import Client, Protocol
from sparse_serve.errors import OptionError, RequestError


@pytest.fixture
def silent_url() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_server_that_never_answers_is_given_up(
    silent_url: str, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_TIMEOUT_SECONDS", 0.2)
    with (
        Client(silent_url, protocol) as asking,
        pytest.raises(RequestError, match=f"no answer from {silent_url} over {protocol}: .*timed out"),
    ):
        asking.classify("tiny", ["w1"])


@pytest.mark.parametrize(
    "url", ["", "host", "http://host:1", "host:", "host:65536", "host:x", "a b:1", "host:٣"]
)
def test_malformed_addresses_are_refused(url: str) -> None:
    with pytest.raises(OptionError, match="is no address of a server: give host:port"):
        Client(url)
