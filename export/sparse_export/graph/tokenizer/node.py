"""The ONNX node of a tokenizer."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from sparse_export.graph.tokenizer.tables import Table, TokenizerTables
from sparse_serve.errors import OptionError, UnsupportedTokenizerError
from sparse_serve.op_library import DOMAIN, OPSET_VERSION
from sparse_serve.repository.signature import TEXT_INPUT, TEXT_PAIR_INPUT
from sparse_serve.tasks.encoding import Truncation

_VALUES: Mapping[str, tuple[int, Sequence[str | int]]] = MappingProxyType(
    {
        "input_ids": (TensorProto.INT64, ("tokens",)),
        "token_type_ids": (TensorProto.INT64, ("tokens",)),
        "positions": (TensorProto.INT64, ("tokens",)),
        "cu_seqlens": (TensorProto.INT32, ("borders",)),
        "token_count": (TensorProto.INT32, ("batch", 1)),
        "truncated": (TensorProto.BOOL, ("batch", 1)),
        "invalid_at": (TensorProto.INT32, ("batch", 1)),
    }
)

_OFFSETS: Mapping[str, tuple[int, Sequence[str | int]]] = MappingProxyType(
    {"offsets": (TensorProto.INT32, ("tokens", 2))}
)

OUTPUTS = tuple(_VALUES)
"""What a tokenizer node answers, in order; behind these `offsets`, where they are asked for."""


def tokenizer_node(
    tables: TokenizerTables,
    max_length: int,
    text: str,
    pair: str | None = None,
    single: str | None = None,
    *,
    truncation: Truncation = "right",
    prefix: str = "",
    offsets: bool = False,
) -> tuple[NodeProto, list[TensorProto]]:
    """Return the node from `text`, and `pair` where rows have two, to `OUTPUTS`, and its initializers.

    Args:
        tables: of the tokenizer.
        max_length: tokens of a row, special ones included, beyond which it is cut.
        text: `(B,)` or `(B, 1)` strings, as is `pair`.
        pair: the second text of each row.
        single: `(B,)` or `(B, 1)` bool, beside `pair`: rows of which it is not read.
        truncation: "left" for rows that keep their last tokens.
        prefix: of the names of outputs and initializers.
        offsets: answer where in its text each token was, too.

    Raises:
        OptionError: `max_length` has no room for the special tokens of a pair.
        UnsupportedTokenizerError: offsets are asked for, and the op cannot answer them as the tokenizer does.
    """
    if max_length < tables.special_tokens:
        raise OptionError(
            f"max_length {max_length} is out of range: a pair has {tables.special_tokens} special tokens; "
            f"give {tables.special_tokens} or more"
        )
    attributes = tables.attributes
    if offsets:
        if isinstance(tables.offsets, UnsupportedTokenizerError):
            raise tables.offsets
        attributes = attributes | tables.offsets
    if truncation == "left":
        attributes = attributes | {"truncation_side": truncation}
    names = {name: f"{prefix}{name}" for name in tables.tables}
    node = helper.make_node(
        tables.op,
        [text, *names.values(), *(each for each in (pair, single) if each is not None)],
        [f"{prefix}{name}" for name in (*OUTPUTS, *(_OFFSETS if offsets else ()))],
        name=f"{prefix}{tables.op}",
        domain=DOMAIN,
        max_length=max_length,
        **attributes,
    )
    return node, [_constant(name, tables.tables[table]) for table, name in names.items()]


def tokenizer_model(
    tables: TokenizerTables,
    max_length: int,
    opset: int,
    ir_version: int,
    *,
    truncation: Truncation = "right",
    pairs: bool = False,
    singles: bool = False,
    offsets: bool = False,
) -> ModelProto:
    """Return a tokenizer alone: from `TEXT`, for pairs `TEXT_PAIR`, for singles among them `SINGLE`.

    Args and errors are those of `tokenizer_node`, and what the file is written for.
    """
    names = [TEXT_INPUT, TEXT_PAIR_INPUT][: 1 + pairs]
    node, constants = tokenizer_node(
        tables, max_length, *names, *(["SINGLE"] * singles), truncation=truncation, offsets=offsets
    )
    kinds = [*((name, TensorProto.STRING) for name in names), *([("SINGLE", TensorProto.BOOL)] * singles)]
    inputs = [helper.make_tensor_value_info(name, kind, ("batch", 1)) for name, kind in kinds]
    graph = helper.make_graph([node], "tokenizer", inputs, output_values(offsets=offsets), constants)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, OPSET_VERSION)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


def output_values(prefix: str = "", *, offsets: bool = False) -> list[ValueInfoProto]:
    """Return type and shape of each of `OUTPUTS`, and of `offsets` where they are asked for."""
    return [
        helper.make_tensor_value_info(f"{prefix}{name}", kind, shape)
        for name, (kind, shape) in (*_VALUES.items(), *(_OFFSETS.items() if offsets else ()))
    ]


def _constant(name: str, table: Table) -> TensorProto:
    array = np.array(table, dtype=object) if isinstance(table, Sequence) else table
    return numpy_helper.from_array(array, name)
