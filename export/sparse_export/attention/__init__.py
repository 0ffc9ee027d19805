"""The mathematics of sparse attention: sparsegen-lin, patterns, and how they are learned. No ONNX here."""
