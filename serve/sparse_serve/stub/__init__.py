"""What this package's text backend needs, which runs in Triton's Python stub: limits, runs and counters.

The standard library and numpy are all that it needs.
"""
