"""What a graph measures of its attention, besides its answer: `rho`, and with a pattern two more.

Each is an output of `NAME_model`, FP32 [-1, layers], computed only when it is asked for, and with `--metrics`
a counter on Triton's metrics port. Standard library only: The text backend has this module too.
"""

from typing import NamedTuple


class Measure(NamedTuple):
    """An output of the graph; `meaning` says what of a text it is, `with_pattern` that not all have it."""

    name: str
    meaning: str
    with_pattern: bool = False


MEASURES = (
    Measure("rho", "the share of attention weights that were exactly zero"),
    Measure("rows_on", "the share of tokens whose row of attention was on", with_pattern=True),
    Measure("columns_on", "the share of tokens whose column of attention was on", with_pattern=True),
)

RHO = MEASURES[0].name
AXES = tuple(measure.name for measure in MEASURES if measure.with_pattern)
"""What the graphs of attention with a pattern measure besides `rho`."""
