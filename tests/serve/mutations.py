"""Requests as clients get them wrong: good ones with one to three things changed, drawn by a seed."""

import copy
import gzip
import json
import math
import random
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tritonclient.grpc.service_pb2 import ModelInferRequest

Values = list[str] | list[int]

ODD_NUMBERS = (0, -1, 1, 3, 2**31, 2**31 - 1, -(2**31), 2**32, 2**63 - 1, -(2**63), 2**64, 10**30, 0.5, 1e308)
ODD_TEXTS = (
    "",
    " ",
    "\0",
    "TEXT",
    "BYTES",
    "INT64",
    "FP32",
    "a/b",
    "../..",
    "x" * 5000,
    "\ud800",
    "é\U0010ffff",
)
DATATYPES = (
    "BYTES",
    "INT64",
    "INT32",
    "INT8",
    "UINT64",
    "FP64",
    "FP32",
    "FP16",
    "BF16",
    "BOOL",
    "STRING",
    "",
)
ODD_SHAPES = (
    (),
    (0,),
    (1,),
    (2, 1),
    (1, 2),
    (1, 1, 1),
    (0, 1),
    (1, 0),
    (-1, 1),
    (-1, -1),
    (-(2**62), 2),
    (2**32, 2**32),
    (2**62, 4),
    (2**63 - 1, 2**63 - 1),
    (65, 1),
    (1,) * 100,
)
HUGE_SHAPES = ((2**40, 1), (2**31, 1), (99_999, 99_999), (2**61 - 1, 1), (1000, 1000, 1000, 1000))
"""Of JSON, Triton makes room for the shape before it looks at the data: these end it."""
HUGE = 1 << 30
"""Bytes of a tensor from which on there may be no room."""
PARAMETERS = (
    "binary_data_size",
    "sequence_id",
    "sequence_start",
    "priority",
    "timeout",
    "shared_memory_region",
    "shared_memory_byte_size",
    "shared_memory_offset",
    "classification",
    "binary_data",
    "binary_data_output",
    "triton_enable_empty_final_response",
    "headers",
    "no such",
)
DEEP = 20_000


class Target(NamedTuple):
    """A model that is asked.

    Attributes:
        model: its name.
        inputs: by name, datatype and the values of one row.
        output: one that it has.
    """

    model: str
    inputs: Mapping[str, tuple[str, Values]]
    output: str


class Mutated(NamedTuple):
    """A request that something is wrong with, or nothing by chance.

    Attributes:
        kind: how it was changed.
        payload: its bytes as they are sent: all of an HTTP request, or a gRPC message.
        is_whole: whether an answer is due; the server may wait for the rest of others.
    """

    kind: str
    payload: bytes
    is_whole: bool = True

    @property
    def is_huge(self) -> bool:
        """Whether Triton might end of one of its shapes, like `HUGE_SHAPES`; it counts in 64 bits."""
        shapes = re.findall(rb'"shape"\s*:\s*\[([\d\s,]+)\]', self.payload)
        sizes = (8 * math.prod(map(int, re.findall(rb"\d+", shape))) for shape in shapes)
        return any(size % 2**64 > HUGE for size in sizes)


def json_request(target: Target) -> dict[str, Any]:
    """Return a good request as the JSON of Triton's HTTP."""
    inputs = [
        {"name": name, "shape": [1, len(values)], "datatype": datatype, "data": list(values)}
        for name, (datatype, values) in target.inputs.items()
    ]
    return {"id": "fuzz", "inputs": inputs, "outputs": [{"name": target.output}]}


def binary_request(target: Target) -> tuple[dict[str, Any], list[bytes]]:
    """Return a good request with binary tensors: its JSON, and the bytes of each input behind it."""
    request = json_request(target)
    contents = []
    for tensor in request["inputs"]:
        contents.append(binary(tensor["datatype"], tensor.pop("data")))
        tensor["parameters"] = {"binary_data_size": len(contents[-1])}
    return request, contents


