"""What this package's two backends have in common that run in Triton's Python stub: limits and counters.

The standard library and numpy are all that it needs.
"""
