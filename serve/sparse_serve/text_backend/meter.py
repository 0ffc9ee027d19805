"""Counters on Triton's metrics port, which cost an answer next to nothing."""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sparse_serve.text_backend.later import in_one_line

PREFIX = "sparse_serve"
PUBLISH_SECONDS = 0.25

_logger = logging.getLogger("sparse_serve")


class Counter(NamedTuple):
    """A counter `sparse_serve_NAME_total`, and one for each value of its label where it has one."""

    name: str
    description: str
    label: str | None = None
    values: tuple[str, ...] = ()


REASONS = ("too_large", "not_utf8", "too_long", "no_task", "malformed", "graph", "cancelled", "fault")
"""Why a text is refused: too many bytes, of it or its request; no UTF-8; more tokens than are read, of an
entry with `--truncation error`; a task that is none; inputs that do not fit the model; a graph that takes
no more at present; a client that waits no longer; a fault, of the graph too."""

TEXTS = Counter("texts", "Texts answered")
TOKENS = Counter("tokens", "Tokens of texts answered, special ones included")
TRUNCATED = Counter("truncated", "Texts answered of which tokens were left out")
REFUSED = Counter("refused", "Texts refused", "reason", REASONS)
PADDING = Counter("padding_saved", "Tokens that padding would have added to what was computed")
SECONDS = Counter("stage_seconds", "Seconds spent on texts", "stage")


class Meter:
    """Counts, and tells Triton a few times a second what has been added: telling takes longer than answering
    a short text may take.

    Instances of a model share their counters. Any thread may add.
    """

    def __init__(
        self,
        metric_family: Any,
        labels: Mapping[str, str],
        counters: Iterable[tuple[Counter, Mapping[str, str]]],
    ) -> None:
        """Begin to publish counters, each with labels of its own beside `labels`.

        `metric_family` is `pb_utils.MetricFamily`.
        """
        self._metrics: dict[tuple[str, frozenset[tuple[str, str]]], Any] = {}
        self._families: dict[str, Any] = {}  # a family must outlive its metrics
        for counter, own in counters:
            if counter.name not in self._families:
                self._families[counter.name] = metric_family(
                    name=f"{PREFIX}_{counter.name}_total",
                    description=counter.description,
                    kind=metric_family.COUNTER,
                )
            metric = self._families[counter.name].Metric(labels={**labels, **own})
            self._metrics[counter.name, frozenset(own.items())] = metric
        self._added: dict[tuple[str, frozenset[tuple[str, str]]], float] = defaultdict(float)
        self._lock = threading.Lock()
        self._is_any = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, counter: Counter, value: float, **labels: str) -> None:
        """Add to the counter of these labels."""
        with self._lock:
            self._added[counter.name, frozenset(labels.items())] += value
            if self._thread is None:
                thread = threading.Thread(target=self._publish_on, daemon=True)
                thread.start()
                self._thread = thread  # that has started: where none can be, the next call tries again
        if not self._is_any.is_set():  # which costs less than to set it again
            self._is_any.set()

    def publish(self) -> None:
        """Tell Triton now; what it cannot be told is told the next time."""
        with self._lock:
            added, self._added = self._added, defaultdict(float)
        for key, value in added.items():
            try:
                if value:
                    self._metrics[key].increment(value)
            except Exception as error:  # whatever Triton raises: nobody is here to catch it
                _logger.error("a counter could not be published (%s)", in_one_line(error))
                with self._lock:
                    self._added[key] += value

    def _publish_on(self) -> None:
        while True:
            self._is_any.wait()
            time.sleep(PUBLISH_SECONDS)
            self._is_any.clear()
            self.publish()


def each_value(counter: Counter) -> list[tuple[Counter, Mapping[str, str]]]:
    """Return a counter with each of its label's values."""
    if counter.label is None:
        return [(counter, {})]
    return [(counter, {counter.label: value}) for value in counter.values]
