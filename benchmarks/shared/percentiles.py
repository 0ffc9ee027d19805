"""Percentiles of times, as reports have them."""

from collections.abc import Sequence

import numpy as np

from sparse_serve.profiling.measure import PERCENTILE_METHOD


def percentile_ms(seconds: Sequence[float], percentile: float) -> float:
    return float(np.percentile(seconds, percentile, method=PERCENTILE_METHOD)) * 1000
