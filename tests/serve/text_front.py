"""The text backend in this process: what its tests ask it, and what they read of it."""

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_stub as stub

MODEL = Path(str(files("sparse_serve") / "triton")) / "text_backend" / "model.py"
OUTPUTS = ("scores", "label", "logits", "token_count", "truncated", "rho")
SPAN_OUTPUTS = ("answer", "start", "end", "score", "token_count", "truncated", "rho")

Front = tuple[Any, stub.Graph]
"""The model of a public entry, and the graph that it asks."""

LoadFront = Callable[..., Front]

Shown = dict[str, dict[tuple[tuple[str, str], ...], float]]
"""What the metrics port shows: by family, the value of each set of labels."""


def request(
    *texts: str | bytes, pairs: tuple[str, ...] | None = None, names: tuple[str, ...] = OUTPUTS
) -> stub.Request:
    def tensor(name: str, rows: tuple[Any, ...]) -> stub.Tensor:
        values = [row if isinstance(row, bytes) else row.encode() for row in rows]
        return stub.Tensor(name, np.array(values, dtype=np.object_)[:, None])

    tensors = [tensor("TEXT", texts)]
    if pairs is not None:
        tensors.append(tensor("TEXT_PAIR", pairs))
    return stub.Request(tensors, names)


def answer(model: Any, *requests: stub.Request) -> list[dict[str, npt.NDArray[Any]]]:
    return [response.arrays() for response in stub.answers_of(model, *requests)]
