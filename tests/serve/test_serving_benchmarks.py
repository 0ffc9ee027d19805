"""What benchmarks judge by: claims of a model against itself, clients in turns, percentiles."""

import csv
import os
import re
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sample_report import measurement, report_of

from sparse_serve.profiling.record import CLIENT_TIME
from sparse_serve.profiling.windows import Timing

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of the folders."""
    for folder in ("serving", "peers", "shared"):
        monkeypatch.syspath_prepend(BENCHMARKS / folder)
    return import_module


def test_what_a_model_seems_to_cost_against_itself_is_a_false_claim_too(module: Any) -> None:
    report = report_of([measurement(p50=12, peak=1), measurement("packed_dense", p50=10, peak=2)])
    verdicts = {line["quantity"]: line["verdict"] for line in module("itself").claims(report)}
    assert verdicts == {"latency_ms": "cost", "memory_bytes": "saving", "total_memory_bytes": "saving"}


def test_reports_in_a_row_are_compared_length_by_length(module: Any) -> None:
    before, after = (
        report_of(measurement(length=length, p50=p50) for length in (64, 128)) for p50 in (10, 12)
    )
    lines = list(module("itself").differences(before, after))
    latency = [line for line in lines if line["quantity"] == "p50 latency, ms"]
    assert [(line["length"], line["saved"], line["verdict"]) for line in latency] == [
        ("64", "-20.00%", "worse"),
        ("128", "-20.00%", "worse"),
    ]
    assert {line["verdict"] for line in module("itself").differences(before, before)} == {"noise"}


def lines_of(*rounds: Sequence[tuple[float, float]]) -> list[dict[str, str]]:
    """What both clients found in each turn of each round."""
    return [
        {
            "client": client,
            "round": str(number),
            "turn": str(turn),
            "Concurrency": "1",
            "batching": "on",
            "queue_delay_us": "0",
            "p50 latency": str(latency),
            "Client Send": "100" if client == "profile" else "10",
            "Network+Server Send/Recv": "600" if client == "profile" else "390",
            "Client Recv": "50",
        }
        for number, turns in enumerate(rounds)
        for turn, pair in enumerate(turns)
        for client, latency in zip(("profile", "perf_analyzer"), pair, strict=True)
    ]


def test_clients_are_held_against_each_other_turn_by_turn(module: Any) -> None:
    """A machine that is faster in one turn than in the next is no difference of clients."""
    found = module("perf_analyzer")
    (ratio,) = found.ratios(lines_of([(100, 100), (200, 200), (101, 100)], [(300, 300), (102, 100)]))
    assert ratio.of_rounds == pytest.approx([1.0, 1.01])
    assert str(ratio) == "1 in flight, p50 latency: 1.000, 1.010; medians 102.0 of 100.0"
    assert ratio.within
    assert not found.Ratio(ratio.load, "p99 latency", [[(106, 100)]]).within
    assert found.Ratio(found.Load(4), "p99 latency", [[(106, 100)]]).within
    assert not found.Ratio(found.Load(4, batching=False), "p99 latency", [[(106, 100)]]).within
    assert not found.Ratio(found.Load(4, queue_delay_us=5000), "p99 latency", [[(106, 100)]]).within
    (longer,) = found.client_times(lines_of([(1, 1)])).values()
    assert longer == [pytest.approx(0.3)]
    assert not list(found.ratios(lines_of([(100, 100)])[:1]))


def test_what_reports_say_of_this_client_is_what_was_measured(module: Any) -> None:
    with (BENCHMARKS / "serving" / "perf_analyzer.csv").open(encoding="utf-8", newline="") as file:
        measured = module("perf_analyzer").client_times(list(csv.DictReader(file)))
    told = re.findall(r"by (-?[\d.]+) to ([\d.]+) ms with (\d+)", CLIENT_TIME)
    said = {int(in_flight): (float(least), float(most)) for least, most, in_flight in told}
    assert set(said) == {load.concurrency for load in measured}
    for load, longer in measured.items():
        least, most = said[load.concurrency]
        assert least - 0.05 <= min(longer) <= max(longer) <= most + 0.05


@pytest.mark.parametrize(("requests", "p99"), [(99, ""), (100, "1.00")])
def test_peers_have_no_p99_of_too_few_requests(module: Any, requests: int, p99: str) -> None:
    peers = module("peers")
    window = SimpleNamespace(
        timings=[Timing(0, 1_000_000, 0)] * requests, requests_per_second=1.0, client_cores=0.1
    )
    running = SimpleNamespace(measure=lambda *_: window, process_ids=lambda: [os.getpid()])
    line = peers.asked(running, peers.SHORT, ["a"], peers.Load(8, 1))
    assert line["p99_ms"] == p99
    assert peers.known_p99([line]) == ([1.0] if p99 else [])


def test_the_table_of_peers_has_no_p99_of_too_few_requests() -> None:
    """Its rows are loads in the order of the file, its columns candidates."""
    with (BENCHMARKS / "peers" / "peers.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["place"] == "served"]
    page = (BENCHMARKS.parent / "docs" / "performance.md").read_text(encoding="utf-8")
    cells = [re.findall(r"/ (–|[\d,.]+) ms", row) for row in page.splitlines()]
    candidates = [
        *("ours, dense fp32, served", "ours, ssaf fp32, served", "ours, dense int8, served"),
        *("ours, ssaf int8, served", "Infinity, ONNX engine", "Infinity, torch engine"),
    ]
    loads = list(dict.fromkeys((line["texts"], line["load"]) for line in lines))
    requests = {(line["candidate"], line["texts"], line["load"]): int(line["requests"]) for line in lines}
    rows = [row for row in cells if len(row) == len(candidates)]
    for (row, load), (column, name) in product(enumerate(loads), enumerate(candidates)):
        assert (rows[row][column] == "–") == (requests[name, *load] < 100)


@pytest.mark.parametrize(
    ("value", "wanted", "met"),
    [
        ("0.897", ">= 0.9", "no"),
        ("0.900", ">= 0.9", "yes"),
        ("1.147", "<= 1", "no"),
        ("0", "0", "yes"),
        ("1", "0", "no"),
    ],
)
def test_a_figure_is_met_by_what_was_measured(module: Any, value: str, wanted: str, met: str) -> None:
    assert module("text_in_the_graph").met({"value": value, "wanted": wanted}) == met


def test_lines_have_a_column_for_every_name_that_one_of_them_has(tmp_path: Path, module: Any) -> None:
    lines, path = module("lines"), tmp_path / "out" / "lines.csv"
    assert lines.read_lines(path) == []
    lines.write_lines(path, [{"a": "1"}, {"a": "2", "b": "x, y"}])
    assert path.read_bytes() == b'a,b\n1,\n2,"x, y"\n'
    assert lines.read_lines(path) == [{"a": "1", "b": ""}, {"a": "2", "b": "x, y"}]


def test_variants_that_make_ratios_run_in_every_turn(module: Any) -> None:
    turns, ran = module("turns"), list[str]()
    variants = {name: partial(ran.append, name) for name in "ab"}
    times = turns.times_in_turns(variants, turns.turns_for(0, at_least=3))
    assert ran == list("ab" * 4)
    assert {name: len(each) for name, each in times.items()} == {"a": 3, "b": 3}
    assert len(list(turns.turns_for(0.01, at_least=1))) > 1