def binary(datatype: str, values: Values) -> bytes:
    """Return values as Triton's binary tensors hold them."""
    if datatype == "INT64":
        return struct.pack(f"<{len(values)}q", *values)
    texts = [str(value).encode() for value in values]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def http(
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    method: str = "POST",
    version: str = "HTTP/1.1",
) -> bytes:
    """Return an HTTP request as bytes."""
    lines = [f"{method} {path} {version}"]
    fields = {"Host": "x", "Connection": "close", "Content-Length": str(len(body))} | dict(headers or {})
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + body


def infer_path(target: Target) -> str:
    return f"/v2/models/{target.model}/infer"


def odd_value(rng: random.Random) -> Any:
    """Return a value of JSON that is seldom right."""
    return rng.choice(
        [
            None,
            True,
            rng.choice(ODD_NUMBERS),
            rng.choice(ODD_TEXTS),
            float("nan"),
            float("-inf"),
            [],
            {},
            [[rng.choice(ODD_TEXTS)], 1],
            {"name": rng.choice(ODD_TEXTS)},
            list(rng.choice(ODD_SHAPES)),
            [0] * 300,
        ]
    )


def places(node: Any) -> list[tuple[Any, Any]]:
    """Return every container of a JSON value with each of its keys."""
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    found = [(node, key) for key in keys]
    return found + [place for key in keys for place in places(node[key])]


def change_json(rng: random.Random, request: dict[str, Any]) -> None:
    """Change one thing of a request's JSON in place."""
    container, key = rng.choice(places(request))
    change = rng.randrange(6)
    inputs = request.get("inputs")
    tensors = [each for each in inputs if isinstance(each, dict)] if isinstance(inputs, list) else []
    if change == 0:
        del container[key]
    elif change == 1 and tensors:
        rng.choice(tensors)["shape"] = list(rng.choice(ODD_SHAPES))
    elif change == 2 and tensors:
        rng.choice(tensors)["datatype"] = rng.choice(DATATYPES)
    elif change == 3:
        owners = [request, *(owner for owner, _ in places(request) if isinstance(owner, dict))]
        rng.choice(owners)["parameters"] = {rng.choice(PARAMETERS): odd_value(rng)}
    elif change == 4 and isinstance(container, list):
        container.append(copy.deepcopy(container[key]))
    else:
        container[key] = odd_value(rng)


def changed(rng: random.Random, request: dict[str, Any]) -> dict[str, Any]:
    for _ in range(rng.randint(1, 3)):
        if request:
            change_json(rng, request)
    return request


def encoded(request: Any) -> bytes:
    return json.dumps(request).encode()


