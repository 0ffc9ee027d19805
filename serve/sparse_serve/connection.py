"""Calls of a server over HTTP or gRPC: sent again where that may help, and in one line where they fail."""

import random
import re
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import grpc
import numpy as np
import numpy.typing as npt
from geventhttpclient.response import HTTPParseError
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.utils import InferenceServerException

from sparse_serve.errors import OptionError, RequestError

Protocol = Literal["http", "grpc"]

DEFAULT_RETRIES = 4

_TIMEOUT_SECONDS = 600.0
# Before each further attempt twice as long as before the last, and up to half less, so that many clients of a
# server that comes back do not come back together.
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 10.0
_RETRY_SECONDS = 60.0
# A gateway answers 502 where the server is lost on the way, and cancels what it refuses while it still comes.
_TRANSIENT = (str(grpc.StatusCode.UNAVAILABLE), str(grpc.StatusCode.CANCELLED), "502", "503")
# With these a request was taken and yet not answered; with any other it was refused.
_FAILED = (
    *map(str, (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED)),
    *("500", "502", "504"),
)
_INVALID = (str(grpc.StatusCode.INVALID_ARGUMENT), "400")
# What a gateway says of a whole message, and a backend, which calls it invalid, of the texts in it.
_TOO_LARGE = (str(grpc.StatusCode.RESOURCE_EXHAUSTED), "413")
_TOO_MUCH_TEXT = re.compile(r"the texts of the request have \d+ bytes")
_ADDRESS = re.compile(
    r"(?:(?P<scheme>https?|grpcs?)://)?(?P<place>(?:\[[0-9A-Fa-f:.]+\]|[\w.-]+):(?P<port>[0-9]{1,5}))/?"
)
_HIGHEST_PORT = 65535
# gRPC gives these the status with which Triton itself says that it is overloaded.
_LOST_CONNECTION = re.compile(
    "failed to connect|socket closed|connection reset|broken pipe|goaway", re.IGNORECASE
)
# What gRPC says where this client has waited for as long as it does; a gateway says how long it has waited.
_OWN_DEADLINE = re.compile("deadline exceeded", re.IGNORECASE)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_RESTRICTED = re.compile("is restricted, expecting header")
# What a server says of a model that it has, while it ends; one that it has not is "not found".
_ENDING = re.compile("has no available versions|not ready")


