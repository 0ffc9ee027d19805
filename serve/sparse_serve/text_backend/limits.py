"""How much text a request may have, before any of it is read."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sparse_serve.repository.tunable import (
    DEFAULT_REQUEST_BYTES,
    DEFAULT_TEXT_BYTES,
    REQUEST_BYTES_PARAMETER,
    TEXT_BYTES_PARAMETER,
    read_limit,
)

_LENGTH = struct.Struct("<I")


class Oversize:
    """In the place of a text of more bytes than are read."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


class OversizeError(ValueError):
    """A text, or all texts of a request together, have more bytes than are read."""


@dataclass(frozen=True)
class TextLimits:
    """The most bytes of one text, and of all texts of a request."""

    text_bytes: int
    request_bytes: int

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> Self:
        """Return what the parameters of a configuration say; the defaults of those that it lacks.

        Raises:
            ValueError: one is no number, or out of bounds.
        """
        return cls(
            read_limit(parameters, TEXT_BYTES_PARAMETER, DEFAULT_TEXT_BYTES),
            read_limit(parameters, REQUEST_BYTES_PARAMETER, DEFAULT_REQUEST_BYTES),
        )

    def strings_of(self, encoded: npt.NDArray[np.uint8]) -> npt.NDArray[np.object_]:
        """Return the texts of a tensor, each of which lies behind its length; `Oversize` for one too long.

        It takes the place of a function of Triton's own, which copies each whatever its size.
        """
        buffer = encoded.data
        texts: list[bytes | Oversize] = []
        start = 0
        while start < len(buffer):
            (size,) = _LENGTH.unpack_from(buffer, start)
            start += _LENGTH.size
            texts.append(Oversize(size) if size > self.text_bytes else bytes(buffer[start : start + size]))
            start += size
        array = np.empty(len(texts), np.object_)
        for place, text in enumerate(texts):
            array[place] = text
        return array

    def check(self, inputs: Mapping[str, npt.NDArray[Any]]) -> int:
        """Return the bytes of a request's texts, by the names of their tensors.

        Raises:
            OversizeError: they are too many, or those of one text are.
        """
        total = 0
        for name, texts in inputs.items():
            sizes = list(map(len, texts.reshape(-1)))
            total += sum(sizes)
            longest = max(sizes, default=0)
            if longest > self.text_bytes:
                raise OversizeError(
                    f"input '{name}' has a text of {longest} bytes: give at most {self.text_bytes} "
                    f"({TEXT_BYTES_PARAMETER} of config.pbtxt)"
                )
        if total > self.request_bytes:
            raise OversizeError(
                f"the texts of the request have {total} bytes: give at most {self.request_bytes} at once, "
                f"others in further requests ({REQUEST_BYTES_PARAMETER} of config.pbtxt)"
            )
        return total