def spoiled(rng: random.Random, content: bytes) -> bytes:
    """Return bytes with some of them changed, left out, put in or repeated."""
    buffer = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(buffer) + 1)
        match rng.randrange(5):
            case 0:
                buffer[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                buffer[at : at + rng.randint(1, 20)] = b""
            case 2:
                buffer[at:at] = rng.randbytes(rng.randint(1, 8))
            case 3:
                buffer[at:at] = buffer[at : at + 20]
            case _:
                del buffer[at:]
    return bytes(buffer)


def wrong_json(rng: random.Random, target: Target) -> bytes:
    return http(infer_path(target), encoded(changed(rng, json_request(target))))


def spoiled_json(rng: random.Random, target: Target) -> bytes:
    return http(infer_path(target), spoiled(rng, encoded(json_request(target))))


def nested_json(rng: random.Random, target: Target) -> bytes:
    opening, closing = rng.choice([(b"[", b"]"), (b'{"a":', b"}")])
    depth = rng.choice([50, 1000, DEEP])
    nested = opening * depth + b"1" + closing * (depth if rng.random() < 0.5 else 0)
    text = encoded(json_request(target))
    return http(
        infer_path(target),
        rng.choice([nested, text.replace(b'"fuzz"', nested), text[:-1] + b',"a":' + nested + b"}"]),
    )


def odd_strings(rng: random.Random, target: Target) -> bytes:
    """Texts in JSON that are none in Unicode, or in no JSON."""
    text = rng.choice(
        [rb"\ud800", rb"\udfff\ud800", b"\xff\xfe", b"\xed\xa0\x80", b"\0", rb"\u0000", rb"\x41", b"\n"]
    )
    content = encoded(json_request(target))
    return http(infer_path(target), content.replace(b'["', b'["' + text, 1))


def wrong_binary(rng: random.Random, target: Target) -> bytes:
    """Binary tensors whose JSON, sizes or bytes are wrong."""
    request, contents = binary_request(target)
    what = rng.randrange(4)
    number = rng.randrange(len(contents))
    if what == 0:
        request = changed(rng, request)
    elif what == 1:
        size = rng.choice([0, 1, len(contents[number]) - 1, len(contents[number]) + 1, *ODD_NUMBERS])
        request["inputs"][number]["parameters"]["binary_data_size"] = size
    elif what == 2:
        contents[number] = wrong_content(rng, contents[number])
        if rng.random() < 0.5:
            request["inputs"][number]["parameters"]["binary_data_size"] = len(contents[number])
    head = encoded(request)
    length: Any = len(head)
    if what == 3:
        length = rng.choice(
            [0, 1, length - 1, length + 1, length + 1000, "", "abc", "0x10", " 7 ", "1e3", *ODD_NUMBERS]
        )
    return http(
        infer_path(target), head + b"".join(contents), {"Inference-Header-Content-Length": str(length)}
    )


def wrong_content(rng: random.Random, content: bytes) -> bytes:
    """Return the bytes of a tensor with another length, in front of a text or altogether."""
    lie = struct.pack("<I", rng.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1, len(content)]))
    return rng.choice(
        [
            b"",
            content[:-1],
            content[:3],
            content + b"\0",
            content * 2,
            lie + content[4:],
            content + lie,
            b"\xff" * len(content),
            rng.randbytes(rng.randint(1, 64)),
        ]
    )


VERSIONS = ("0", "2", "-1", str(2**31), str(2**63), str(2**70), "x", "")
MODELS = ("no", "", "a" * 3000, "%00", "..", "%2e%2e", "ä", "sample%20")
CALLS = ("", "stats", "config", "ready", "inf", "generate", "generate_stream", "load", "trace/setting")
PATHS = (
    "/",
    "*",
    "/v2",
    "/v2/",
    "//v2",
    "/v2/health/none",
    "/v2/systemsharedmemory/status",
    "/metrics",
    "/v2/logging",
    "/" + "a/" * 1000,
)
BEHIND_PATHS = ("?a=b", "#x", "/", "//", "\0", "%", "%zz")


def wrong_path(rng: random.Random, target: Target) -> bytes:
    path = rng.choice(
        [
            f"/v2/models/{target.model}/versions/{rng.choice(VERSIONS)}/infer",
            f"/v2/models/{rng.choice(MODELS)}/infer",
            f"/v2/models/{target.model}/{rng.choice(CALLS)}",
            f"/v2/repository/models/{target.model}/{rng.choice(['load', 'unload'])}",
            rng.choice(PATHS),
            infer_path(target) + rng.choice(BEHIND_PATHS),
        ]
    )
    method = rng.choice(["POST", "POST", "GET", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "PATCH"])
    return http(path, encoded(json_request(target)), method=method)


def generate(rng: random.Random, target: Target) -> bytes:
    """The generate extension: a flat object."""
    request: dict[str, Any] = {name: values[0] for name, (_, values) in target.inputs.items()}
    for _ in range(rng.randint(0, 2)):
        request[rng.choice([*request, "no such", "id", "parameters"])] = odd_value(rng)
    body = encoded(request)
    return http(f"/v2/models/{target.model}/generate", spoiled(rng, body) if rng.random() < 0.3 else body)


