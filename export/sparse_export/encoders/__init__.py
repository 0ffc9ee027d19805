"""Encoders: their families, what is added to them, and checkpoints of them."""
