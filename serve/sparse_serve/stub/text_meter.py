"""What becomes of the texts that a graph reads, on Triton's metrics port."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sparse_serve.stub import meter
from sparse_serve.stub.meter import Meter, each_value

READ = frozenset({"token_count", "truncated", "invalid_at"})
"""The outputs that say that a graph takes text, and what became of it."""

_TASK = "TASK"


class TextMeter:
    """Counts what a graph reads that takes text."""

    def __init__(self, metric_family: Any, labels: Mapping[str, str], parameters: Mapping[str, str]) -> None:
        """Begin to publish what `Meter` does, of the tasks that the configuration's `parameters` name."""
        self.tasks = list(json.loads(parameters.get("tasks", "{}")))
        self.refuses_long = parameters.get("truncation") == "error"
        is_one = len(self.tasks) <= 1
        texts = meter.TEXTS if is_one else meter.TEXTS._replace(label="task", values=tuple(self.tasks))
        kinds = [texts, meter.TOKENS, meter.TRUNCATED, meter.REFUSED, meter.PADDING]
        kinds += [meter.SECONDS._replace(values=("graph",))]
        counters = [each for counter in kinds for each in each_value(counter)]
        self.meter = Meter(metric_family, labels, counters)
        self.publish = self.meter.publish

    def refuse(self, reason: str, texts: int) -> None:
        """Count so many texts as refused."""
        self.meter.add(meter.REFUSED, texts, reason=reason)

    def count(
        self, answer: Mapping[str, npt.NDArray[Any]], feed: Mapping[str, npt.NDArray[Any]], seconds: float
    ) -> None:
        """Count the rows of a run: those that are answered, and those that are marked.

        Args:
            answer: the outputs of N rows, `READ` among them: `token_count` and `invalid_at` int32 and
                `truncated` bool, `(N, 1)`.
            feed: the inputs; `TASK` bytes `(N, 1)` where there are several tasks.
            seconds: that the run took.
        """
        tokens, truncated = answer["token_count"][:, 0], answer["truncated"][:, 0]
        is_answered = answer["invalid_at"][:, 0] < 0
        self.refuse("not_utf8", int((~is_answered).sum()))
        if self.refuses_long:
            self.refuse("too_long", int((is_answered & truncated).sum()))
            is_answered &= ~truncated
        self.meter.add(meter.SECONDS, seconds, stage="graph")
        self.meter.add(meter.PADDING, int(len(tokens) * tokens.max(initial=0) - tokens.sum()))
        if _TASK in feed:
            named = [task.decode(errors="replace") for task in feed[_TASK][:, 0]]
            for name in self.tasks:
                is_of = is_answered & np.array([each == name for each in named])
                self.meter.add(meter.TEXTS, int(is_of.sum()), task=name)
            is_task = np.array([each in self.tasks for each in named])
            self.refuse("no_task", int((is_answered & ~is_task).sum()))
            is_answered &= is_task
        else:
            self.meter.add(meter.TEXTS, int(is_answered.sum()))
        self.meter.add(meter.TOKENS, int(tokens[is_answered].sum()))
        self.meter.add(meter.TRUNCATED, int(truncated[is_answered].sum()))
