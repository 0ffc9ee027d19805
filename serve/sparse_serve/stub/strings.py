"""Texts as Triton has them, bytes, and as ONNX Runtime's binding takes and gives them."""

from typing import Any

import numpy as np
import numpy.typing as npt

Strings = npt.NDArray[np.object_]
"""Of any shape: `bytes` as Triton has them, or `str` as ONNX Runtime does."""


def is_utf8(text: bytes) -> bool:
    """Tell whether bytes are text."""
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def decoded(texts: Strings) -> Strings:
    """Return bytes, all of them text, as the binding takes text, in their shape.

    Raises:
        UnicodeDecodeError: some are none.
    """
    strings = [text.decode("utf-8") for text in texts.reshape(-1)]
    return np.array(strings, dtype=np.object_).reshape(texts.shape)


def encoded(texts: Strings) -> Strings:
    """Return text as bytes, in its shape."""
    strings = [text.encode("utf-8") for text in texts.reshape(-1)]
    return np.array(strings, dtype=np.object_).reshape(texts.shape)


def spelled(texts: Strings) -> npt.NDArray[Any]:
    """Return bytes that may be no text as the binding takes bytes: of one width, and read up to a NUL.

    A NUL becomes a space, and what follows the first byte that is no text is left out: neither changes where
    that is. Behind the widest there is room, or the binding reads on.

    Returns:
        Bytes of numpy's type S, in the shape of `texts`.
    """
    cut = []
    for text in texts.reshape(-1):
        read = len(text)
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            read = error.start + 1
        cut.append(text[:read].replace(b"\0", b" "))
    return np.array(cut, dtype=f"S{max(map(len, cut)) + 1}").reshape(texts.shape)