class Connection:
    """Calls of one server. Not thread-safe over HTTP."""

    def __init__(
        self,
        url: str,
        protocol: Protocol,
        retries: int,
        ca_certificates: Path | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare calls to a server; nothing is sent yet. `Client` has the arguments.

        Raises:
            OptionError: the address, a header or the file of certificates is malformed, or `retries` is
                negative.
        """
        if retries < 0:
            raise OptionError(f"retries is {retries}: give 0 or more")
        self.url = url
        self.protocol = protocol
        self.retries = retries
        self._api: ModuleType = triton_http if protocol == "http" else triton_grpc
        self._headers = _checked_headers(headers or {})
        self._client = (_http_client if protocol == "http" else grpc_client)(url, ca_certificates)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def metadata(self, name: str) -> dict[str, Any]:
        """Return the metadata of a model.

        Raises:
            RequestError: as of `infer`; see `is_restricted`.
        """
        found: dict[str, Any] = self._call(name, "get_model_metadata", name, **self._as_json())
        return found

    def config(self, name: str) -> dict[str, Any]:
        """Return the configuration of a model.

        Raises:
            RequestError: as of `infer`; see `is_restricted`.
        """
        found: dict[str, Any] = self._call(name, "get_model_config", name, **self._as_json())
        config: dict[str, Any] = found.get("config", found)
        return config

    def infer(
        self,
        name: str,
        batch: Mapping[str, Sequence[str]],
        outputs: Sequence[str],
        class_count: int = 0,
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the outputs of a model for a batch of N rows.

        Args:
            name: of the model.
            batch: the inputs by name, N strings each, which are sent as BYTES `(N, 1)`.
            outputs: the names of those that are wanted.
            class_count: how many classes of each are wanted, by Triton's classification extension.

        Returns:
            The outputs by name, `(N, …)` each, of the model's types.

        Raises:
            RequestError: the server cannot be reached, refuses the request, or does not know the model.
        """
        wanted = [self._api.InferRequestedOutput(output, class_count=class_count) for output in outputs]
        result = self._call(name, "infer", name, self._inputs(batch), outputs=wanted)
        return {output: result.as_numpy(output) for output in outputs}

    def _inputs(self, batch: Mapping[str, Sequence[str]]) -> list[Any]:
        inputs = []
        for tensor, values in batch.items():
            array = np.array([value.encode() for value in values], dtype=np.object_)[:, None]
            inputs.append(self._api.InferInput(tensor, list(array.shape), "BYTES"))
            inputs[-1].set_data_from_numpy(array)
        return inputs

    def _as_json(self) -> dict[str, bool]:
        return {"as_json": True} if self.protocol == "grpc" else {}

    def _call(self, name: str, method: str, *args: Any, **kwargs: Any) -> Any:
        if self.protocol == "grpc":
            kwargs["client_timeout"] = _TIMEOUT_SECONDS
        if self._headers:
            kwargs["headers"] = dict(self._headers)  # tritonclient adds its own
        pauses = self._pauses()
        while True:
            try:
                return getattr(self._client, method)(*args, **kwargs)
            except Exception as error:  # whatever geventhttpclient and sockets raise on a broken connection
                pause = next(pauses, None) if _may_pass(error) else None
                if pause is None:
                    raise self._failure(name, error) from error
                time.sleep(pause)

    def _pauses(self) -> Iterator[float]:
        """Yield the seconds to wait before each further attempt of a request."""
        deadline = time.monotonic() + _RETRY_SECONDS
        for attempt in range(self.retries):
            pause = min(_FIRST_WAIT * 2**attempt, _LONGEST_WAIT) * random.uniform(0.5, 1)
            if time.monotonic() + pause > deadline:
                return
            yield pause

    def _failure(self, name: str, error: Exception) -> RequestError:
        """Return what is told of a request that failed."""
        if isinstance(error, ssl.SSLError):
            return RequestError(
                f"no TLS with {self.url}: {' '.join(str(error).split())}; give ca_certificates "
                "(--ca-certificates), a file of the authority that its certificate is of"
            )
        if not isinstance(error, InferenceServerException):
            return self._unreachable(str(error) or type(error).__name__)
        status, message = error.status(), " ".join(str(error.message()).split())
        if status == str(grpc.StatusCode.DEADLINE_EXCEEDED) and _OWN_DEADLINE.search(message):
            return self._unreachable(f"timed out after {_TIMEOUT_SECONDS:g} s")
        if status == str(grpc.StatusCode.UNAVAILABLE) and _LOST_CONNECTION.search(message):
            return self._unreachable(message)
        did = "failed on" if status in _FAILED else "refused"
        return RequestError(f"the server at {self.url} {did} the request to '{name}': {message}")

    def _unreachable(self, reason: str) -> RequestError:
        return RequestError(
            f"no answer from {self.url} over {self.protocol}: {' '.join(reason.split())}; "
            "is `sparse-serve serve` running there?"
        )


def grpc_client(url: str, ca_certificates: Path | None = None) -> Any:
    """Return tritonclient's own client of an address, `host:port`, or `grpcs://host:port` for TLS.

    Raises:
        OptionError: the address or the file of certificates is malformed.
    """
    place, has_tls = checked_address(url, "grpc", ca_certificates)
    known = {} if ca_certificates is None else {"root_certificates": str(ca_certificates)}
    return triton_grpc.InferenceServerClient(place, ssl=has_tls, **known)


def _http_client(url: str, ca_certificates: Path | None) -> Any:
    place, has_tls = checked_address(url, "http", ca_certificates)
    # Over gRPC the time limit goes with each call.
    timeouts = {"connection_timeout": _TIMEOUT_SECONDS, "network_timeout": _TIMEOUT_SECONDS}
    known = {} if ca_certificates is None else {"ca_certs": str(ca_certificates)}
    tls = {"ssl": True, "ssl_options": known} if has_tls else {}
    return triton_http.InferenceServerClient(place, **timeouts, **tls)


def checked_address(url: str, protocol: Protocol, ca_certificates: Path | None = None) -> tuple[str, bool]:
    """Return host and port of an address, and whether it asks for TLS.

    Raises:
        OptionError: the address is malformed, or the file of the authorities that certificates may be of;
            or there is one without TLS.
    """
    place, has_tls = _address(url, protocol)
    if ca_certificates is not None:
        if not has_tls:
            raise OptionError(
                f"certificates are for TLS, and '{url}' is without: give {protocol}s://host:port"
            )
        _check_certificates(ca_certificates)
    return place, has_tls


def _address(url: str, protocol: Protocol) -> tuple[str, bool]:
    address = _ADDRESS.fullmatch(url)
    if address is None or int(address["port"]) > _HIGHEST_PORT:
        raise OptionError(
            f"'{url}' is no address of a server: give host:port, such as 127.0.0.1:8000, with {protocol}s:// "
            "before it for TLS"
        )
    scheme = address["scheme"] or protocol
    if scheme.removesuffix("s") != protocol:
        raise OptionError(
            f"'{url}' is no address for {protocol}: give {protocol}://host:port, or {protocol}s://"
        )
    return address["place"], scheme != protocol


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers by their names in lower case, as gRPC wants them."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not value.isprintable() or not value.isascii():
            shown = " ".join(f"{name}: {value}".split())
            raise OptionError(f"'{shown:.80}' is no header: give NAME: VALUE in printable ASCII")
    return {name.lower(): value for name, value in headers.items()}


def _check_certificates(file: Path) -> None:
    try:
        ssl.create_default_context(cafile=file)
    except OSError as error:
        reason = error.strerror or error
        raise OptionError(f"{file} has no certificates of authorities in PEM: {reason}") from None


def _may_pass(error: Exception) -> bool:
    """Tell whether what failed may be answered later: the server is overloaded, ending, or was not reached.

    One that takes too long is not sent again: it would take as long.
    """
    if isinstance(error, InferenceServerException):
        message = str(error.message())
        is_transient = error.status() in _TRANSIENT and not _keeps_back(error)
        return is_transient or _ENDING.search(message) is not None
    return isinstance(error, OSError | HTTPParseError) and not isinstance(error, TimeoutError | ssl.SSLError)


def is_refusal(error: RequestError) -> bool:
    """Tell whether a server calls what it was asked invalid, or too large."""
    return _status(error) in (*_INVALID, *_TOO_LARGE)


def is_too_large(error: RequestError) -> bool:
    """Tell whether a server refuses a request for its size, so that less of it may be answered."""
    return _status(error) in _TOO_LARGE or _TOO_MUCH_TEXT.search(str(error)) is not None


def _status(error: RequestError) -> str | None:
    """Return the status of a server's refusal; None where no server has answered."""
    return error.__cause__.status() if isinstance(error.__cause__, InferenceServerException) else None


def is_restricted(error: RequestError) -> bool:
    """Tell whether a server keeps what was asked for to itself."""
    return isinstance(error.__cause__, InferenceServerException) and _keeps_back(error.__cause__)


def _keeps_back(error: InferenceServerException) -> bool:
    return _RESTRICTED.search(str(error.message())) is not None
