"""The whole profile against a real Triton, its variants, and its errors."""

import csv
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import jsonschema
import numpy as np
import psutil
import pytest
from attention_graph import HEADS, LAYERS, MAX_LENGTH, WIDTH, attention_graph
from serving import alive
from tiny_entry import SPANS, WORDS, take_out_of_service
from trained_tokenizers import bert_like

from command_line import exit_status, outcome, own_process
from sparse_serve.cli import app
from sparse_serve.cli import profile as profile_command
from sparse_serve.data import read_texts
from sparse_serve.profiling import summary
from sparse_serve.profiling.load import Answer, TritonLoad
from sparse_serve.profiling.plan import tokens_of
from sparse_serve.profiling.subjects import find_subjects, graph_shape, weight_bytes
from sparse_serve.profiling.windows import Timing
from sparse_serve.profiling.workload import REQUESTS, Batch, Workload, make_workload
from sparse_serve.report.document import Report, read_report, report_schema
from sparse_serve.report.measured import VARIANTS, Axes, Measurement, Variant
from sparse_serve.repository.config import GRAPH_NAME
from sparse_serve.repository.entries import read_entry
from sparse_serve.repository.manifest import Attention
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.triton.launcher import TritonServer

MakeSpec = Callable[..., EntrySpec]

LENGTHS = (128, 256, 512)
TEXTS = tuple(" ".join(WORDS[start:] + WORDS[:start]) for start in range(len(WORDS)))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, make_spec: MakeSpec) -> Path:
    """An entry with fused attention and its eager twin; packed twins are absent."""
    folder = tmp_path_factory.mktemp("graphs")
    spec = make_spec(
        name="attending",
        graph=attention_graph(folder / "fused.onnx", "fused", axes=True),
        attention=Attention(normalizer="softmax", pattern="axis+local2"),
        max_length=MAX_LENGTH,
        max_batch_size=8,
        layers=LAYERS,
        baselines={"padded_eager": attention_graph(folder / "eager.onnx", "eager")},
    )
    # The manifest's own `baselines` are names, which write_entry fills in.
    spec = EntrySpec(**{**vars(spec), "manifest": spec.manifest.model_copy(update={"baselines": {}})})
    repository = tmp_path_factory.mktemp("repository")
    write_entry(repository, spec)
    return repository


@pytest.fixture(scope="module")
def texts_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n\n".join(TEXTS), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def evaluation_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("evaluation") / "dev.tsv"
    rows = [f"{text}\t{number % 2}" for number, text in enumerate(TEXTS)]
    path.write_text("\n".join(["sentence\ttarget", *rows]), encoding="utf-8")
    return path


Profiled = tuple[Path, Report]


