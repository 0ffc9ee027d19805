"""Nodes in front of a graph and behind it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from sparse_export.graph.functions import GRAPH_DOMAIN, attach_functions


@dataclass
class Nodes:
    """Nodes in order, and their constants, under names of their own.

    Attributes:
        prefix: of the names.
        nodes: the nodes.
        constants: what they read beside values of the graph.
    """

    prefix: str
    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)

    def add(self, op: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node of one output, and return its name."""
        (name,) = self._add(op, inputs, [output or f"{self.prefix}.{op}.{len(self.nodes)}"], **attributes)
        return name

    def call(self, function: str, *inputs: str, outputs: Iterable[str], **attributes: Any) -> list[str]:
        """Add a call of one of the graph's own functions, and return the names of its outputs."""
        names = [f"{self.prefix}.{each}.{len(self.nodes)}" for each in outputs]
        return self._add(function, inputs, names, domain=GRAPH_DOMAIN, **attributes)

    def constant(self, name: str, value: npt.NDArray[Any]) -> str:
        """Add a constant, and return its name."""
        unique = f"{self.prefix}.{name}.{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(value, unique))
        return unique

    def _add(self, op: str, inputs: Iterable[str], outputs: list[str], **attributes: Any) -> list[str]:
        self.nodes.append(helper.make_node(op, [*inputs], outputs, **attributes))
        return outputs


class Middle:
    """A model whose graph becomes the middle of a longer one."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.inputs: dict[str, ValueInfoProto] = {each.name: each for each in model.graph.input}
        self.outputs: dict[str, ValueInfoProto] = {each.name: each for each in model.graph.output}

    def rename(self, name: str, other: str) -> None:
        """Call a value otherwise."""
        for node in self.model.graph.node:
            node.input[:] = [other if each == name else each for each in node.input]
            node.output[:] = [other if each == name else each for each in node.output]

    def fail_rows(self, after: Nodes, answer: str, is_bad: str) -> None:
        """Have nodes behind the graph make the answer NaN in the rows that `is_bad` says."""
        of_rows = f"{answer}.of_rows"
        self.rename(answer, of_rows)
        nan = after.constant("nan", np.array(math.nan, np.float32))
        after.add("Where", is_bad, nan, of_rows, output=answer)

    def between(
        self,
        before: Nodes,
        after: Nodes,
        inputs: Iterable[ValueInfoProto],
        outputs: Iterable[ValueInfoProto],
    ) -> ModelProto:
        """Return the model with nodes before and behind its own, and their inputs and outputs."""
        graph = self.model.graph
        own = [NodeProto.FromString(node.SerializeToString()) for node in graph.node]
        taken, told = (
            [ValueInfoProto.FromString(value.SerializeToString()) for value in values]
            for values in (inputs, outputs)
        )
        for name in ("node", "input", "output"):
            graph.ClearField(name)
        graph.node.extend([*before.nodes, *own, *after.nodes])
        graph.initializer.extend([*before.constants, *after.constants])
        graph.input.extend(taken)
        graph.output.extend(told)
        (opset,) = (entry.version for entry in self.model.opset_import if entry.domain in ("", "ai.onnx"))
        attach_functions(self.model, opset)
        onnx.checker.check_model(self.model)
        return self.model
