"""Rounds of fresh servers that stand in for real ones: what fails, what is kept, and Ctrl-C."""

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest
import typer
from sample_report import MIB
from tiny_entry import TAGS

from command_line import exit_status, outcome
from sparse_serve.cli import app
from sparse_serve.cli import profile as profile_command
from sparse_serve.cli.checkpoints import is_checkpoint
from sparse_serve.cli.commands import CommandGroup
from sparse_serve.cli.options import Program
from sparse_serve.data import read_texts
from sparse_serve.errors import DataError, RepositoryError, ServerError, SparseServeError
from sparse_serve.processor import usable_cores
from sparse_serve.profiling import options as options_module
from sparse_serve.profiling import record
from sparse_serve.profiling import run as run_module
from sparse_serve.profiling import summary as summary_module
from sparse_serve.profiling.load import Answer
from sparse_serve.profiling.measure import LatencyReading, measure_latencies
from sparse_serve.profiling.memory import MemoryReading, ProcessReading
from sparse_serve.profiling.options import ProfileOptions
from sparse_serve.profiling.profile import profile
from sparse_serve.profiling.subjects import SteadyReading, Subject
from sparse_serve.profiling.windows import GpuSample, ServerTimes, Timing
from sparse_serve.profiling.workload import (
    MOST_OWN_REQUESTS,
    Batch,
    Tokens,
    read_token_counts,
    recorded_workload,
)
from sparse_serve.report.document import Report, read_report
from sparse_serve.report.doubts import read_doubts
from sparse_serve.report.measured import Variant
from sparse_serve.report.sentences import findings
from sparse_serve.repository.entries import TOKENIZER_NAME, read_entry
from sparse_serve.repository.writing import EntrySpec, write_entry

MS = 1_000_000


@dataclass
class Script:
    """What the servers do: `memory` or `request` is called with the variant and its server's number.

    `takes_ns` says how long a request takes, of a server's number and what it is sent; `now` passes with it.
    `order` has the numbers of the requests that each server was sent.
    """

    memory: Callable[[Variant, int], None] = lambda _variant, _server: None
    start: Callable[[Variant, int], None] = lambda _variant, _server: None
    request: Callable[[Variant, int], None] = lambda _variant, _server: None
    takes_ns: Callable[[int, Batch], int] = lambda _server, _batch: MS
    has_measures: bool = False
    now: int = 0
    order: dict[tuple[Variant, int], list[int]] = field(default_factory=dict)


@dataclass
class FakeLoad:
    """Answers in a millisecond, as its script lets it."""

    script: Script
    variant: Variant
    server: int
    sent: int = 0
    output: str = "logits"
    outputs: Sequence[str] = ()
    server_version: str = "2.51.0"
    _requests: Iterator[tuple[int, Batch]] = field(default_factory=lambda: iter(()))

    def repeat(self, batches: Sequence[Batch], order: Sequence[int]) -> None:
        self._requests = cycle([(number, batches[number]) for number in order])

    def request(self) -> Timing:
        number, batch = next(self._requests)
        self.script.request(self.variant, self.server)
        self.sent += 1
        self.script.order.setdefault((self.variant, self.server), []).append(number)
        took = self.script.takes_ns(self.server, batch)
        self.script.now += took
        return Timing(1000, took, 2000, batch=number)

    def send(self, batch: Batch, outputs: Sequence[str]) -> Answer:
        return Answer({}, self.request())

    def server_times(self, at_least: int = 0) -> ServerTimes:
        return ServerTimes(
            self.sent, 0, 0, 900_000 * self.sent, 0, processor_ns=MS * self.sent, energy_mj=5 * self.sent
        )

    def gpu_sample(self) -> GpuSample | None:
        return GpuSample(0.5, 1410.0, None)