@pytest.fixture(scope="module")
def profiled(
    repository: Path,
    texts_file: Path,
    evaluation_file: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Profiled:
    """One short profile of everything, by command line: the output folder and the report."""
    output = tmp_path_factory.mktemp("output") / "report"
    arguments = [
        "profile",
        "attending",
        f"--model-repository={repository}",
        f"--output-dir={output}",
        f"--lengths={','.join(map(str, LENGTHS))}",
        "--variants=text,model,packed_dense,padded_eager",
        "--concurrency-range=1:3:2",
        "--request-rate-range=40",
        "--rounds=1",
        "--measurement-interval=20",
        "--max-trials=3",
        "--memory-limit=150m",
        "--memory-budget=1g",
        f"--inputs={texts_file}",
        f"--eval={evaluation_file}",
        "--text-column=sentence",
        "--label-column=target",
    ]
    assert exit_status(app, *arguments) == 0
    return output, Report.model_validate_json((output / "report.json").read_bytes())


def points(report: Report, variant: Variant) -> list[Measurement]:
    return report.series("attending", variant)


def test_every_variant_is_measured_at_every_length(profiled: Profiled) -> None:
    _, report = profiled
    measured = [(m.variant, m.length, m.load) for m in report.measurements]
    variants = ("model", "padded_eager", "text")
    loads = [(1, None), (3, None), (None, 40.0)]
    assert measured == list(product(variants, LENGTHS, loads))
    assert (report.settings.concurrencies, report.settings.request_rates) == ((1, 3), (40.0,))
    assert (report.partial, report.failures) == (None, ())
    (absent,) = report.absent
    assert absent.variant == "packed_dense"
    assert "--with-baselines" in absent.reason


def test_memory_of_eager_attention_grows_as_theory_says(profiled: Profiled) -> None:
    _, report = profiled
    (found,) = report.growth
    assert found.theory == (2 * HEADS + 1) * 4
    assert 0.7 < found.ratio < 1.3
    # With a mask, ONNX Runtime's MultiHeadAttention forms the scores as well, but once.
    fused, eager = (points(report, variant)[-1].memory_bytes for variant in ("model", "padded_eager"))
    assert fused is not None
    assert eager is not None
    once = HEADS * 4 * 512**2
    assert eager.peak_above_idle - fused.peak_above_idle == pytest.approx(once, rel=0.3)


def test_what_fits_a_limit_was_sent(profiled: Profiled) -> None:
    _, report = profiled
    assert {found.variant for found in report.capacity} == {"model", "padded_eager", "text"}
    for found in report.capacity:
        if found.variant == "text":  # with the tokenizer's processes it is more than the limit at rest
            assert (found.longest_text, found.largest_batch) == (None, None)
            continue
        assert found.longest_text == MAX_LENGTH
        assert found.largest_batch is not None
        assert found.batch_total is not None
        assert found.batch_total <= found.limit
    ours, eager = (
        next(found.largest_batch for found in report.capacity if found.variant == variant)
        for variant in ("model", "padded_eager")
    )
    assert ours is not None
    assert eager is not None
    assert ours >= eager  # the backend computes some rows at a time, whatever is asked


def test_servers_are_seen_as_deployed(profiled: Profiled) -> None:
    _, report = profiled
    for held in report.steady:
        assert held.pss is not None
        assert 30 * 2**20 < held.pss.value <= held.rss.value <= held.peak.value
        assert "tritonserver" in {each.name for each in held.processes}
        assert held.gpu is None
        # What it wrote, and files that nobody had read before it: on a warm machine hardly any of them.
        assert held.cgroup_peak is None or held.cgroup_peak.value > 16 * 2**20
    for measured in report.measurements:
        assert measured.cost.core_seconds is not None
        assert measured.cost.mebibyte_seconds is not None
        assert (measured.late_share is not None) == (measured.request_rate is not None)
    assert report.pick is not None
    assert report.pick.model == "attending"


def test_figures_agree_with_each_other(profiled: Profiled) -> None:
    _, report = profiled
    for measured in report.measurements:
        latency, breakdown = measured.latency_ms, measured.breakdown_us
        percentiles = [each for each in (latency.p50, latency.p90, latency.p95, latency.p99) if each]
        assert [each.value for each in percentiles] == sorted(each.value for each in percentiles)
        assert (latency.p99 is None) == (measured.requests < 100)
        assert measured.tokens_per_second == pytest.approx(measured.length * measured.texts_per_second.value)
        assert (measured.memory_bytes is None) == (measured.concurrency is None)
        if measured.memory_bytes is not None:
            assert measured.memory_bytes.idle > 50 * 2**20
        assert breakdown is not None
        assert sum(breakdown.model_dump().values()) == pytest.approx(1000 * latency.mean.value)
        # The server writes outputs until after the answer has left; beside other tests that can take a while.
        assert breakdown.network + breakdown.server_compute_output > 0 or measured.concurrency != 1
        assert breakdown.server_compute_infer > 0
        assert measured.client_cores > 0
        assert measured.requests >= 3 * (measured.concurrency or 1)
        assert (measured.sparsity is not None) == (measured.variant == "model")
    for measured in points(report, "model"):
        assert measured.sparsity is not None
        assert measured.sparsity.rho == (0.0,) * LAYERS
        assert measured.sparsity.keys_kept == (float(measured.length),) * LAYERS
        axes = measured.sparsity.axes
        assert axes is not None
        # [CLS], in layer 2 [SEP] too; and in columns some w0.
        assert axes.rows_on_count == pytest.approx((1, 2), rel=1e-5)
        assert axes.columns_on_count[0] == pytest.approx(2, rel=1e-5)
        for shares, counts in (
            (axes.rows_on, axes.rows_on_count),
            (axes.columns_on, axes.columns_on_count),
        ):
            assert [measured.length * share for share in shares] == pytest.approx(counts)
    (served,) = report.served
    assert (served.model, served.task) == ("attending", "single_label_classification")
    assert (served.normalizer, served.pattern, served.lambd) == ("softmax", "axis+local2", None)


@dataclass
class Graph:
    """Stands for the client of a served graph with these outputs: every measure of it is a quarter."""

    outputs: Sequence[str]
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def send(self, batch: Batch, outputs: Sequence[str]) -> Answer:
        self.asked.append(tuple(outputs))
        shape = (len(batch.row_lengths), LAYERS)
        return Answer({name: np.full(shape, 0.25, np.float32) for name in outputs}, Timing(0, 1, 0))


@pytest.mark.parametrize("axes", [False, True])
def test_what_the_graph_measures_is_asked_for(axes: bool, tmp_path: Path) -> None:
    measures = ("rho", "rows_on", "columns_on") if axes else ("rho",)
    graph = Graph(["logits", *measures])
    # Rows of 40 and of 8 tokens.
    workload = make_workload(bert_like(tmp_path / "tokenizer.json"), read_texts(None), 40, 2)
    sparsity = summary.sparsity(graph, workload)
    assert graph.asked == [measures] * REQUESTS
    assert (sparsity.rho, sparsity.keys_kept) == ((0.25,) * LAYERS, (18.0,) * LAYERS)
    expected = Axes(
        rows_on=(0.25,) * LAYERS,
        columns_on=(0.25,) * LAYERS,
        rows_on_count=(6.0,) * LAYERS,
        columns_on_count=(6.0,) * LAYERS,
    )
    assert sparsity.axes == (expected if axes else None)


def test_measures_are_of_windows_however_many_a_request_has(tmp_path: Path) -> None:
    """Of long texts that are read in windows one request has more rows than another."""
    tokens = bert_like(tmp_path / "tokenizer.json")
    batches = [make_workload(tokens, read_texts(None), 40, rows).batches[0] for rows in (1, 2)]
    assert [batch.row_lengths for batch in batches] == [(40,), (40, 8)]
    sparsity = summary.sparsity(Graph(["rho"]), Workload(40, "windows", tuple(batches)))
    assert sparsity.keys_kept == pytest.approx((0.75 * 88 / 3,) * LAYERS)


@pytest.mark.slow
def test_a_model_of_questions_is_profiled(
    make_spec: MakeSpec, questions_file: Path, texts_file: Path, tmp_path: Path
) -> None:
    write_entry(tmp_path / "repository", make_spec(SPANS, name="spans", max_length=64))
    arguments = [
        "profile",
        "spans",
        f"--model-repository={tmp_path / 'repository'}",
        f"--output-dir={tmp_path / 'report'}",
        "--lengths=48",
        "-b",
        "2",
        "--variants=text,model",
        "--measurement-interval=20",
        "--max-trials=3",
        f"--inputs={texts_file}",
        f"--eval={questions_file}",
    ]
    assert exit_status(app, *arguments) == 0
    report = Report.model_validate_json((tmp_path / "report" / "report.json").read_bytes())
    assert [served.task for served in report.served] == ["question_answering"]
    assert [each.row_lengths for each in report.inputs] == [(48, 10) * REQUESTS]
    assert [quality.metric for quality in report.quality] == ["f1", "f1"]
    assert report.quality[0].metrics == pytest.approx(report.quality[1].metrics)
    assert {measured.variant for measured in report.measurements} == {"text", "model"}
    assert "exact_match" in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_model_of_several_tasks_is_sent_texts_of_all(
    server: TritonServer, texts_file: Path, tmp_path: Path
) -> None:
    arguments = [
        "profile",
        "several",
        f"--model-repository={server.repository}",
        f"--output-dir={tmp_path}",
        "--lengths=12",
        "-b",
        "2",
        "--task-mix=sts=2,sentiment=1",
        "--variants=text,model",
        "--measurement-interval=20",
        "--max-trials=3",
        f"--inputs={texts_file}",
    ]
    assert exit_status(app, *arguments) == 0
    found = json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(found, json.loads(report_schema()))
    report = Report.model_validate(found)
    assert [served.task for served in report.served] == ["several_tasks"]
    (inputs,) = report.inputs
    # Six requests of two texts are the least of four and more that have them in these shares.
    assert inputs.requests == 6
    assert inputs.tasks == pytest.approx({"sts": 2 / 3, "sentiment": 1 / 3})
    with (tmp_path / "report.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["variant"]: row["tasks"] for row in rows} == dict.fromkeys(
        ("model", "text"), "sts=0.66667 sentiment=0.33333"
    )
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "was sent texts of each in turn: sts 67%, sentiment 33%" in page
    assert "sts 66.7 %, sentiment 33.3 %" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["several", "--task=art"],
            "'several' has no task 'art'; its tasks are sentiment, paraphrase, sts, topics",
        ),
        (["several", "--task-mix=sts=1,art=1"], "'several' has no task 'art'"),
        (["several", "tiny", "--task=sts"], "'tiny' has one task: leave out --task and --task-mix"),
        (["several", "--task=sts", "--task-mix=sts=1"], "not both"),
        (["several", "--task-mix=sts"], "--task-mix 'sts' is not NAME=N,..."),
        (["several", "--task-mix=sts=1,sts=2"], "each name once"),
        (["several", "--task-mix=sts=0"], "whole numbers from 1"),
        (["several", "--task-mix=sts=1.5"], "whole numbers from 1"),
        (["several", "--task-mix=sts=20,topics=1"], "add up to 20 at most"),
        (
            ["several", "--eval=dev.tsv"],
            "'several' is asked for sentiment, paraphrase, sts, topics: say with --task",
        ),
        (["tiny", "--input-data=a.tsv"], "--lengths has no effect with --input-data"),
        (["tiny", "--input-data=a.tsv", "--inputs=b.txt"], "--inputs has no effect with --input-data"),
        (["tiny", "--input-data=a.tsv", "--input-lengths=b.txt"], "--input-lengths has no effect with"),
        (["tiny", "--input-lengths=b.txt"], "--lengths has no effect with --input-lengths"),
        (["tiny", "--label-column=stars"], "--label-column has no effect with no --eval"),
        (["tiny", "--text-column=review"], "--text-column has no effect with neither --eval nor"),
        (
            ["tiny", "--request-distribution=constant"],
            "--request-distribution has no effect with",
        ),
        (["tiny", "--url=a:1", "--memory-budget=1g"], "--memory-budget has no effect with a running server"),
        (["tiny", "--url=a:1", "--memory-limit=1g"], "--memory-limit has no effect with a running server"),
        (["tiny", "--url=a:1", "--threads=2"], "--threads has no effect with a running server"),
        (
            ["tiny", "--memory-budget=1g", "--request-rate-range=10"],
            "--memory-budget has no effect with no --concurrency-range",
        ),
        (["tiny", "--ca-certificates=x.pem"], "--ca-certificates are for a running server: name it with"),
        (["tiny", "--url=a:1", "--ca-certificates=x.pem"], "certificates are for TLS, and 'a:1' is without"),
        (["tiny", "--url=http://a:1"], "'http://a:1' is no address for grpc: give grpc://host:port, or"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    server: TritonServer,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    defaults = [f"--model-repository={server.repository}", f"--output-dir={tmp_path}", "--lengths=12"]
    status, output, errors = outcome(capsys, app, "profile", *arguments, *defaults)
    assert (status, output) == (2, "")
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert message in errors


def test_a_running_server_is_measured_as_it_is(
    server: TritonServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["profile", "tiny", f"--model-repository={server.repository}", "-u", server.grpc_url]
    short = ["--lengths=8", "--rounds=2", "--measurement-interval=20", "--request-rate-range=50"]
    status, _, errors = outcome(capsys, app, *arguments, f"--output-dir={tmp_path}", *short)
    assert status == 0, errors
    report = read_report(tmp_path / "report.json")
    (measured,) = report.measurements
    assert (measured.variant, measured.load, measured.rounds) == ("text", (None, 50.0), (1, 2))
    assert measured.memory_bytes is None
    assert measured.cost.core_seconds is None
    assert measured.breakdown_us is not None
    assert (report.environment.remote, report.environment.op_library) == (server.grpc_url, None)
    assert report.environment.triton.startswith("2.")
    assert "with nothing to compare it with" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_request_that_is_waited_for_is_in_the_statistics(server: TritonServer) -> None:
    tokens = tokens_of(read_entry(server.repository / "tiny"))
    with TritonLoad(server.grpc_url, "tiny", "label") as load:
        load.repeat([tokens.batch(["w1"]), tokens.batch(["w2 w3"])], [1, 0])
        before = load.server_times().requests
        for sent in range(1, 21):
            assert load.request().batch == sent % 2
            assert load.server_times(before + sent).requests == before + sent
        assert load.server_times(before + 100).requests == before + 20  # not for ever


def test_quality_is_measured_on_every_variant(profiled: Profiled) -> None:
    _, report = profiled
    accuracies = {quality.variant: quality.metrics["accuracy"] for quality in report.quality}
    assert set(accuracies) == {"model", "padded_eager", "text"}
    assert len(set(accuracies.values())) == 1
    assert {quality.rows for quality in report.quality} == {len(TEXTS)}


def test_files_of_the_report(profiled: Profiled) -> None:
    output, report = profiled
    jsonschema.validate(json.loads((output / "report.json").read_text()), json.loads(report_schema()))
    with (output / "report.csv").open(encoding="utf-8") as stream:
        assert len(list(csv.DictReader(stream))) == len(report.measurements)
    assert "What it says" in (output / "report.html").read_text(encoding="utf-8")


def test_environment_and_settings_are_stated(profiled: Profiled) -> None:
    _, report = profiled
    assert re.match(r"2\.\d+\.\d+ ", report.environment.triton)
    assert report.environment.cpu.cores == len(os.sched_getaffinity(0))
    assert not report.settings.memory_arena
    assert [inputs.row_lengths for inputs in report.inputs] == [(length,) * REQUESTS for length in LENGTHS]


def test_ctrl_c_leaves_no_server(repository: Path, texts_file: Path, tmp_path: Path) -> None:
    command = own_process("profile", "attending", f"--model-repository={repository}")
    options = [f"--inputs={texts_file}", f"--output-dir={tmp_path}", "--lengths=512", "--variants=model,text"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        family = _wait_for_servers(psutil.Process(process.pid))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert not alive(family)
    assert not list(Path("/dev/shm").glob(f"sparse_serve_*_{process.pid}_*"))
    assert not list(tmp_path.iterdir())


def _wait_for_servers(process: psutil.Process) -> list[psutil.Process]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        family = process.children(recursive=True)
        with suppress(psutil.NoSuchProcess):  # a helper of the start that has ended since
            if any("stub" in child.name() for child in family):
                return family
        time.sleep(0.05)
    raise TimeoutError("no server was started")


@pytest.mark.parametrize(
    ("text", "concurrencies"),
    [("1", (1,)), ("4", (4,)), ("1:4", (1, 2, 3, 4)), ("1:16:5", (1, 6, 11, 16)), ("2:7:4", (2, 6))],
)
def test_concurrency_ranges_are_perf_analyzers(text: str, concurrencies: tuple[int, ...]) -> None:
    assert profile_command._concurrencies(text) == concurrencies


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--concurrency-range=0"], 2, "--concurrency-range '0' is not START[:END[:STEP]]"),
        (["--concurrency-range=4:1"], 2, "--concurrency-range '4:1'"),
        (["--concurrency-range=1:0"], 2, "--concurrency-range '1:0'"),
        (["--concurrency-range=1:4:0"], 2, "--concurrency-range '1:4:0'"),
        (["--concurrency-range=1:2:3:4"], 2, "--concurrency-range '1:2:3:4'"),
        (["--concurrency-range=-1"], 2, "--concurrency-range '-1'"),
        (["--concurrency-range=1:1000"], 2, "END up to 256"),
        (["--concurrency-range=many"], 2, "--concurrency-range 'many'"),
        (["--lengths=64,513"], 2, "length 513 is more than the 512 tokens"),
        (["--lengths=64,2"], 2, "length 2 leaves no room"),
        (["--lengths=long"], 2, "--lengths 'long'"),
        (["--variants=model,best"], 2, "no variant 'best'"),
        (["--variants=packed_dense"], 2, "none of the variants packed_dense"),
        (["-b", "9"], 2, "batch size 9 is more than the 8 rows"),
        (["-b", "0"], 2, "--batch-size"),
        (["--inputs=/does/not/exist"], 1, "/does/not/exist"),
        (["--eval=/does/not/exist.tsv"], 1, "/does/not/exist.tsv"),
        (["--output-dir=/dev/null/report"], 1, "--output-dir /dev/null/report"),
        (["another"], 1, "another"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str],
    status: int,
    message: str,
    repository: Path,
    texts_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    defaults = [f"--model-repository={repository}", f"--output-dir={tmp_path}", f"--inputs={texts_file}"]
    found, output, errors = outcome(capsys, app, "profile", "attending", *defaults, *arguments)
    assert (found, output) == (status, "")
    line = errors.splitlines()[-1]
    assert line.startswith("error: ")
    assert message in line
    assert not list(tmp_path.iterdir())


def test_variants_are_found_where_they_are_served(repository: Path) -> None:
    entry = read_entry(repository / "attending")
    subjects, absent = find_subjects(entry, VARIANTS)
    found = {subject.variant: (subject.served_as, subject.loads) for subject in subjects}
    assert found == {
        "model": ("attending_model", ("attending_model",)),
        "control": ("attending_model", ("attending_model",)),
        "padded_eager": ("attending_padded_eager", ("attending_padded_eager",)),
        "portable": ("attending_model", ("attending_model",)),
        "text": ("attending", ("attending", "attending_model")),
    }
    assert [each.variant for each in absent] == ["packed_dense", "padded_fused"]
    shape = graph_shape(entry)
    assert (shape.heads, shape.hidden) == (HEADS, WIDTH)


def test_eager_sparse_attention_is_looked_for_where_it_is_sparse_over_all_keys(
    tmp_path: Path, make_spec: MakeSpec
) -> None:
    found = {}
    for name, attention in {
        "dense": Attention(normalizer="softmax"),
        "ssaf": Attention(normalizer="sparsegen", lambd=-4.0),
        "aaa": Attention(normalizer="sparsegen", lambd=-4.0, pattern="axis"),
    }.items():
        entry = read_entry(write_entry(tmp_path, make_spec(name=name, attention=attention)))
        subjects, absent = find_subjects(entry, ("padded_sparse",))
        assert not subjects
        found[name] = [each.reason for each in absent]
    (reason,) = found.pop("ssaf")
    assert reason.endswith("holds no model 'ssaf_padded_sparse': export it --with-baselines")
    assert found == {"dense": [], "aaa": []}


def test_what_is_measured_is_the_version_that_is_there(tmp_path: Path, make_spec: MakeSpec) -> None:
    """Not one that was taken out of service, nor its twins."""
    public = write_entry(tmp_path, make_spec())
    write_entry(tmp_path, make_spec(version=2, baselines={"packed_dense": make_spec().graph}))
    take_out_of_service(public, 2)
    entry = read_entry(public)
    (subject,), (absent,) = find_subjects(entry, ("model", "packed_dense"))
    assert absent.variant == "packed_dense"
    assert weight_bytes(subject) == (tmp_path / "tiny_model" / "1" / GRAPH_NAME).stat().st_size
    assert graph_shape(entry).heads is None
