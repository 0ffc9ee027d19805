"""What a function is: the text of a custom op, or of a helper, in standard ONNX operators."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from onnx import FunctionProto, parser

from sparse_serve.op_library import DOMAIN, OPSET_VERSION

# The exported graph's own helpers, never kernels: they live beside the ops, in a domain of their own.
GRAPH_DOMAIN = f"{DOMAIN}.graph"

Normalizer = Literal["softmax", "sparsegen"]


@dataclass(frozen=True)
class Function:
    """One function in ONNX's textual syntax.

    Attributes:
        domain: that of the op, or `GRAPH_DOMAIN`.
        name: the type of the nodes that call it.
        texts: its text; by normalizer where that changes it, as a body cannot choose by a string attribute.
    """

    domain: str
    name: str
    texts: str | Mapping[Normalizer, str]

    def text(self, normalizer: Normalizer) -> str:
        """Return the text for nodes of this normalizer."""
        return self.texts if isinstance(self.texts, str) else self.texts[normalizer]

    def parse(self, opset: int, normalizer: Normalizer) -> FunctionProto:
        """Return the function for a version of the standard operators."""
        text = self.text(normalizer)
        domains = [DOMAIN] + ([GRAPH_DOMAIN] if f"{GRAPH_DOMAIN}." in text else [])
        imports = ", ".join([f'"" : {opset}', *(f'"{name}" : {OPSET_VERSION}' for name in domains)])
        return parser.parse_function(f'<domain: "{self.domain}", opset_import: [{imports}]>{text}')