@dataclass
class FakeServed:
    """A server of one subject."""

    subject: Subject
    loads: Sequence[FakeLoad]
    for_memory: bool
    has_measures: bool = False
    watch: None = None

    @property
    def load(self) -> FakeLoad:
        return self.loads[0]

    def repeat(self, batches: Sequence[Batch], order: Sequence[int]) -> None:
        for load in self.loads:
            load.repeat(batches, order)

    def process_ids(self) -> list[int]:
        return []

    def why(self, error: Exception) -> str:
        return f"Triton was ended by SIGKILL: {error}"

    def steady(self) -> SteadyReading:
        process = ProcessReading("tritonserver", 50 * MIB, 60 * MIB, 70 * MIB)
        return SteadyReading(40 * MIB, (process,), None, 300 * MIB)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    script = Script()
    numbers: dict[tuple[Variant, bool], Iterator[int]] = {}

    @contextmanager
    def serving(subject: Subject, _place: object, clients: int, *, for_memory: bool) -> Iterator[FakeServed]:
        server = next(numbers.setdefault((subject.variant, for_memory), count(1)))
        if not for_memory:
            script.start(subject.variant, server)
        loads = [FakeLoad(script, subject.variant, server) for _ in range(clients)]
        served = FakeServed(subject, loads, for_memory, script.has_measures)
        if for_memory:
            script.memory(subject.variant, server)
        yield served

    def measure_memory(
        _pids: object, _warm_up: object, requests: Mapping[int, object], _watch: None
    ) -> dict[int, MemoryReading]:
        return {key: MemoryReading(100 * MIB, (MIB, 2 * MIB, 3 * MIB)) for key in requests}

    monkeypatch.setattr(run_module, "serving", serving)
    monkeypatch.setattr(run_module, "measure_memory", measure_memory)
    return script


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, make_spec: Callable[..., EntrySpec]) -> Path:
    repository = tmp_path_factory.mktemp("repository")
    write_entry(repository, make_spec())
    return repository


@dataclass
class Quiet:
    """Keeps what it is told."""

    notices: list[str] = field(default_factory=list)
    steps: int = 0
    done_steps: int = 0

    def start(self, steps: int) -> None:
        self.steps = steps

    def done(self, what: str) -> None:
        self.done_steps += 1

    def notice(self, message: str) -> None:
        self.notices.append(message)


def profiled(
    repository: Path, progress: Quiet | None = None, kept: list[Report] | None = None, **changes: Any
) -> Report:
    """Profile; what may be kept after a round goes into `kept`."""
    options: dict[str, Any] = {
        "names": ["tiny"],
        "lengths": (8, 16),
        "variants": ("model", "control", "text"),
        "rounds": 3,
        "measurement_interval_ms": 2,
    }
    options |= changes

    def keep(report_so_far: Callable[[], Report]) -> None:
        if kept is not None:
            kept.append(report_so_far())

    return profile(ProfileOptions(repository=repository, **options), progress or Quiet(), keep)


def test_every_variant_has_a_fresh_server_in_every_round(script: Script, repository: Path) -> None:
    progress = Quiet()
    report = profiled(repository, progress)
    assert progress.done_steps == progress.steps == 3 * 3 * 2 * 2
    assert [(m.variant, m.length) for m in report.measurements] == [
        (variant, length) for variant in ("model", "control", "text") for length in (8, 16)
    ]
    for m in report.measurements:
        assert m.rounds == (1, 2, 3)
        assert len(m.latency_ms.p50.servers) == 3
        assert m.latency_ms.p50.value == pytest.approx(1.003)
        assert m.memory_bytes is not None
        assert m.memory_bytes.total.servers == (102 * MIB,) * 3
        assert m.cost.core_seconds == pytest.approx(1.0)
        assert m.cost.joules == pytest.approx(5.0)
        assert m.gpu is not None
        assert (m.gpu.utilisation, m.gpu.sm_clock_mhz, m.gpu.power_watts) == (0.5, 1410, None)
    assert report.noise_of("tiny", "latency_ms", (1, None)) == 0
    assert {held.variant: held.gpu and held.gpu.value for held in report.steady} == dict.fromkeys(
        ("model", "control", "text"), 300 * MIB
    )


def test_a_server_that_dies_in_mid_run_is_missed_in_its_round_alone(script: Script, repository: Path) -> None:
    def request(variant: Variant, server: int) -> None:
        if (variant, server) == ("control", 2):
            raise ServerError("connection refused")

    script.request = request
    report = profiled(repository)
    rounds = {(m.variant, m.length): m.rounds for m in report.measurements}
    assert rounds["model", 16] == (1, 2, 3)
    assert rounds["control", 8] == rounds["control", 16] == (1, 3)
    (failure,) = report.failures
    assert (failure.variant, failure.stage, failure.round, failure.length) == ("control", "latency", 2, 8)
    assert failure.reason == "Triton was ended by SIGKILL: connection refused"
    # What the two have in common is compared, round by round.
    assert report.noise_of("tiny", "latency_ms", (1, None)) == 0


