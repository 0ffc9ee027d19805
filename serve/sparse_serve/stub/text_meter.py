"""What becomes of the texts that a graph reads, on Triton's metrics port."""

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparse_serve.stub import meter
from sparse_serve.stub.meter import Meter, each_value

READ = frozenset({"token_count", "truncated", "invalid_at"})
"""The outputs that say that a graph takes text, and what became of it."""

_TASK = "TASK"

Array = npt.NDArray[Any]


class _Run(NamedTuple):
    """What became of a run of N rows: arrays `(N, 1)`, the tasks by their place, -1 for what is none."""

    token_count: Array
    truncated: Array
    invalid_at: Array
    tasks: Sequence[int]
    seconds: float


class TextMeter:
    """Counts what a graph reads that takes text.

    A run is noted, and counted with the others when Triton is told: to count it takes as long as a tenth of
    a small graph.
    """

    def __init__(self, metric_family: Any, labels: Mapping[str, str], parameters: Mapping[str, str]) -> None:
        """Begin to publish what `Meter` does, of the tasks that the configuration's `parameters` name."""
        self.tasks = list(json.loads(parameters.get("tasks", "{}")))
        self.refuses_long = parameters.get("truncation") == "error"
        is_one = len(self.tasks) <= 1
        texts = meter.TEXTS if is_one else meter.TEXTS._replace(label="task", values=tuple(self.tasks))
        kinds = [texts, meter.TOKENS, meter.TRUNCATED, meter.REFUSED, meter.PADDING]
        kinds += [meter.SECONDS._replace(values=("graph",))]
        counters = [each for counter in kinds for each in each_value(counter)]
        self._places = {name.encode(): place for place, name in enumerate(self.tasks)}
        self._noted: list[_Run] = []
        self._lock = threading.Lock()
        self.meter = Meter(metric_family, labels, counters, self._count)
        self.publish = self.meter.publish

    def refuse(self, reason: str, texts: int) -> None:
        """Count so many texts as refused."""
        self.meter.add(meter.REFUSED, texts, reason=reason)

    def note(self, answer: Mapping[str, Array], feed: Mapping[str, Array], seconds: float) -> None:
        """Have the rows of a run counted: those that are answered, and those that are marked.

        Args:
            answer: the outputs of N rows, `READ` among them: `token_count` and `invalid_at` int32 and
                `truncated` bool, `(N, 1)`.
            feed: the inputs; `TASK` bytes `(N, 1)` where there are several tasks.
            seconds: that the run took.
        """
        tasks = [self._places.get(task, -1) for task in feed[_TASK][:, 0]] if _TASK in feed else ()
        run = _Run(answer["token_count"], answer["truncated"], answer["invalid_at"], tasks, seconds)
        with self._lock:
            self._noted.append(run)
        self.meter.wake()

    def _count(self) -> None:
        """Count all runs that were noted."""
        with self._lock:
            runs, self._noted = self._noted, []
        if not runs:
            return
        tokens = np.concatenate([run.token_count for run in runs])[:, 0]
        truncated = np.concatenate([run.truncated for run in runs])[:, 0]
        is_answered = np.concatenate([run.invalid_at for run in runs])[:, 0] < 0
        padded = sum(run.token_count.size * int(run.token_count.max(initial=0)) for run in runs)
        self.meter.add(meter.SECONDS, sum(run.seconds for run in runs), stage="graph")
        self.meter.add(meter.PADDING, padded - int(tokens.sum()))
        self.refuse("not_utf8", int((~is_answered).sum()))
        if self.refuses_long:
            self.refuse("too_long", int((is_answered & truncated).sum()))
            is_answered &= ~truncated
        if any(run.tasks for run in runs):
            places = np.concatenate([run.tasks for run in runs])
            for place, name in enumerate(self.tasks):
                self.meter.add(meter.TEXTS, int((is_answered & (places == place)).sum()), task=name)
            self.refuse("no_task", int((is_answered & (places < 0)).sum()))
            is_answered &= places >= 0
        else:
            self.meter.add(meter.TEXTS, int(is_answered.sum()))
        self.meter.add(meter.TOKENS, int(tokens[is_answered].sum()))
        self.meter.add(meter.TRUNCATED, int(truncated[is_answered].sum()))
