"""The server: finding Triton, starting and stopping it, and the two models it runs in Python."""
