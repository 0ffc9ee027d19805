"""What `profile` is told: which entries, at which lengths and loads, on what texts, within what budget."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparse_serve.processor import usable_cores
from sparse_serve.profiling.measure import Arrivals, StabilityRule
from sparse_serve.profiling.windows import Distribution
from sparse_serve.report.measured import VARIANTS, Variant
from sparse_serve.report.trade import Budget

LENGTHS = (64, 128, 256, 512)
ROUNDS = 3
# Each is a thread, and a client of every variant's server.
MOST_CONCURRENT = 256

# An open loop's senders: more requests than that in flight are late, which the report says.
OPEN_SENDERS = 64


@dataclass(frozen=True)
class FromCheckpoint:
    """An entry that was exported to be profiled: from what, where it is, and the line that makes it again."""

    checkpoint: str
    repository: Path
    command: str


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """What to measure; times in ms, lengths, concurrencies and rates ascending, rates in requests a second.

    `exported` has those of the `names` that are not in `repository`. `threads` are those of every session,
    None for one per usable core that is not the client's; `client_cores` is how many processors are kept
    for the client alone. `inputs` are texts that are cut to the lengths, or to those of recorded traffic in
    `input_lengths`, `input_data` rows that are sent as they are. The columns are those of `evaluation` and
    `input_data`, None the task's own.
    `task_mix` has the share of each task's texts, a whole number, where entries have several tasks; empty for
    all in turn.
    `url` is the gRPC address of a running server to measure, whose certificate may be of the authorities in
    `ca_certificates`, None to start some: containers of `image` where one is named, else processes of this
    machine. `memory_limit` in bytes is what the longest text and largest
    batch are looked for within.
    """

    repository: Path
    names: Sequence[str]
    exported: Mapping[str, FromCheckpoint] = field(default_factory=dict)
    lengths: Sequence[int] = LENGTHS
    concurrencies: Sequence[int] = (1,)
    request_rates: Sequence[float] = ()
    request_distribution: Distribution = "poisson"
    variants: Sequence[Variant] = VARIANTS
    rounds: int = ROUNDS
    batch_size: int = 1
    measurement_interval_ms: float = 1000.0
    rule: StabilityRule = field(default_factory=StabilityRule)
    threads: int | None = None
    client_cores: int = 0
    inputs: Path | None = None
    input_data: Path | None = None
    input_lengths: Path | None = None
    evaluation: Path | None = None
    text_column: str | None = None
    text_pair_column: str | None = None
    label_column: str | None = None
    task_mix: Mapping[str, int] = field(default_factory=dict)
    url: str | None = None
    ca_certificates: Path | None = None
    image: str | None = None
    memory_limit: int | None = None
    budget: Budget = field(default_factory=Budget)

    @property
    def session_threads(self) -> int:
        """Threads of each ONNX Runtime session: without a number as many as a server would take itself."""
        return self.threads or usable_cores(numbers=self.server_cores)

    @property
    def server_cores(self) -> frozenset[int]:
        """The processors that servers run on: all that are not the client's alone."""
        cores = sorted(os.sched_getaffinity(0))
        return frozenset(cores[: len(cores) - self.client_cores])

    @property
    def arrivals(self) -> list[Arrivals]:
        """All loads, closed ones first."""
        closed = [Arrivals(concurrency=number) for number in self.concurrencies]
        return [*closed, *(Arrivals(request_rate=rate) for rate in self.request_rates)]

    @property
    def clients(self) -> int:
        """The most requests in flight that are needed."""
        return max([*self.concurrencies, *([OPEN_SENDERS] if self.request_rates else [])])
