"""Linear layers in 8-bit integers, each row of their input with a scale of its own.

A weight `(K, N)` has a scale for each column, found once; a row of the input one for itself, found as it
comes. So no row sees another: a text is answered the same to the bit in any company, where a scale for a
whole batch would make one client's text change another's answer. The product of unsigned rows and signed
weights is ONNX's `MatMulInteger`; what stands before and behind it are ops of ours
(`functions/quantization.py`). Embeddings are integers with a scale for each row of the table. Attention,
norms, and layers too small to gain stay in float32.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from sparse_export.graph.functions import attach_functions
from sparse_export.graph.rounding import rounded
from sparse_serve.op_library import DOMAIN
from sparse_serve.repository.manifest import TargetCpu

Array = npt.NDArray[Any]

# Smaller layers, the head's own, cost nothing and decide alone.
MIN_INPUTS, MIN_OUTPUTS = 64, 16
MIN_TABLE = 4096
_ZERO_POINT = 128
# The magnitude that a column's largest weight becomes. Processors without VNNI add the products of two pairs
# in 16 bits, which hold 2 · 255 · 64.
_LARGEST: Mapping[TargetCpu, int] = {"vnni": 127, "any": 63}


@dataclass(frozen=True)
class _Linear:
    """A linear layer as the exporter writes it, and what is computed right behind it.

    Attributes:
        node: `MatMul` or `Gemm`, by a constant.
        weight: that constant's name.
        is_transposed: whether it lies as `(N, K)`, not `(K, N)`.
        bias: name of the constant that is added; None where there is none.
        gelu: the node that takes its output alone, if that is GELU, or adds the bias as well.
        output: name of what is handed on without GELU.
    """

    node: NodeProto
    weight: str
    is_transposed: bool
    bias: str | None
    gelu: NodeProto | None
    output: str


def quantized_graph(
    model: ModelProto, target_cpu: TargetCpu, moments: Mapping[str, Array] | None = None
) -> ModelProto:
    """Return a graph with its linear layers, and its embeddings, in 8-bit integers.

    Args:
        model: in float32, as `export_graph` gives it; it becomes part of what is returned.
        target_cpu: what the processors have that run it; weights have 7 bits for "any".
        moments: of what linear layers read, by the names of `linear_inputs`, `(K, K)` each: weights are
            rounded by them (`rounding.rounded`). None: to the nearest.
    """
    _Quantizer(model, _LARGEST[target_cpu], moments).run()
    (opset,) = (entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    attach_functions(model, opset)
    onnx.checker.check_model(model)
    return model


def linear_inputs(model: ModelProto) -> list[str]:
    """Return the names of what the layers read that `quantized_graph` has in integers."""
    linears = _Quantizer(model, _LARGEST["vnni"]).linears.values()
    return list(dict.fromkeys(linear.node.input[0] for linear in linears))


def quantized_columns(weight: Array, largest: int, moments: Array | None = None) -> tuple[Array, Array]:
    """Return a weight `(K, N)` float32 as `(K, N)` int8 and the scale of each column, `(N,)` float32.

    Where the moments of its inputs are given, `(K, K)`, it is rounded by them, else to the nearest.
    """
    scale = np.abs(weight).max(0) / np.float32(largest)
    scale[scale == 0] = 1
    if moments is not None:
        return rounded(weight, scale, largest, moments), scale
    return np.rint(weight / scale).astype(np.int8), scale


@dataclass
class _Quantizer:
    model: ModelProto
    largest: int
    moments: Mapping[str, Array] | None = None
    nodes: list[NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    rows: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Of values that linear layers read: the names of their quantized rows and of these rows' scales."""

    def __post_init__(self) -> None:
        graph = self.model.graph
        self.initializers = {each.name: each for each in graph.initializer}
        self.given = list(graph.node)
        self.readers: dict[str, list[NodeProto]] = {}
        for node in self.given:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.outputs = {value.name for value in graph.output}
        found = (self._linear(node) for node in self.given)
        self.linears = {id(linear.node): linear for linear in found if linear is not None}

    def run(self) -> None:
        graph = self.model.graph
        absorbed: set[int] = set()
        for node in self.given:
            if id(node) in absorbed:
                continue
            linear = self.linears.get(id(node))
            if linear is not None:
                absorbed.update(id(each) for each in self._write(linear))
            elif self._is_embedding(node):
                self._write_embedding(node)
            else:
                self.nodes.append(node)
        ordered = [NodeProto.FromString(node.SerializeToString()) for node in self.nodes]
        del graph.node[:]
        graph.node.extend(ordered)
        graph.initializer.extend(
            numpy_helper.from_array(value, name) for name, value in self.constants.items()
        )
        self._drop_unread()

    def _linear(self, node: NodeProto) -> _Linear | None:
        """Return the layer that a node begins, if it is one that gains."""
        if node.domain or node.op_type not in ("MatMul", "Gemm") or node.input[1] not in self.initializers:
            return None
        weight = self.initializers[node.input[1]]
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        is_transposed = bool(attributes.get("transB", 0))
        if len(weight.dims) != 2 or weight.data_type != TensorProto.FLOAT:
            return None
        inputs, outputs = reversed(weight.dims) if is_transposed else weight.dims
        scaled = attributes.get("alpha", 1.0) != 1 or attributes.get("beta", 1.0) != 1
        if inputs < MIN_INPUTS or outputs < MIN_OUTPUTS or scaled or attributes.get("transA", 0):
            return None
        if node.op_type == "Gemm":
            bias, last = (node.input[2] if len(node.input) > 2 else None), node
            if bias is not None and not self._is_vector(bias, outputs):
                return None
        else:
            bias, last = self._added(node, outputs)
        gelu = self._only_reader(last, "Gelu")
        fused = self._only_reader(node, "BiasGelu", DOMAIN)
        if bias is None and fused is not None:
            bias, gelu = fused.input[1], fused
        return _Linear(node, weight.name, is_transposed, bias, gelu, last.output[0])

    def _added(self, node: NodeProto, outputs: int) -> tuple[str | None, NodeProto]:
        """Return the constant that is added right behind a product, and the node whose output the sum is."""
        added = self._only_reader(node, "Add")
        others = [] if added is None else [name for name in added.input if name != node.output[0]]
        if added is None or len(others) != 1 or not self._is_vector(others[0], outputs):
            return None, node
        return others[0], added

    def _is_vector(self, name: str, size: int) -> bool:
        return name in self.initializers and [*self.initializers[name].dims] == [size]

    def _only_reader(self, node: NodeProto, op: str, domain: str = "") -> NodeProto | None:
        """Return what reads a node's output, if that is one node, of the type `op`, and nothing else does."""
        (output,) = node.output
        readers = self.readers.get(output, [])
        is_it = len(readers) == 1 and (readers[0].domain, readers[0].op_type) == (domain, op)
        return readers[0] if is_it and output not in self.outputs else None

    def _write(self, linear: _Linear) -> Iterable[NodeProto]:
        """Write a layer; return the nodes behind it that it stands for as well."""
        quantized, scale = self._rows_of(linear.node.input[0])
        weight, column_scale = self._weight(linear)
        output = linear.output
        products = f"{output}.products"
        zero_point = self._constant("int8.zero_point", np.array(_ZERO_POINT, np.uint8))
        self.nodes.append(helper.make_node("MatMulInteger", [quantized, weight, zero_point], [products]))
        read = [products, scale, column_scale]
        if linear.gelu is not None and self._is_read_by_rows(linear.gelu):
            activated = linear.gelu.output[0]
            self.rows[activated] = f"{activated}.quantized", f"{activated}.scale"
            self._add("RequantizeGelu", [*read, self._bias(linear)], self.rows[activated])
            return [*self._between(linear), linear.gelu]
        is_added_later = linear.gelu is not None and linear.gelu.op_type == "BiasGelu"
        bias = self._no_bias(linear) if is_added_later else self._bias(linear)
        self._add("DequantizeRows", [*read, bias], [output])
        return self._between(linear)

    def _between(self, linear: _Linear) -> list[NodeProto]:
        """Return the node that adds the bias, where it is one of its own."""
        return self.readers[linear.node.output[0]] if linear.output != linear.node.output[0] else []

    def _is_read_by_rows(self, node: NodeProto) -> bool:
        """Return whether only linear layers read a node's output, as what they multiply."""
        (output,) = node.output
        readers = self.readers.get(output, [])
        is_left = [id(each) in self.linears and each.input[0] == output for each in readers]
        exact = not any(each.name == "approximate" and each.s != b"none" for each in node.attribute)
        return bool(readers) and all(is_left) and exact and output not in self.outputs

    def _rows_of(self, name: str) -> tuple[str, str]:
        """Return the names of a value's quantized rows and of their scales, made where a first layer asks."""
        if name not in self.rows:
            self.rows[name] = f"{name}.quantized", f"{name}.scale"
            self._add("QuantizeRows", [name], self.rows[name])
        return self.rows[name]

    def _weight(self, linear: _Linear) -> tuple[str, str]:
        names = f"{linear.weight}.int8", f"{linear.weight}.scale"
        if names[0] not in self.constants:
            weight = numpy_helper.to_array(self.initializers[linear.weight])
            values = quantized_columns(
                weight.T if linear.is_transposed else weight, self.largest, self._moments(linear.weight)
            )
            for name, value in zip(names, values, strict=True):
                self._constant(name, np.ascontiguousarray(value))
        return names

    def _moments(self, weight: str) -> Array | None:
        """Return the moments of all that is multiplied by a weight; None where they are not known."""
        if self.moments is None:
            return None
        read = [each.node.input[0] for each in self.linears.values() if each.weight == weight]
        moments: Array = np.sum([self.moments[name] for name in read], axis=0)
        return moments

    def _bias(self, linear: _Linear) -> str:
        return self._no_bias(linear) if linear.bias is None else linear.bias

    def _no_bias(self, linear: _Linear) -> str:
        outputs = len(self.constants[f"{linear.weight}.scale"])
        return self._constant(f"int8.no_bias_{outputs}", np.zeros(outputs, np.float32))

    def _is_embedding(self, node: NodeProto) -> bool:
        if node.domain or node.op_type != "Gather" or node.input[0] not in self.initializers:
            return False
        table = self.initializers[node.input[0]]
        is_by_row = not any(each.name == "axis" and each.i for each in node.attribute)
        is_large = len(table.dims) == 2 and np.prod(table.dims) >= MIN_TABLE
        return is_by_row and is_large and table.data_type == TensorProto.FLOAT

    def _write_embedding(self, node: NodeProto) -> None:
        table, ids = node.input
        (output,) = node.output
        names = f"{table}.int8", f"{table}.scale"
        if names[0] not in self.constants:
            rows, scale = quantized_columns(numpy_helper.to_array(self.initializers[table]).T, 127)
            self._constant(names[0], np.ascontiguousarray(rows.T))
            self._constant(names[1], scale[:, None])
        integers, numbers, scales = (f"{output}.{each}" for each in ("int8", "numbers", "scale"))
        self.nodes += [
            helper.make_node("Gather", [names[0], ids], [integers]),
            helper.make_node("Cast", [integers], [numbers], to=TensorProto.FLOAT),
            helper.make_node("Gather", [names[1], ids], [scales]),
            helper.make_node("Mul", [numbers, scales], [output]),
        ]

    def _constant(self, name: str, value: Array) -> str:
        self.constants.setdefault(name, value)
        return name

    def _add(self, op: str, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self.nodes.append(helper.make_node(op, inputs, outputs, domain=DOMAIN))

    def _drop_unread(self) -> None:
        """Drop the constants that nothing reads any more, and what was said of values that are gone."""
        graph = self.model.graph
        read = {name for node in graph.node for name in node.input} | self.outputs
        kept = [each for each in graph.initializer if each.name in read]
        made = {name for node in graph.node for name in node.output}
        values = [each for each in graph.value_info if each.name in made]
        for field_name, items in (("initializer", kept), ("value_info", values)):
            copies = [type(each).FromString(each.SerializeToString()) for each in items]
            graph.ClearField(field_name)
            getattr(graph, field_name).extend(copies)
