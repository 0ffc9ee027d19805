"""Giving a model the functions of what it calls."""

from collections.abc import Iterable
from typing import get_args

from onnx import FunctionProto, ModelProto, NodeProto, helper

from sparse_export.graph.functions.answers import ANSWERS
from sparse_export.graph.functions.axis_attention import AXIS_ATTENTION, AXIS_CROSS_ATTENTION
from sparse_export.graph.functions.axis_mask import AXIS_MASK
from sparse_export.graph.functions.axis_pairs import AXIS_PAIRS
from sparse_export.graph.functions.function import GRAPH_DOMAIN, Normalizer
from sparse_export.graph.functions.gelu import BIAS_GELU, GELU
from sparse_export.graph.functions.hidden_first import (
    AXIS_HIDDEN_FIRST,
    SOFTMAX_HIDDEN_FIRST,
    SPARSEGEN_HIDDEN_FIRST,
)
from sparse_export.graph.functions.padded_tokens import PADDED_TOKENS
from sparse_export.graph.functions.quantization import QUANTIZATION
from sparse_export.graph.functions.random_hash import RANDOM_HASH
from sparse_export.graph.functions.skip_layer_normalization import SKIP_LAYER_NORMALIZATION
from sparse_export.graph.functions.softmax_attention import SOFTMAX_ATTENTION, SOFTMAX_CROSS_ATTENTION
from sparse_export.graph.functions.softmax_or_zero import SOFTMAX_OR_ZERO
from sparse_export.graph.functions.sparsegen_attention import SPARSEGEN_ATTENTION, SPARSEGEN_CROSS_ATTENTION
from sparse_export.graph.functions.sparsegen_lin import SPARSEGEN_LIN
from sparse_export.graph.functions.token_ids import TOKEN_IDS
from sparse_serve.op_library import DOMAIN, OPSET_VERSION, TOKENIZERS
from sparse_serve.repository.signature import nested

_FUNCTIONS = {
    (function.domain, function.name): function
    for function in (
        SPARSEGEN_LIN,
        SPARSEGEN_ATTENTION,
        SPARSEGEN_CROSS_ATTENTION,
        SOFTMAX_ATTENTION,
        SOFTMAX_CROSS_ATTENTION,
        AXIS_MASK,
        AXIS_ATTENTION,
        AXIS_CROSS_ATTENTION,
        SPARSEGEN_HIDDEN_FIRST,
        SOFTMAX_HIDDEN_FIRST,
        AXIS_HIDDEN_FIRST,
        AXIS_PAIRS,
        RANDOM_HASH,
        SOFTMAX_OR_ZERO,
        PADDED_TOKENS,
        *QUANTIZATION,
        GELU,
        BIAS_GELU,
        SKIP_LAYER_NORMALIZATION,
        *TOKEN_IDS,
        *ANSWERS,
    )
}
_WITHOUT_FUNCTION = frozenset((DOMAIN, name) for name in TOKENIZERS)
_OPTIONAL_SUPPORT = frozenset((DOMAIN, name) for name in ("AxisAttention", "AxisCrossAttention"))
# The nodes whose function depends on their normalizer.
_OF_NORMALIZER = frozenset(key for key, function in _FUNCTIONS.items() if not isinstance(function.texts, str))


def op_function(op_type: str, opset: int, normalizer: Normalizer = "softmax") -> FunctionProto:
    """Return the standard-operator definition of a custom op, by its name in domain `ai.sparse_serve`.

    `normalizer` is that of the nodes: a function cannot choose by an attribute.
    """
    return _FUNCTIONS[DOMAIN, op_type].parse(opset, normalizer)


def attach_functions(model: ModelProto, opset: int) -> None:
    """Add to `model` the functions of every op of ours it uses, nested ones included, and their domains.

    A node of `AxisAttention` or `AxisCrossAttention` may leave its second output out; the model says so by an
    empty name afterwards, as ONNX Runtime refuses a function with more outputs than its node.

    Raises:
        ValueError: nodes of axis attention in one model differ in `normalizer`, or it is unknown.
    """
    normalizer = _normalizer_of(model)
    for node in nested(model.graph.node):
        if (node.domain, node.op_type) in _OPTIONAL_SUPPORT and len(node.output) == 1:
            node.output.append("")
    pending = _ours(model.graph.node)
    domains = {domain for domain, _ in pending}
    attached: dict[tuple[str, str], FunctionProto] = {}
    while pending:
        key = pending.pop()
        if key not in attached and key not in _WITHOUT_FUNCTION:
            attached[key] = _FUNCTIONS[key].parse(opset, normalizer)
            pending += _ours(attached[key].node)
    del model.functions[:]
    model.functions.extend(attached[key] for key in sorted(attached))
    other = [entry for entry in model.opset_import if entry.domain not in (DOMAIN, GRAPH_DOMAIN)]
    del model.opset_import[:]
    model.opset_import.extend(other)
    for domain in sorted(domains.union(domain for domain, _ in attached)):
        model.opset_import.append(helper.make_opsetid(domain, OPSET_VERSION))


def _normalizer_of(model: ModelProto) -> Normalizer:
    known: tuple[Normalizer, ...] = get_args(Normalizer)
    found = {
        next((a.s.decode() for a in node.attribute if a.name == "normalizer"), "softmax")
        for node in nested(model.graph.node)
        if (node.domain, node.op_type) in _OF_NORMALIZER
    } or {"softmax"}
    if len(found) > 1 or not found <= set(known):
        raise ValueError(
            f"the model's nodes of axis attention have normalizers {sorted(found)}; accepted: one of "
            f"{sorted(known)} for all of them"
        )
    return next(normalizer for normalizer in known if normalizer in found)


def _ours(nodes: Iterable[NodeProto]) -> list[tuple[str, str]]:
    """Return domain and name of every op of ours that the nodes, their subgraphs included, call."""
    return [(each.domain, each.op_type) for each in nested(nodes) if each.domain in (DOMAIN, GRAPH_DOMAIN)]
