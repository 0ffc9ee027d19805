"""A checkpoint's tokenizer as one ONNX node, whose tables say all that the tokenizer does."""
