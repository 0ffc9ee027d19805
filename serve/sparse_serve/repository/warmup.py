"""What a model computes before it is called ready."""

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig

from sparse_serve.op_library import Device
from sparse_serve.repository.signature import TEXT_INPUT, Signature

WARMUP_TOKENS = 16
WARMUP_MASK = "attention_mask"
# Of a row, at most.
_SPECIAL_TOKENS = 8


@dataclass(frozen=True)
class Warmup:
    """What an instance computes before its model is called ready.

    Attributes:
        name: what the configuration calls it.
        rows: of the batch, all alike.
        tokens: of each row.
    """

    name: str
    rows: int
    tokens: int

    @property
    def mask_file(self) -> str:
        """The file with a row's mask, ones alone, for a graph of token ids."""
        return WARMUP_MASK if self.tokens == WARMUP_TOKENS else f"{WARMUP_MASK}_{self.tokens}"

    @property
    def text_file(self) -> str:
        """The file with a row's text, for a graph that takes text."""
        return f"text_{self.tokens}"


def warmups(device: Device, max_batch_size: int, max_length: int) -> list[Warmup]:
    """Return what instances on a device warm up with.

    On a GPU the longest row and the fullest batch too: kernels are loaded for them, and the arena takes the
    memory that they need, before a request does, or the model does not load.
    """
    short = Warmup("one_short_row", 1, WARMUP_TOKENS)
    if device == "cpu":
        return [short]
    return [short, Warmup("one_long_row", 1, max_length), Warmup("full_batch", max_batch_size, max_length)]


def add_warmup(config: ModelConfig, signature: Signature, warmup: Warmup, device: Device) -> None:
    """Rows of tokens, or texts: a mask of zeros would warm nothing up, so its ones come from a file.

    On a processor the text is empty; on a GPU it comes from a file too.
    """
    added = config.model_warmup.add(name=warmup.name, batch_size=warmup.rows)
    for tensor in signature.inputs:
        sample = added.inputs[tensor.name]
        sample.data_type = tensor.data_type
        sample.dims.extend(warmup.tokens if dim == -1 else dim for dim in tensor.dims)
        if tensor.name == WARMUP_MASK:
            sample.input_data_file = warmup.mask_file
        elif tensor.name == TEXT_INPUT and device == "cuda":
            sample.input_data_file = warmup.text_file
        else:
            sample.zero_data = True


def warmup_files(config: ModelConfig, signature: Signature, warming: Iterable[Warmup]) -> dict[str, bytes]:
    """Return the files, by name, that a model's configuration warms up with, as Triton reads them."""
    named = {
        sample.input_data_file for warmup in config.model_warmup for sample in warmup.inputs.values()
    } - {""}
    if signature.takes_text:
        found = {each.text_file: _text_of(each.tokens) for each in warming}
    else:
        found = {each.mask_file: struct.pack(f"<{each.tokens}q", *[1] * each.tokens) for each in warming}
    return {name: content for name, content in found.items() if name in named}


def _text_of(tokens: int) -> bytes:
    """Return a text of about so many tokens, and not more, behind its length in four bytes."""
    text = b"a " * max(1, tokens - _SPECIAL_TOKENS)
    return struct.pack("<I", len(text)) + text
