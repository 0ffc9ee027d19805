"""The server: finding Triton, starting and stopping it, and the text backend, which it runs in Python."""