def compressed(rng: random.Random, target: Target) -> bytes:
    body = gzip.compress(encoded(json_request(target)))
    named = rng.choice(["gzip", "deflate", "br", "identity", "gzip, gzip", ""])
    return http(
        infer_path(target),
        spoiled(rng, body) if rng.random() < 0.7 else body,
        {"Content-Encoding": named, "Accept-Encoding": rng.choice(["gzip", "deflate", "*;q=0", "\xff"])},
    )


def odd_headers(rng: random.Random, target: Target) -> bytes:
    name = rng.choice(
        ["X" * 9000, "Host", "Content-Type", "Accept", "Triton-Request-ID", "traceparent", "Authorization"]
    )
    value = rng.choice(["", "x" * 9000, "\udcff\udcfe", "a\tb", "-1", "application/octet-stream"])
    fields = {name: value} | ({f"X-{number}": "y" for number in range(200)} if rng.random() < 0.2 else {})
    return http(infer_path(target), encoded(json_request(target)), fields)


def wrong_framing(rng: random.Random, target: Target) -> bytes:
    """Requests that end too early or too late, or of which it is not clear where they end."""
    body = encoded(json_request(target))
    path = infer_path(target)
    chunk = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    whole = http(path, body)
    chunked = http(path, b"", {"Transfer-Encoding": "chunked"}).replace(b"Content-Length: 0\r\n", b"")
    length = rng.choice(
        [0, 1, len(body) - 1, len(body) + 1, 10**7, -1, 2**31, 2**63, 2**64, "x", "", "1 1", "+5"]
    )
    return rng.choice(
        [
            http(path, body, {"Content-Length": str(length)}),
            whole[: rng.randrange(len(whole))],
            spoiled(rng, whole),
            chunked + chunk,
            chunked + chunk[: rng.randrange(len(chunk))],
            chunked + b"ffffffffffffffffff\r\n" + chunk,
            chunked + b"-5\r\n" + chunk,
            http(path, chunk, {"Transfer-Encoding": "chunked"}),
            http(path, body, {"Transfer-Encoding": "chunked"}),
            http(path, body, {"Expect": "100-continue"}),
            http(
                path,
                body,
                version=rng.choice(["HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/9.9", "FTP/1.1", ""]),
            ),
            whole.replace(b"\r\n", b"\n"),
            whole.replace(b"Host: x\r\n", b""),
            whole.replace(b"Connection: close", b"Connection: keep-alive") * rng.randint(2, 5),
            whole.replace(b"Content-Length", b"Content-Length: 3\r\nContent-Length"),
            rng.randbytes(rng.randint(1, 300)),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(30),
            b"\x16\x03\x01" + rng.randbytes(100),
        ]
    )


HTTP: Mapping[Callable[[random.Random, Target], bytes], int] = {
    wrong_json: 6,
    spoiled_json: 3,
    nested_json: 1,
    odd_strings: 1,
    wrong_binary: 6,
    wrong_path: 2,
    generate: 2,
    compressed: 1,
    odd_headers: 1,
    wrong_framing: 3,
}
"""What is done to HTTP requests, and how often in proportion."""


def http_request(rng: random.Random, target: Target) -> Mutated:
    """Draw an HTTP request."""
    (change,) = rng.choices(list(HTTP), list(HTTP.values()))
    return Mutated(change.__name__, change(rng, target), change is not wrong_framing)


def message(target: Target) -> ModelInferRequest:
    """Return a good request as gRPC's message."""
    request = ModelInferRequest(model_name=target.model, id="fuzz")
    for name, (datatype, values) in target.inputs.items():
        request.inputs.add(name=name, datatype=datatype, shape=[1, len(values)])
        request.raw_input_contents.append(binary(datatype, values))
    request.outputs.add(name=target.output)
    return request


