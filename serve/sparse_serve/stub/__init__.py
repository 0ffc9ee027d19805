"""What this package's backends need that run in Triton's Python stub: limits, runs, turns and counters.

The standard library and numpy are all that it needs.
"""
