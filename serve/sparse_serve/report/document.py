"""The report of `profile`: its schema, and the file `report.json`.

`report.schema.json` beside this module is the JSON Schema of `Report`, for readers in other languages. What
is drawn, written and said comes from this record alone.
"""

import json
from collections.abc import Iterator
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from sparse_serve.environment import Cpu, Gpu, OpLibrary
from sparse_serve.errors import DataError, first_fault, in_brief
from sparse_serve.report.concluded import Expected, Growth, Noise, Pick, Quantity, Saving, Split, TradePoint
from sparse_serve.report.measured import (
    Absent,
    Capacity,
    Failure,
    Load,
    Measurement,
    Quality,
    Record,
    Share,
    Steady,
    Variant,
)

SCHEMA_NAME = "report.schema.json"
SCHEMA_VERSION: Literal[8] = 8


class Environment(Record):
    """Where the report was made; None where something is absent or not to be found out.

    `remote` is the address of a running server that was measured, of which nothing else can be seen. `image`
    is what containers were measured of, and its id; what is in it is its own.
    """

    created: datetime
    cpu: Cpu
    gpus: tuple[Gpu, ...] | None
    kernel: str
    transparent_huge_pages: str | None
    triton: str
    onnxruntime: str | None
    op_library: OpLibrary | None
    python: str
    package: str
    remote: str | None = None
    image: str | None = None


class Served(Record):
    """A model as it was exported, by `command`, and from `checkpoint` for this report where that is not None.

    `task` is the type of what it answers, "several_tasks" of several. `normalizer` makes attention weights:
    "softmax", or "sparsegen" at `lambd`, sparsegen-lin's λ. `pattern` names the pairs that may attend, such
    as "axis+local2" of AAA; None where all may. `takes_text` where the tokenizer is in the graph.
    """

    model: str
    version: int = Field(ge=1)
    layers: int = Field(ge=1)
    max_length: int = Field(ge=1)
    dtype: str
    task: str
    normalizer: str
    pattern: str | None
    lambd: float | None
    takes_text: bool
    command: str
    checkpoint: str | None


class Settings(Record):
    """What was asked for, and the settings of the servers.

    `rounds` is how many fresh servers each variant had. `memory` and `latency` say in words how the two were
    taken. `malloc_mmap_threshold_bytes` is the C library's: larger blocks are mapped and given back at once,
    so that resident memory follows live memory. `client_has_own_cores` tells whether the client was kept off
    the servers' cores.
    """

    lengths: tuple[int, ...]
    variants: tuple[Variant, ...]
    batch_size: int = Field(ge=1)
    concurrencies: tuple[int, ...]
    request_rates: tuple[float, ...]
    request_distribution: str
    rounds: int = Field(ge=1)
    measurement_interval_ms: float
    stability_percentage: float
    percentile: int | None
    max_trials: int
    intra_op_threads: int
    client_has_own_cores: bool
    memory_arena: bool
    malloc_mmap_threshold_bytes: int
    memory: str
    latency: str


class Inputs(Record):
    """True lengths in tokens of the rows of all requests, and what padding to their longest adds.

    `tasks` has each task's share of the texts, by its name; it is empty on a model of one task.
    """

    model: str
    length: int = Field(ge=1)
    batch: int = Field(ge=1)
    source: str
    requests: int = Field(ge=1)
    row_lengths: tuple[int, ...]
    mean_length: float
    tokens: float
    padding_share: Share
    tasks: dict[str, Share]


