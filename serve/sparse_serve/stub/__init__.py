"""What this package's text backend alone needs, which runs in Triton's Python stub: limits and counters.

The standard library and numpy are all that it needs.
"""
