"""Graphs opened in this process as a server opens them, with the op library or without it."""

from pathlib import Path
from typing import Any

import onnxruntime
from onnx import ModelProto

from sparse_serve.op_library import library_path


def open_graph(
    graph: Path | bytes | ModelProto, *, op_library: bool = True, **settings: Any
) -> onnxruntime.InferenceSession:
    """Open a graph on CPUs; `settings` are those of ONNX Runtime's `SessionOptions`."""
    options = onnxruntime.SessionOptions()
    for name, value in settings.items():
        setattr(options, name, value)
    if op_library:
        options.register_custom_ops_library(str(library_path()))
    if isinstance(graph, ModelProto):
        graph = graph.SerializeToString()
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