def test_a_failure_after_the_load_is_filed_where_it_was(
    script: Script, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise ServerError("connection refused")

    monkeypatch.setattr(summary_module, "sparsity", gone)
    script.has_measures = True
    report = profiled(repository, rounds=1)
    assert [(each.stage, each.variant) for each in report.failures] == [("sparsity", "model")]
    monkeypatch.setattr(FakeServed, "steady", gone)
    report = profiled(repository, rounds=1)
    assert [(each.stage, each.variant) for each in report.failures] == [
        ("steady", variant) for variant in ("model", "control", "text")
    ]


def test_a_variant_that_never_loads_has_a_row_that_says_so(script: Script, repository: Path) -> None:
    def start(variant: Variant, _server: int) -> None:
        if variant == "text":
            raise ServerError("Triton could not start: failed to load 'tiny'")

    def memory(variant: Variant, _server: int) -> None:
        if variant == "text":
            raise ServerError("out of memory")

    script.start, script.memory = start, memory
    progress = Quiet()
    report = profiled(repository, progress, rounds=1)
    assert {m.variant for m in report.measurements} == {"model", "control"}
    assert [(each.stage, each.variant) for each in report.failures] == [
        ("memory", "text"),
        ("memory", "text"),
        ("start", "text"),
    ]
    assert any("failed to load 'tiny'" in notice for notice in progress.notices)


def test_memory_that_cannot_be_measured_leaves_latency(script: Script, repository: Path) -> None:
    def memory(variant: Variant, _server: int) -> None:
        raise ServerError("/proc/1/clear_refs: Permission denied")

    script.memory = memory
    report = profiled(repository, rounds=1)
    assert len(report.measurements) == 6
    assert all(m.memory_bytes is None for m in report.measurements)


def test_where_nothing_can_be_measured_the_first_reason_is_the_error(
    script: Script, repository: Path
) -> None:
    def start(_variant: Variant, _server: int) -> None:
        raise ServerError("no space left on device")

    script.start = script.memory = start
    with pytest.raises(Exception, match="no space left on device"):
        profiled(repository, rounds=1)


SHORT = ("--lengths=8", "--variants=model,control", "--measurement-interval=2", "--rounds=3")


def test_ctrl_c_leaves_a_part_of_the_report(
    script: Script, repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def memory(_variant: Variant, server: int) -> None:
        if server == 3:
            raise KeyboardInterrupt

    script.memory = memory
    place = [f"--model-repository={repository}", f"--output-dir={tmp_path}"]
    assert exit_status(app, "profile", "tiny", *place, *SHORT) == 130
    report = read_report(tmp_path / "report.json")
    assert report.partial == "it was interrupted"
    assert {m.rounds for m in report.measurements} == {(1, 2)}
    assert "A part of a report: it was interrupted" in (tmp_path / "report.html").read_text()
    assert "A part of a report" in capsys.readouterr().out


@pytest.mark.parametrize(("ignored", "status"), [(False, 130), (True, 0)])
def test_a_profile_outlives_its_terminal_if_it_is_told_to(
    script: Script, repository: Path, tmp_path: Path, ignored: bool, status: int
) -> None:
    """By nohup, which has SIGHUP ignored. What a signal does afterwards is what it did before."""
    script.memory = lambda _variant, _server: os.kill(os.getpid(), signal.SIGHUP)
    before = signal.SIG_IGN if ignored else signal.SIG_DFL
    former = signal.signal(signal.SIGHUP, before)
    place = [f"--model-repository={repository}", f"--output-dir={tmp_path}"]
    try:
        assert exit_status(app, "profile", "tiny", *place, *SHORT) == status
        assert signal.getsignal(signal.SIGHUP) is before
    finally:
        signal.signal(signal.SIGHUP, former)


def test_a_report_is_kept_after_each_round(script: Script, repository: Path) -> None:
    kept: list[Report] = []
    last = profiled(repository, kept=kept, lengths=(8,), variants=("model",))
    assert [report.partial for report in kept] == [
        "it ended after 1 of 3 rounds",
        "it ended after 2 of 3 rounds",
    ]
    assert last.partial is None


def test_a_report_is_kept_before_it_is_looked_what_fits_a_limit(
    script: Script, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which takes long, and may be ended."""

    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module.Run, "find_capacity", interrupted)
    kept: list[Report] = []
    last = profiled(repository, kept=kept, lengths=(8,), variants=("model",), rounds=1, memory_limit=2**30)
    assert [report.partial for report in kept] == ["it ended before it was found what fits the memory limit"]
    assert last.partial == "it was interrupted"
    assert last.measurements == kept[0].measurements


@pytest.mark.parametrize("takes_text", [False, True])
def test_a_running_server_is_seen_from_outside(
    script: Script,
    make_spec: Callable[..., EntrySpec],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    takes_text: bool,
) -> None:
    """Whether or not there is a Triton here."""

    def find_triton() -> None:
        raise ServerError("there is no Triton")

    @contextmanager
    def attached(
        subject: Subject, url: str, ca_certificates: Path | None, clients: int
    ) -> Iterator[FakeServed]:
        assert (url, ca_certificates) == ("grpcs://host:8001", tmp_path / "ca.pem")
        loads = [FakeLoad(script, subject.variant, 1) for _ in range(clients)]
        yield FakeServed(subject, loads, for_memory=False)

    monkeypatch.setattr(run_module, "attached", attached)
    monkeypatch.setattr(record, "find_triton", find_triton)
    monkeypatch.setattr(FakeServed, "steady", lambda _self: None)
    write_entry(tmp_path, make_spec(takes_text=takes_text))
    address: dict[str, Any] = {"url": "grpcs://host:8001", "ca_certificates": tmp_path / "ca.pem"}
    report = profiled(tmp_path, **address, variants=("model",), rounds=2)
    assert report.environment.remote == "grpcs://host:8001"
    assert {m.variant for m in report.measurements} == {"model" if takes_text else "text"}
    assert all(m.memory_bytes is None and m.cost.mebibyte_seconds is None for m in report.measurements)
    assert report.steady == ()


def test_options_of_the_environment_have_no_effect_where_they_cannot(
    script: Script, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be meant for other commands; the command line is refused the same."""
    path = tmp_path / "texts.txt"
    path.write_text("w1\nw1 w2\n", encoding="utf-8")
    for name in ("LENGTHS", "TEXT_COLUMN", "REQUEST_DISTRIBUTION"):
        monkeypatch.setenv(f"SPARSE_SERVE_{name}", {"LENGTHS": "8"}.get(name, "constant"))
    place = [f"--model-repository={repository}", f"--output-dir={tmp_path / 'report'}"]
    arguments = [*place, "--variants=model", "--rounds=1", "--measurement-interval=2"]
    assert exit_status(app, "profile", "tiny", *arguments, f"--input-data={path}") == 0
    assert exit_status(app, "profile", "tiny", *arguments, f"--input-data={path}", "--lengths=8") == 2


def test_words_are_sent_as_the_texts_that_they_make(
    script: Script, tmp_path: Path, make_spec: Callable[..., EntrySpec]
) -> None:
    """As a file of an entity model has them, whatever their tags; lines of plain text are texts."""
    write_entry(tmp_path / "models", make_spec(TAGS))
    words, lines = tmp_path / "words.jsonl", tmp_path / "lines.txt"
    words.write_text('{"tokens": ["w1", "w2"]}\n{"tokens": ["w1"]}\n', encoding="utf-8")
    lines.write_text("w1 w2\nw1\n", encoding="utf-8")
    for path in (words, lines):
        report = profiled(tmp_path / "models", variants=("model",), rounds=1, input_data=path)
        (inputs,) = report.inputs
        assert sorted(inputs.row_lengths) == [3, 4]


def test_texts_are_sent_as_they_are(script: Script, repository: Path, tmp_path: Path) -> None:
    path = tmp_path / "texts.tsv"
    rows = ["text_a", *(" ".join(["w1"] * number) for number in range(1, 13))]
    path.write_text("\n".join(rows), encoding="utf-8")
    report = profiled(repository, rounds=1, input_data=path, batch_size=4)
    (inputs,) = report.inputs
    assert (inputs.source, inputs.requests, inputs.batch) == (str(path), 3, 4)
    assert sorted(inputs.row_lengths) == sorted(number + 2 for number in range(1, 13))
    assert {m.length for m in report.measurements} == {inputs.length}
    assert inputs.tokens == pytest.approx(sum(inputs.row_lengths) / 3)


@pytest.mark.parametrize("suffix", ["txt", "csv"])
def test_texts_are_as_long_as_those_of_recorded_traffic(
    script: Script, repository: Path, tmp_path: Path, suffix: str
) -> None:
    """Lengths beyond what the model reads are cut there, and no text has fewer tokens than one."""
    path = tmp_path / f"recorded.{suffix}"
    counts = [5, 9, 3, 1, 7, 5, 5, 12, 1000, 4]
    rows = [str(count) for count in counts] if suffix == "txt" else ["label,token_count"]
    rows += [f"a,{count}" for count in counts] if suffix == "csv" else [""]
    path.write_text("\n".join(rows), encoding="utf-8")
    report = profiled(repository, rounds=1, input_lengths=path, batch_size=2)
    (inputs,) = report.inputs
    most = read_entry(repository / "tiny").manifest.max_length
    assert inputs.row_lengths == (5, 9, 3, 3, 7, 5, 5, 12, most, 4)
    assert (inputs.source, inputs.requests, inputs.batch, inputs.length) == (str(path), 5, 2, most)
    assert {m.length for m in report.measurements} == {most}


def test_memory_is_that_of_the_longest_request(
    script: Script, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "recorded.txt"
    path.write_text("5\n9\n3\n", encoding="utf-8")
    given: dict[bool, set[tuple[int, ...]]] = {True: set(), False: set()}
    give = FakeServed.repeat

    def repeat(served: FakeServed, batches: Sequence[Batch], order: Sequence[int]) -> None:
        given[served.for_memory] |= {batch.row_lengths for batch in batches}
        give(served, batches, order)

    monkeypatch.setattr(FakeServed, "repeat", repeat)
    profiled(repository, rounds=1, input_lengths=path)
    assert given == {True: {(9,)}, False: {(5,), (9,), (3,)}}


@pytest.fixture
def in_script_time(script: Script, monkeypatch: pytest.MonkeyPatch) -> Script:
    """The servers of a script, and a clock that only their requests move."""
    monkeypatch.setattr("time.perf_counter_ns", lambda: script.now)
    return script


def test_throughput_in_tokens_is_of_what_was_sent(
    in_script_time: Script, repository: Path, tmp_path: Path
) -> None:
    """Of a file sorted by length, each round sends others to all servers, not the first ones again."""
    path = tmp_path / "sorted.txt"
    path.write_text("\n".join(" ".join(["w1"] * (1 + row // 5)) for row in range(60)), encoding="utf-8")
    in_script_time.takes_ns = lambda _server, batch: 50_000 * batch.tokens
    report = profiled(repository, rounds=2, input_data=path)
    (inputs,) = report.inputs
    for m in report.measurements:
        assert m.tokens_per_second == pytest.approx(20_000)
        assert m.tokens_per_request == pytest.approx(inputs.tokens, rel=0.25)
        assert m.distinct_requests < inputs.requests == 60
    rounds = [
        [in_script_time.order[variant, number][:15] for variant in ("model", "control", "text")]
        for number in (1, 2)
    ]
    assert [len(set(map(tuple, orders))) for orders in rounds] == [1, 1]
    assert rounds[0] != rounds[1]
    fewest = min(m.distinct_requests for m in report.measurements)
    assert any(f"Of the 60 requests of {path}, as few as {fewest}" in doubt for doubt in read_doubts(report))


def test_where_the_time_goes_adds_up_to_the_mean(in_script_time: Script, repository: Path) -> None:
    """Of a slow server there are fewer requests, and its mean counts as much as that of a fast one."""
    in_script_time.takes_ns = lambda server, _batch: server * MS
    report = profiled(repository, measurement_interval_ms=20)
    for m in report.measurements:
        assert m.breakdown_us is not None
        assert m.latency_ms.mean.servers == pytest.approx((1.003, 2.003, 3.003))
        assert sum(m.breakdown_us.model_dump().values()) == pytest.approx(1000 * m.latency_ms.mean.value)


def test_models_are_measured_side_by_side(
    script: Script, tmp_path: Path, make_spec: Callable[..., EntrySpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tiny", "other"):
        write_entry(tmp_path, make_spec(name=name))
    together: list[set[str]] = []

    def measured(loads: Mapping[Subject, Sequence[FakeLoad]], *rest: Any) -> dict[Subject, LatencyReading]:
        together.append({subject.title for subject in loads})
        return measure_latencies(loads, *rest)

    monkeypatch.setattr(run_module, "measure_latencies", measured)
    report = profiled(tmp_path, names=["tiny", "other"], lengths=(8,), variants=("model", "control"))
    assert together == [{"tiny model", "tiny control", "other model", "other control"}] * 3
    assert [(m.model, m.rounds) for m in report.measurements] == [
        (model, (1, 2, 3)) for model in ("tiny", "tiny", "other", "other")
    ]
    assert [held.model for held in report.steady] == ["tiny", "tiny", "other", "other"]


def test_of_much_traffic_some_is_taken_from_all_of_it(repository: Path) -> None:
    entry = read_entry(repository / "tiny")
    tokens = Tokens(entry.path / TOKENIZER_NAME, entry.manifest.task, entry.manifest.max_length)
    counts = [4 + number % 2 for number in range(3 * MOST_OWN_REQUESTS)] + [8] * 3 * MOST_OWN_REQUESTS
    workload = recorded_workload(tokens, read_texts(None), counts, 1, "recorded")
    lengths = [length for batch in workload.batches for length in batch.row_lengths]
    assert len(lengths) == MOST_OWN_REQUESTS
    assert sorted(lengths)[-MOST_OWN_REQUESTS // 2 :] == [8] * (MOST_OWN_REQUESTS // 2)
    few = recorded_workload(tokens, read_texts(None), [4, 5], 3, "recorded")
    assert [batch.row_lengths for batch in few.batches] == [(4, 5, 4)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("3\n-1\n", "line 2: '-1' is no number of tokens: give whole ones from 1"),
        ("3\n4.5\n", "line 2: '4.5' is no number"),
        ("\n", "has no numbers of tokens"),
    ],
)
def test_lengths_that_are_none(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "recorded.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_token_counts(path)


def test_a_disk_that_is_full_loses_nothing(
    script: Script,
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Neither after a round nor at the end, where what was measured is kept elsewhere."""

    def full(_report: Report, folder: Path) -> list[Path]:
        raise SparseServeError(f"{folder / 'report.json'} cannot be written: No space left on device")

    monkeypatch.setattr(profile_command, "write_report", full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    output = tmp_path / "report"
    place = [f"--model-repository={repository}", f"--output-dir={output}"]
    status, _, errors = outcome(capsys, app, "profile", "tiny", *place, *SHORT)
    assert status == 1
    assert errors.count("No space left on device") == 3
    (spare,) = tmp_path.glob("sparse-serve-report-*.json")
    assert errors.splitlines()[-1].endswith(f"what was measured is in {spare}: see report show")
    assert {m.rounds for m in read_report(spare).measurements} == {(1, 2, 3)}


def with_program(script: str) -> typer.Typer:
    """The commands of a program that does this in place of an export."""
    program = typer.Typer(cls=CommandGroup)
    program.add_typer(app)

    @program.callback()
    def root(context: typer.Context) -> None:
        context.obj = Program((sys.executable, "-c", script))

    return program


def test_a_checkpoint_is_exported_for_its_report(
    script: Script,
    repository: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARSE_SERVE_LABEL_COLUMN", "stars")  # as finetune has it: nothing to this command
    export = (
        "import os, shutil, sys; assert not any(name.startswith('SPARSE_SERVE_') for name in os.environ);"
        "print('warning: its tokenizer cuts from the left', file=sys.stderr);"
        f"shutil.copytree({str(repository)!r}, sys.argv[-1], dirs_exist_ok=True)"
    )
    place = [f"--model-repository={tmp_path / 'models'}", f"--output-dir={tmp_path / 'report'}"]
    status, _, errors = outcome(capsys, with_program(export), "profile", "trained/tiny", *place, *SHORT)
    assert status == 0, errors
    assert "warning: its tokenizer cuts from the left" in errors
    report = read_report(tmp_path / "report" / "report.json")
    (served,) = report.served
    line = "sparse-serve export trained/tiny --name tiny --with-baselines --model-repository "
    assert (served.model, served.checkpoint) == ("tiny", "trained/tiny")
    assert served.command == f"{line}{tmp_path / 'models'}"
    assert any(
        each.startswith("tiny was exported from trained/tiny for this report")
        for each in findings(report, "tiny")
    )


@pytest.mark.parametrize(
    ("program", "arguments", "status", "message"),
    [
        (
            "import sys; sys.exit('error: export needs torch, which is not installed: pip install')",
            ["trained/other"],
            1,
            "checkpoint trained/other could not be exported: export needs torch, which is not installed",
        ),
        (
            "",
            ["tiny", "trained/tiny"],
            2,
            "checkpoint trained/tiny would be called 'tiny' as another model is",
        ),
        ("", ["a/one", "b/one"], 2, "checkpoint b/one would be called 'one' as another model is"),
        ("", ["a/one", "-u", "host:8001"], 2, "(--url) has entries: 'a/one' is a checkpoint"),
        (None, ["a/one"], 1, "checkpoint a/one cannot be exported here"),
    ],
)
def test_a_checkpoint_that_cannot_be_exported_is_one_line(
    repository: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    program: str | None,
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    place = [f"--model-repository={repository}", f"--output-dir={tmp_path}"]
    commands = app if program is None else with_program(program)
    found, _, errors = outcome(capsys, commands, "profile", *arguments, *place)
    assert found == status
    lines = errors.splitlines()
    assert lines[-1].startswith(f"error: {message}" if status == 1 else "error: ")
    assert message in lines[-1]
    assert sum(line.startswith("error: ") for line in lines) == 1


def test_the_path_of_an_entry_is_no_checkpoint(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, errors = outcome(capsys, app, "profile", f"{repository}/tiny/")
    assert status == 2
    assert errors.endswith(
        f"'{repository}/tiny' is the path of an entry, where its name is taken: give tiny with "
        f"--model-repository {repository}\n"
    )


def test_an_entry_is_found_before_a_checkpoint_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("models/reviews", "reviews", "other", "empty"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("reviews", "other"):
        (tmp_path / folder / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    found = {name: is_checkpoint(name, Path("models")) for name in ("reviews", "other", "empty", "org/model")}
    assert found == {"reviews": False, "other": True, "empty": False, "org/model": True}


@pytest.mark.parametrize("name", ["a" * 300, f"./{'a' * 300}"])
def test_a_name_that_cannot_be_looked_for_is_told(tmp_path: Path, name: str) -> None:
    with pytest.raises(RepositoryError, match="aaa' cannot be read: File name too long; give the name of an"):
        is_checkpoint(name, tmp_path)


@pytest.mark.parametrize(("threads", "client_cores", "expected"), [(None, 0, 2), (None, 1, 1), (3, 1, 3)])
def test_sessions_have_the_threads_that_a_server_gives_them(
    script: Script,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads: int | None,
    client_cores: int,
    expected: int,
) -> None:
    """One for each core, of which three processors here are two: a second thread of it is no faster."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0, 1, 2})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _process, _cores: None)
    monkeypatch.setattr(options_module, "usable_cores", lambda numbers: len({core // 2 for core in numbers}))
    report = profiled(repository, rounds=1, lengths=(8,), threads=threads, client_cores=client_cores)
    assert report.settings.intra_op_threads == expected
    assert "but for a session's threads" in report.settings.latency


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be shared out")
def test_the_client_keeps_to_its_cores(script: Script, repository: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    seen: set[frozenset[int]] = set()
    script.request = lambda _variant, _server: seen.add(frozenset(os.sched_getaffinity(0)))
    report = profiled(repository, rounds=1, client_cores=1, lengths=(8,))
    assert seen == {frozenset(cores[-1:])}
    assert report.settings.client_has_own_cores
    assert report.settings.intra_op_threads == usable_cores(numbers=cores[:-1])
    assert sorted(os.sched_getaffinity(0)) == cores