class Report(Record):
    """Everything `profile` found out. `partial` says why it ended early, None where it did not."""

    schema_version: Literal[8] = SCHEMA_VERSION
    partial: str | None
    environment: Environment
    settings: Settings
    served: tuple[Served, ...]
    inputs: tuple[Inputs, ...]
    measurements: tuple[Measurement, ...]
    steady: tuple[Steady, ...]
    expected: tuple[Expected, ...]
    capacity: tuple[Capacity, ...]
    absent: tuple[Absent, ...]
    failures: tuple[Failure, ...]
    quality: tuple[Quality, ...]
    noise: tuple[Noise, ...]
    savings: tuple[Saving, ...]
    splits: tuple[Split, ...]
    growth: tuple[Growth, ...]
    trade: tuple[TradePoint, ...]
    pick: Pick | None

    @model_validator(mode="after")
    def _measured_at_its_loads(self) -> Self:
        loads = self.loads()
        if not loads:
            raise ValueError("settings have neither concurrencies nor request_rates")
        for each in self.measurements:
            if each.load not in loads:
                raise ValueError(
                    f"{each.model} was measured at concurrency {each.concurrency} and request rate "
                    f"{each.request_rate}, which settings do not have"
                )
        return self

    def models(self) -> list[str]:
        """The models measured, in order."""
        return list(dict.fromkeys(measurement.model for measurement in self.measurements))

    @property
    def lightest(self) -> Load:
        """The lowest load measured, where most is said and drawn: the service without a queue."""
        if self.settings.concurrencies:
            return min(self.settings.concurrencies), None
        return None, min(self.settings.request_rates)

    def loads(self) -> list[Load]:
        """All loads, closed ones first, each kind from the lowest."""
        closed: list[Load] = [(number, None) for number in self.settings.concurrencies]
        return [*closed, *((None, rate) for rate in self.settings.request_rates)]

    def lengths(self) -> list[int]:
        """All lengths measured, ascending."""
        return sorted({measurement.length for measurement in self.measurements})

    @property
    def servers(self) -> tuple[int, int]:
        """Of how many servers, or visits to one, figures are: the fewest and the most of a measurement."""
        counts = [len(measurement.rounds) for measurement in self.measurements]
        return min(counts, default=0), max(counts, default=0)

    def longest(self, model: str) -> int:
        """The longest length at which a model was measured; 0 where it was not."""
        return max((m.length for m in self.measurements if m.model == model), default=0)

    def series(self, model: str, variant: Variant) -> list[Measurement]:
        """One variant's measurements at the lowest load, by length; empty where it is absent."""
        chosen = (m for m in self._of(model, variant) if m.load == self.lightest)
        return sorted(chosen, key=lambda measurement: measurement.length)

    def sweep(self, model: str, variant: Variant, length: int, *, is_open: bool = False) -> list[Measurement]:
        """One variant's measurements at one length along the load, requests in flight or a second."""
        loads = self.loads()
        chosen = (
            m
            for m in self._of(model, variant)
            if m.length == length and (m.request_rate is not None) == is_open
        )
        return sorted(chosen, key=lambda measurement: loads.index(measurement.load))

    def at(self, model: str, variant: Variant, length: int, load: Load) -> Measurement | None:
        """The measurement of a variant at a point, None where there is none."""
        return next((m for m in self._of(model, variant) if (m.length, m.load) == (length, load)), None)

    def _of(self, model: str, variant: Variant) -> Iterator[Measurement]:
        return (m for m in self.measurements if (m.model, m.variant) == (model, variant))

    def noise_of(self, model: str, quantity: Quantity, load: Load) -> float | None:
        """The noise of a quantity at a load, as a share; None where the model was not measured again."""
        found = (
            each.share
            for each in self.noise
            if (each.model, each.quantity, each.concurrency, each.request_rate) == (model, quantity, *load)
        )
        return next(found, None)

    def task_shares(self, model: str, length: int) -> dict[str, float]:
        """Each task's share of the texts that a model was sent at a length; empty on a model of one task."""
        found = (inputs.tasks for inputs in self.inputs if (inputs.model, inputs.length) == (model, length))
        return next(found, {})

    def metric_names(self) -> list[str]:
        """The task metrics measured, in order."""
        return list(dict.fromkeys(name for quality in self.quality for name in quality.metrics))

    def to_json(self) -> str:
        """Return the report as indented JSON with a final newline."""
        return self.model_dump_json(indent=2) + "\n"


def read_report(path: Path) -> Report:
    """Read a `report.json` of this schema.

    Raises:
        DataError: the file cannot be read, or is no report of this schema.
    """
    try:
        record: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"report {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"report {path} is no JSON: give the report.json of sparse-serve profile") from error
    version = record.get("schema_version") if isinstance(record, dict) else None
    if version != SCHEMA_VERSION:
        raise DataError(
            f"report {path} has schema version {in_brief(version)}, this package reads {SCHEMA_VERSION}: "
            "make it again with this version of sparse-serve profile"
        )
    try:
        return Report.model_validate(record)
    except ValidationError as error:
        raise DataError(f"report {path} is no report of profile: {first_fault(error)}") from error


def report_schema() -> str:
    """Return the JSON Schema of `Report` as it lies in the package."""
    return (files("sparse_serve") / "report" / SCHEMA_NAME).read_text(encoding="utf-8")


def generate_schema() -> str:
    """Return the JSON Schema made from `Report` itself."""
    schema = Report.model_json_schema(mode="serialization")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2) + "\n"
