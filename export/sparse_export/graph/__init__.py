"""From a torch model to its ONNX graph."""
