"""The inference by which it is seen that a model answers.

Standard library only: the image's health check asks the same as `serve` and the gateway.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

_TEXT = "health check"
_TASK, _MASK = "TASK", "attention_mask"
# Where the protocol's name of a type is not the configuration's without its prefix.
_WIRE_NAMES = {"TYPE_STRING": "BYTES"}


class Input(NamedTuple):
    """An input of a model, as its configuration has it.

    Attributes:
        data_type: in the configuration's words, such as TYPE_STRING.
        dims: without the batch axis where there is one; -1 where free.
    """

    name: str
    data_type: str
    dims: Sequence[int]
    is_optional: bool


def health_request(
    inputs: Sequence[Input], tasks: Sequence[str], *, is_batched: bool, output: str | None = None
) -> dict[str, Any]:
    """Return the JSON of an inference of one row that every model of a repository can be asked.

    It has each input that a request must have, of short texts, an attention mask of ones, and zeros, with
    free axes of length 1. Of several `tasks` it asks for the first: behind a server-side tokenizer that
    input is optional only so that a request without it is refused alone. `output` is what is to be
    answered; None for all there is.
    """
    needed = [each for each in inputs if not each.is_optional or (tasks and each.name == _TASK)]
    request: dict[str, Any] = {"inputs": [_row(each, tasks, is_batched=is_batched) for each in needed]}
    return request if output is None else {**request, "outputs": [{"name": output}]}


def _row(tensor: Input, tasks: Sequence[str], *, is_batched: bool) -> dict[str, Any]:
    shape = [1] * is_batched + [1 if dim == -1 else dim for dim in tensor.dims]
    filler: Any = int(tensor.name == _MASK)
    if tensor.data_type == "TYPE_STRING":
        filler = tasks[0] if tasks and tensor.name == _TASK else _TEXT
    elif tensor.data_type == "TYPE_BOOL":
        filler = False
    datatype = _WIRE_NAMES.get(tensor.data_type) or tensor.data_type.removeprefix("TYPE_")
    return {"name": tensor.name, "shape": shape, "datatype": datatype, "data": [filler] * math.prod(shape)}