def wrong_shape(rng: random.Random, request: ModelInferRequest) -> None:
    tensor = rng.choice(request.inputs)
    del tensor.shape[:]
    tensor.shape.extend(rng.choice((*ODD_SHAPES, *HUGE_SHAPES)))


def wrong_datatype(rng: random.Random, request: ModelInferRequest) -> None:
    rng.choice(request.inputs).datatype = rng.choice(DATATYPES)


def wrong_name(rng: random.Random, request: ModelInferRequest) -> None:
    owner, field = rng.choice(
        [
            (request, "model_name"),
            (request, "model_version"),
            (request, "id"),
            (rng.choice(request.inputs), "name"),
            (rng.choice(request.outputs or request.inputs), "name"),
        ]
    )
    setattr(
        owner,
        field,
        rng.choice(["", " ", "-1", "0", "2", "99999999999999999999", "no", "x" * 5000, "\0", "é"]),
    )


def wrong_contents(rng: random.Random, request: ModelInferRequest) -> None:
    number = rng.randrange(len(request.raw_input_contents) or 1)
    what = rng.randrange(4)
    if what == 0 and request.raw_input_contents:
        request.raw_input_contents[number] = wrong_content(rng, request.raw_input_contents[number])
    elif what == 1:
        request.raw_input_contents.append(rng.randbytes(rng.randint(0, 9)))
    elif what == 2 and request.raw_input_contents:
        del request.raw_input_contents[number]
    else:
        if rng.random() < 0.7:
            del request.raw_input_contents[:]
        contents = rng.choice(request.inputs).contents
        match rng.randrange(4):
            case 0:
                contents.bytes_contents.extend([b"w1", b"\xff"][: rng.randint(0, 2)])
            case 1:
                contents.int64_contents.extend([5] * rng.randint(0, 5))
            case 2:
                contents.fp32_contents.extend([5.0] * rng.randint(1, 3))
            case _:
                contents.bool_contents.append(True)


def wrong_parameter(rng: random.Random, request: ModelInferRequest) -> None:
    owners = (request, *request.inputs, *request.outputs)
    parameter = rng.choice(owners).parameters[rng.choice(PARAMETERS)]
    match rng.randrange(5):
        case 0:
            parameter.int64_param = rng.choice([0, 1, 2, -1, 2**31, 2**63 - 1])
        case 1:
            parameter.string_param = rng.choice(["", "x", "1", "x" * 1000])
        case 2:
            parameter.bool_param = rng.random() < 0.5
        case 3:
            parameter.double_param = 0.5
        case _:
            parameter.uint64_param = 2**64 - 1


def wrong_number(rng: random.Random, request: ModelInferRequest) -> None:
    """Tensors that are there twice, or not."""
    what = rng.randrange(4)
    if what == 0:
        request.inputs.add().CopyFrom(rng.choice(request.inputs))
    elif what == 1:
        request.outputs.extend([rng.choice(request.outputs)] if request.outputs else [])
    elif what == 2 and len(request.inputs) > 1:
        del request.inputs[rng.randrange(len(request.inputs))]
    else:
        del request.outputs[:]


GRPC: Sequence[Callable[[random.Random, ModelInferRequest], None]] = (
    wrong_shape,
    wrong_datatype,
    wrong_name,
    wrong_contents,
    wrong_contents,
    wrong_parameter,
    wrong_number,
)


def grpc_request(rng: random.Random, target: Target) -> Mutated:
    """Draw a gRPC message: one that says what is wrong, or bytes that may be none."""
    request = message(target)
    if rng.random() < 0.2:
        return Mutated("spoiled message", spoiled(rng, request.SerializeToString()))
    changes = rng.choices(GRPC, k=rng.randint(1, 3))
    for change in changes:
        change(rng, request)
    return Mutated("+".join(change.__name__ for change in changes), request.SerializeToString())
