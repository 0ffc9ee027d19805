"""The model side of sparse-serve: attention mathematics, fine-tuning, the ONNX graph and its parity gate."""
