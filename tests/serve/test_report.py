"""The report's schema and files, what it computes from measurements, and its page."""

import csv
import io
import json
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from rich.console import Console
from sample_report import AAA, SSAF, estimated_anew, full_report, measurement, report_of, with_axes

from sparse_serve.errors import DataError, SparseServeError
from sparse_serve.profiling.theory import growth
from sparse_serve.report.document import (
    SCHEMA_VERSION,
    Inputs,
    Report,
    generate_schema,
    read_report,
    report_schema,
)
from sparse_serve.report.doubts import read_doubts
from sparse_serve.report.figures import axes_figure, throughput_figure
from sparse_serve.report.files import write_report
from sparse_serve.report.headline import headline
from sparse_serve.report.measured import Absent, Failure, Measurement, Variant
from sparse_serve.report.page import to_html
from sparse_serve.report.savings import noise, savings, splits
from sparse_serve.report.sentences import details, findings
from sparse_serve.report.table import to_csv
from sparse_serve.report.terminal import show_report
from sparse_serve.report.titles import STEP_TITLES, TITLES, attention_title, step_of, value

MIB = 2**20

# perf_analyzer's own header, from its CSV.
PERF_ANALYZER_HEADER = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency"
)


def test_the_schema_in_the_package_is_that_of_the_model() -> None:
    assert report_schema() == generate_schema(), "write generate_schema() to report.schema.json"


def test_reports_validate_against_the_schema() -> None:
    schema = json.loads(report_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    report = json.loads(full_report().to_json())
    validator.validate(report)
    report["measurements"][0]["variant"] = "quantum"
    assert not validator.is_valid(report)


def test_json_comes_back() -> None:
    report = full_report()
    assert Report.model_validate_json(report.to_json()) == report


def test_csv_begins_as_perf_analyzers() -> None:
    report = full_report()
    lines = to_csv(report).splitlines()
    assert lines[0].startswith(PERF_ANALYZER_HEADER + ",model,variant,length,batch,")
    rows = list(csv.DictReader(io.StringIO(to_csv(report))))
    assert len(rows) == len(report.measurements) == 32
    first, source = rows[0], report.measurements[0]
    assert float(first["Inferences/Second"]) == pytest.approx(source.texts_per_second.value, rel=1e-3)
    assert source.latency_ms.p99 is not None
    assert int(first["p99 latency"]) == round(1000 * source.latency_ms.p99.value)
    assert float(first["p50_latency_ms_low"]) == pytest.approx(source.latency_ms.p50.low, rel=1e-3)
    assert source.memory_bytes is not None
    assert int(first["Client Recv"]) == 40
    assert int(first["peak_memory_bytes"]) == source.memory_bytes.peak_above_idle
    assert first["rho_per_layer"] == "0.90000 0.95000"
    assert (first["accuracy"], first["f1"], rows[-1]["accuracy"]) == ("0.90000", "0.80000", "")


def test_csv_without_server_statistics() -> None:
    bare = measurement().model_copy(update={"breakdown_us": None})
    row = next(csv.DictReader(io.StringIO(to_csv(report_of([bare])))))
    assert row["Server Queue"] == ""
    assert row["p50 latency"] == "10000"


def test_files_are_written(tmp_path: Path) -> None:
    report = full_report()
    assert write_report(report, tmp_path)[0].name == "report.json"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.csv", "report.html", "report.json"]


def test_a_full_disk_is_one_line_and_keeps_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_bytes(path: Path, content: bytes) -> int:
        if "html" in path.name:
            raise OSError(28, "No space left on device")
        with path.open("wb") as stream:
            return stream.write(content)

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    with pytest.raises(
        SparseServeError, match=r"report.html cannot be written: No space left.*report.csv is"
    ):
        write_report(full_report(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.csv", "report.json"]


def test_a_report_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(full_report().to_json(), encoding="utf-8")
    assert read_report(path) == full_report()
    path.write_text('{"schema_version": 5}', encoding="utf-8")
    with pytest.raises(DataError, match=f"has schema version 5, this package reads {SCHEMA_VERSION}"):
        read_report(path)
    path.write_text(f'{{"schema_version": {SCHEMA_VERSION}}}', encoding="utf-8")
    with pytest.raises(DataError, match="is no report of profile: partial: Field required"):
        read_report(path)
    path.write_text(json.dumps(json.loads(full_report().to_json()) | {"x" * 5000: 1}), encoding="utf-8")
    with pytest.raises(DataError, match="is no report of profile: xxx") as refused:
        read_report(path)
    assert len(str(refused.value)) < 1000
    path.write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="is no JSON"):
        read_report(path)


def test_a_report_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    for settings, fault in (
        ({"concurrencies": [], "request_rates": []}, "settings have neither concurrencies nor request_rates"),
        ({"concurrencies": [77], "request_rates": []}, "request rate None, which settings do not have"),
    ):
        record = json.loads(full_report().to_json())
        record["settings"] |= settings
        path.write_text(json.dumps(record), encoding="utf-8")
        with pytest.raises(DataError, match=f"no report of profile: the file: .*{fault}"):
            read_report(path)


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
EXAMPLES = BENCHMARKS / "serving" / "reports"


@pytest.mark.parametrize("name", ["reviews", "imdb_long", "int8", "several_tasks"])
def test_examples_are_of_this_schema_and_say_what_is_said_today(name: str) -> None:
    """One that is older than the schema is refused, one that is older than the estimates differs."""
    path = EXAMPLES / name / "report.json"
    report = read_report(path)
    assert path.with_suffix(".csv").read_text(encoding="utf-8") == to_csv(report)
    assert report.partial is None
    said, today = leaves(report.model_dump()), leaves(estimated_anew(report).model_dump())
    assert said.keys() == today.keys()
    apart = [
        name
        for name, each in today.items()
        if said[name] != (pytest.approx(each, rel=1e-9, abs=1e-12) if isinstance(each, float) else each)
    ]
    assert not apart


def leaves(value: Any, name: str = "") -> dict[str, Any]:
    """Return what is no record itself in nested records, by where it is."""
    if not isinstance(value, dict | list | tuple):
        return {name: value}
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    return {key: each for place, part in inner for key, each in leaves(part, f"{name}.{place}").items()}


def test_the_pictures_of_the_readme_are_an_examples(tmp_path: Path) -> None:
    program, example = BENCHMARKS / "serving" / "pictures.py", EXAMPLES / "reviews"
    subprocess.run([sys.executable, program, example, "--output-dir", tmp_path], check=True)
    for picture in (tmp_path / "memory.svg", tmp_path / "latency.svg"):
        assert (BENCHMARKS.parent / "docs" / picture.name).read_bytes() == picture.read_bytes()


def test_savings_are_shares_of_the_baseline() -> None:
    found = list(
        savings(
            [
                measurement("model", p50=6, peak=2 * MIB),
                measurement("padded_fused", p50=8, peak=4 * MIB),
                measurement("padded_eager", p50=5, peak=0),
                measurement("packed_dense", length=256),
            ],
            {},
        )
    )
    assert [saving.baseline for saving in found] == ["padded_eager", "padded_fused"]
    assert [saving.latency.saved for saving in found] == pytest.approx([-0.2, 0.25])
    assert found[0].memory is None
    assert found[1].memory is not None
    assert found[1].memory.saved == pytest.approx(0.5)
    assert found[1].total_memory is not None
    assert found[1].total_memory.saved == pytest.approx(2 / 204)
    assert not any(saving.latency.is_noise for saving in found)


def test_noise_is_the_model_against_itself() -> None:
    """The bound of the worst length holds for all; what is no greater is noise, however the servers agree."""
    ours = [measurement("model", length, p50=10) for length in (64, 128)]
    again = [
        measurement("control", 64, p50=10.1),
        measurement("control", 128, p50=10, jitter=(0.04, -0.05, 0.0)),
    ]
    rival = [measurement("packed_dense", length, p50=p50) for length, p50 in ((64, 10.4), (128, 10.8))]
    (latency,) = (each for each in noise([*ours, *again]) if each.quantity == "latency_ms")
    assert latency.share == pytest.approx(0.0505, abs=0.001)
    report = report_of([*ours, *again, *rival])
    verdicts = {saving.length: saving.latency for saving in report.savings}
    assert verdicts[64].low is not None
    assert verdicts[64].low > 0
    assert verdicts[64].is_noise
    assert not verdicts[128].is_noise
    said = headline(report, "reviews")
    assert "saves 7% of the p50 latency at 128 tokens (nothing beyond noise at 64)" in said
    assert not list(noise(ours))


def test_of_one_server_everything_is_noise() -> None:
    report = report_of(
        [measurement("model", p50=1, jitter=(0.0,)), measurement("packed_dense", p50=100, jitter=(0.0,))]
    )
    assert all(saving.latency.is_noise for saving in report.savings)
    assert all(step.is_noise for split in report.splits if (step := split.sparsity))
    assert any("one server has no interval" in doubt for doubt in read_doubts(report))
    assert "saves neither p50 latency nor memory beyond noise at any length" in headline(report, "reviews")


def test_a_model_against_itself_saves_nothing() -> None:
    """Ten reports in which every figure is drawn from one distribution: at most one false saving in all."""
    rng = np.random.default_rng(7)

    def drawn(variant: Variant, length: int) -> Measurement:
        return measurement(variant, length, jitter=rng.normal(0, 0.03, 3).tolist())

    false = 0
    for _ in range(10):
        variants: tuple[Variant, ...] = ("model", "control", "packed_dense", "padded_fused")
        report = report_of(drawn(variant, length) for variant in variants for length in (64, 128, 256, 512))
        changes = [
            change for saving in report.savings for change in (saving.latency, saving.memory) if change
        ]
        false += any(not change.is_noise for change in changes)
    assert false <= 1


def test_splits_add_up_to_the_whole_saving() -> None:
    report = full_report()
    for split in report.splits:
        ours, eager = (
            next(m for m in report.series("reviews", variant) if m.length == split.length)
            for variant in ("model", "padded_eager")
        )
        one, other = (value(m, split.quantity) for m in (eager, ours))
        assert one is not None
        assert other is not None
        steps = [step_of(split, name) for name in STEP_TITLES]
        assert sum(step.saved for step in steps if step is not None) == pytest.approx(one - other)
        assert split.precision is None
    assert len(report.splits) == 8


def test_precision_is_a_step_where_the_model_in_fp32_is_beside_it() -> None:
    int8 = SSAF.model_copy(update={"model": "small", "dtype": "int8"})
    variants: tuple[tuple[Variant, float], ...] = (
        ("padded_eager", 40),
        ("padded_fused", 30),
        ("packed_dense", 20),
        ("model", 18),
    )
    measured = [measurement(variant, p50=p50) for variant, p50 in variants]
    measured += [measurement(variant, p50=p50 / 2, model="small") for variant, p50 in variants[2:]]
    found = {each.model: each for each in splits(measured, [SSAF, int8], {}) if each.quantity == "latency_ms"}
    steps = [step_of(found["small"], name) for name in ("fusion", "packing", "precision", "sparsity")]
    assert [step.saved for step in steps if step] == pytest.approx([10, 10, 10, 1])
    assert found["small"].reference == "reviews"
    assert found["reviews"].precision is None

    report = report_of(measured).model_copy(update={"served": (SSAF, int8)})
    assert "against reviews in fp32 it saves 50% of the latency and" in headline(report, "small")
    assert "fp32" not in headline(report, "reviews")


def test_a_split_has_gaps_where_variants_are_absent() -> None:
    latency = next(
        split
        for split in splits([measurement("model", p50=6), measurement("packed_dense", p50=7)], [SSAF], {})
        if split.quantity == "latency_ms"
    )
    assert (latency.fusion, latency.packing, latency.precision) == (None, None, None)
    assert latency.sparsity is not None
    assert latency.sparsity.saved == pytest.approx(1.0)
    assert not list(splits([measurement("model")], [SSAF], {}))


def test_growth_is_the_quadratic_part() -> None:
    lengths = (32, 64, 128, 256)
    peaks = {length: round(3 * MIB + 9000 * length + 110 * length**2) for length in lengths}
    peaks[32] += 4 * MIB  # the shortest has another cause, and is left out
    measured = [measurement("padded_eager", length, peak=peaks[length]) for length in lengths]
    (found,) = growth(measured, "reviews", 12)
    assert found.lengths == (64, 128, 256)
    assert found.measured == pytest.approx(110, rel=1e-3)
    assert found.theory == (2 * 12 + 1) * 4
    assert found.ratio == pytest.approx(110 / 100, rel=1e-3)
    assert not list(growth(measured[:2], "reviews", 12))
    assert not list(growth(measured, "reviews", None))
    assert not list(growth(measured, "another", 12))


class Page(HTMLParser):
    """Collects what a browser would load, and the text outside scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.text: list[str] = []
        self.ids: list[str] = []
        self.plots: list[str] = []
        self._inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "data")]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.plots += [dict(attrs).get("aria-label") or ""] if tag == "svg" else []

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._inside):
            self.text.append(data)


@cache
def full_page() -> str:
    return to_html(full_report())


def test_the_page_is_self_contained_and_names_every_variant() -> None:
    page = Page(full_page())
    assert page.loads == []
    assert len(full_page().encode()) < 1_500_000
    text = " ".join(page.text)
    for title in TITLES.values():
        assert title in text
    assert len(page.ids) == len(set(page.ids))
    assert len(page.plots) == 9
    assert "How memory was measured." in text


def test_names_cannot_break_out_of_the_page() -> None:
    name = "</script><script>alert(1)</script>"
    html = to_html(report_of([measurement(model=name), measurement("packed_dense", model=name)]))
    assert "<script>alert(1)" not in html
    assert "</script><script>" not in html
    assert name in " ".join(Page(html).text)


@pytest.mark.parametrize("variants", [["model"], ["padded_eager"], ["model", "text"]])
def test_the_page_stands_missing_variants_and_a_single_length(variants: list[Variant]) -> None:
    absent = Absent(model="reviews", variant="padded_eager", reason="it was not exported")
    page = Page(to_html(report_of([measurement(variant, peak=0) for variant in variants], [absent])))
    assert "it was not exported" in " ".join(page.text)


def test_several_models_are_told_apart() -> None:
    models = ("one", "two")
    quality = [full_report().quality[0].model_copy(update={"model": model}) for model in models]
    html = to_html(report_of([measurement(model=model) for model in models], quality=quality))
    assert "one: this model" in html
    assert "two: this model" in html
    assert "dominated by" in html


def test_the_page_opens_with_the_sentence_and_its_figure() -> None:
    html = full_page()
    first, figure, rest = (html.index(text) for text in ('class="headline"', "<svg", "What it says"))
    assert first < figure < rest
    assert "reviews saves 10% of the p50 latency" in html
    assert 'table class="sorts"' in html


def test_the_page_is_read_without_eyes_and_with_weak_ones() -> None:
    """Column heads stay heads, points have names, intervals are text, and no text is too pale."""
    html = full_page()
    assert 'scope="col"' in html
    assert not re.search(r"<th(?! scope=\"col\")[ >]", html)
    assert '<svg class="plot" role="group"' in html
    assert re.search(r'<g class="tip" role="img" tabindex="0" aria-label="[^"]+">', html)
    assert re.search(r'<td data-sort="[^"]*">57\.60 <small>[\d.]+ to [\d.]+</small></td>', html)
    schemes = re.findall(r":root \{([^}]*)\}", html)
    assert len(schemes) == 2
    for scheme in schemes:
        colors = dict(re.findall(r"--(\w+): (#\w+);", scheme))
        for text in ("ink", "soft", "muted", "alarm"):
            assert contrast(colors[text], colors["paper"]) >= 4.5


def contrast(one: str, other: str) -> float:
    """The ratio of two colours' relative luminances, as WCAG 2 defines it."""
    lights = []
    for color in (one, other):
        digits = color[1:] if len(color) == 7 else "".join(2 * digit for digit in color[1:])
        shares = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
        linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        lights.append(
            sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
        )
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def test_noise_and_what_was_unstable_are_grey_in_tables() -> None:
    html = to_html(
        report_of(
            [
                measurement("model", p50=10, spread=0.5),
                measurement("packed_dense", p50=10.01, jitter=(0.01, 0, 0)),
            ]
        )
    )
    assert '<tr class="unstable"' in html
    assert re.search(r'<td class="noise" data-sort="[^"]*">\+0.4%', html)


def test_what_failed_has_a_row_that_says_so() -> None:
    failure = Failure(
        model="reviews",
        variant="padded_eager",
        stage="latency",
        round=2,
        length=512,
        concurrency=4,
        reason="Triton was ended by SIGKILL: <b>",
    )
    report = report_of([measurement()], failures=[failure], partial="it was interrupted")
    text = " ".join(" ".join(Page(to_html(report)).text).split())
    assert "failed in round 2 (latency): Triton was ended by SIGKILL: <b>" in text
    assert "A part of a report: it was interrupted." in text
    assert any("it was interrupted" in doubt for doubt in read_doubts(report))
    assert "Triton was ended by SIGKILL" in shown(report)


def shown(report: Report) -> str:
    stream = io.StringIO()
    show_report(report, Console(file=stream, width=200))
    return " ".join(stream.getvalue().split())


def test_the_terminal_has_the_sentence_and_the_table() -> None:
    text = shown(full_report())
    assert "reviews saves 10% of the p50 latency" in text
    assert "reviews padded dense, eager 512 128.00 192.00 7.8 43.5 243.5 +55% +14%" in text


def test_without_colours_noise_and_what_was_unstable_are_told() -> None:
    text = shown(report_of([measurement(spread=0.4), measurement("packed_dense", p50=10)]))
    assert "this model 128 ~10.00" in text
    assert "packed dense 128 10.00" in text
    assert "noise +0%" in text


def test_the_reading_says_what_is_saved() -> None:
    report = full_report()
    assert headline(report, "reviews") == (
        "Against the best fused dense attention of the same weights, reviews saves 10% of the p50 latency "
        "and 0.5% of the memory at 512 tokens; against padded eager attention it saves 55% of the latency "
        "and 14% of the memory at 512 tokens."
    )
    sentences = " ".join([*findings(report, "reviews"), *details(report, "reviews")])
    assert "Measured twice, the model lay up to 0.3% in p50 latency" in sentences
    assert (
        "the steps save: fusing (eager → fused) 51.2 ms; packing (fused → packed dense) 12.8 ms" in sentences
    )
    assert "8.8 MiB above the 200.0 MiB that the server holds at rest: 208.8 MiB in total" in sentences
    assert "holds 300.0 MiB (PSS, shared pages once) after all of the load" in sentences
    assert "group was charged 420.0 MiB at most, with files that it read first" in sentences
    assert "says 100: a ratio of 0.96" in sentences
    assert "takes 64.0 ms where the graph alone takes 57.6 ms" in sentences
    assert "saves no time" not in sentences


def test_the_reading_says_what_is_not_told_from_noise() -> None:
    """A difference that the servers do not agree on is neither a saving nor none, and no cause is known."""
    twins = [
        measurement("packed_dense", p50=10.01, peak=10 * MIB),
        measurement("padded_fused", p50=20.0, peak=20 * MIB),
    ]
    report = report_of([measurement("model", p50=10.0, peak=10 * MIB, jitter=(-0.3, 0.3, 0.0)), *twins])
    said = headline(report, "reviews")
    assert "saves neither p50 latency nor memory beyond noise at any length (95 %: -" in said
    sentences = " ".join(details(report, "reviews"))
    assert (
        "What sparsity itself saves in p50 latency is not told from noise at 128 tokens: "
        "0.0 ms at 128 (95 %: -"
    ) in sentences
    assert "is not told from noise at 128 tokens: 0.0 MiB at 128 (95 %: -" in sentences
    assert "theory expects nothing, as packed dense attention forms no L×L scores either" in sentences
    assert "saves no" not in sentences
    assert "linear layers" not in sentences

    dense = SSAF.model_copy(update={"normalizer": "softmax", "lambd": None})
    assert "sparsity itself" not in " ".join(
        details(report.model_copy(update={"served": (dense,)}), "reviews")
    )


def test_noise_of_the_run_is_told_where_the_servers_agree() -> None:
    again = measurement("control", jitter=(0.3, -0.3, 0.0))
    report = report_of([measurement(p50=10), again, measurement("packed_dense", p50=12)])
    said = "of the p50 latency at 128 tokens, but the model lay up to 31.3% from itself"
    assert said in headline(report, "reviews")
    assert "(95 %: 2.0 ms to 2.0 ms; the model lay up to 31.3% from itself)" in " ".join(
        details(report, "reviews")
    )


def test_of_one_server_each_the_reading_has_no_verdict() -> None:
    report = report_of([measurement(p50=2, jitter=(0.0,)), measurement("packed_dense", p50=9, jitter=(0.0,))])
    assert "beyond noise at any length (of one server each)" in headline(report, "reviews")
    assert (
        "What sparsity itself saves in p50 latency is not told from noise at 128 tokens: 7.0 ms at 128, "
        "of one server each."
    ) in details(report, "reviews")


def test_a_loss_is_told_as_one_in_every_sentence() -> None:
    """Slower than all dense variants, and larger than the fused ones alone."""
    ours = measurement("model", p50=12, peak=20 * MIB)
    dense: tuple[tuple[Variant, float, int], ...] = (
        ("packed_dense", 10, 12 * MIB),
        ("padded_fused", 11, 10 * MIB),
        ("padded_eager", 8, 80 * MIB),
    )
    report = report_of([ours, *(measurement(name, p50=p50, peak=peak) for name, p50, peak in dense)])
    assert headline(report, "reviews") == (
        "Against the best fused dense attention of the same weights, reviews takes 20% more p50 latency at "
        "128 tokens and takes 5% more memory at 128 tokens; against padded eager attention it saves 21% of "
        "the memory but takes 50% more latency at 128 tokens."
    )
    sentences = " ".join([*findings(report, "reviews"), *details(report, "reviews")])
    assert "fusing (eager → fused) takes 3.0 ms more; packing (fused → packed dense) 1.0 ms" in sentences
    assert "Against packed dense attention sparsity itself takes 2.0 ms more p50 latency at 128" in sentences
    assert "sparsity itself takes 8.0 MiB more peak memory above idle at 128 tokens (95 %: 7." in sentences


def test_an_int8_model_that_is_slower_is_told_so() -> None:
    int8 = SSAF.model_copy(update={"model": "small", "dtype": "int8"})
    measured = [
        measurement(p50=10),
        measurement(p50=11, model="small"),
        measurement("padded_eager", model="small"),
    ]
    report = report_of(measured).model_copy(update={"served": (SSAF, int8)})
    assert "against reviews in fp32 it saves no memory beyond noise but takes 10% more latency" in headline(
        report, "small"
    )


def test_throughput_that_falls_is_told_so() -> None:
    assert "throughput falls from 50.0 to 40.0 texts/s (-20%)" in " ".join(details(swept(10, 25), "reviews"))
    one = report_of(
        measurement(p50=p50, concurrency=number, jitter=(0.0,)) for number, p50 in ((1, 10), (2, 15))
    )
    assert "throughput is 100.0 and 133.3 texts/s, of one server each" in " ".join(details(one, "reviews"))


def test_without_twins_no_saving_is_told() -> None:
    assert "without its dense twins" in headline(report_of([measurement()]), "reviews")


def aaa_report() -> Report:
    """An AAA model at two lengths, with the dense variants that its savings are split by."""
    ours = [with_axes(measurement("model", length, p50=p50)) for length, p50 in ((128, 9.8), (2048, 50))]
    packed = [measurement("packed_dense", length, p50=p50) for length, p50 in ((128, 10), (2048, 150))]
    fused = [measurement("padded_fused", length, p50=p50) for length, p50 in ((128, 20), (2048, 200))]
    return report_of([*ours, *packed, *fused], served=AAA)


def test_rows_and_columns_on_are_in_every_file() -> None:
    report = aaa_report()
    jsonschema.validate(json.loads(report.to_json()), json.loads(report_schema()))
    row = next(csv.DictReader(io.StringIO(to_csv(report))))
    assert (row["rows_on"], row["rows_on_per_layer"]) == ("0.01172", "0.00781 0.01562")
    assert (row["rows_on_count_per_layer"], row["columns_on_count_per_layer"]) == (
        "1.00000 2.00000",
        "2.00000 3.00000",
    )
    plain = next(csv.DictReader(io.StringIO(to_csv(full_report()))))
    assert (plain["rho"], plain["rows_on"], plain["columns_on_per_layer"]) == ("0.92500", "", "")
    text = " ".join(" ".join(Page(to_html(report)).text).split())
    assert "AAA: axis + local2, softmax over the allowed pairs" in text
    assert "2048 columns on 0.10 % (2.0) 0.15 % (3.0)" in text
    assert "rows on" not in " ".join(Page(full_page()).text)


def test_rows_and_columns_are_drawn_by_layer() -> None:
    rows, columns = (axes_figure(aaa_report(), "reviews", rows=rows) for rows in (True, False))
    assert 'aria-label="layer 2, 128 tokens: 1.56 %, 2.0 of them"' in (rows or "")
    assert 'aria-label="layer 1, 2048 tokens: 0.10 %, 2.0 of them"' in (columns or "")
    assert axes_figure(full_report(), "reviews", rows=True) is None


def test_the_reading_of_an_axis_model() -> None:
    sentences = " ".join([*findings(aaa_report(), "reviews"), *details(aaa_report(), "reviews")])
    assert (
        "At 2048 tokens, by layer, 0.05% to 0.10% of a text's tokens have their row on, and read every key: "
        "1.0 to 2.0 of them. 0.10% to 0.15% have their column on, and are read by every query: 2.0 to 3.0."
    ) in sentences
    assert (
        "packing (fused → packed dense) 50.0 ms; sparsity (packed dense → this model) 100.0 ms" in sentences
    )
    assert "their row on" not in " ".join(details(full_report(), "reviews"))


@pytest.mark.parametrize(
    ("pattern", "lambd", "title"),
    [
        (None, None, "full attention, softmax"),
        (None, -4.0, "SSAF: sparsegen-lin at λ = -4"),
        ("axis+local2", None, "AAA: axis + local2, softmax over the allowed pairs"),
        ("axis+local2", -4.0, "AAA: axis + local2, sparsegen-lin at λ = -4 over the allowed pairs"),
        (
            "local2+global1",
            None,
            "attention pattern local2 + global1, softmax over the allowed pairs",
        ),
    ],
)
def test_attention_is_named(pattern: str | None, lambd: float | None, title: str) -> None:
    served = SSAF.model_copy(update={"pattern": pattern, "lambd": lambd})
    assert attention_title(served) == title


def swept(*p50: float, spread: float = 0.02) -> Report:
    """Two lengths at concurrencies 1, 2, 4 ..., as fast as `p50` tells, and a dense rival."""
    factors: dict[Variant, float] = {"model": 1.0, "packed_dense": 1.1}
    return report_of(
        measurement(variant, length, p50=each * factor * length / 64, concurrency=2**power, spread=spread)
        for variant, factor in factors.items()
        for length in (64, 128)
        for power, each in enumerate(p50)
    )


def test_the_reading_says_what_more_requests_in_flight_bring() -> None:
    sentences = " ".join(details(swept(10, 15, 40), "reviews"))
    assert (
        "From 1 to 4 requests in flight, at 128 tokens, p50 latency goes from 20.0 ms to 80.0 ms; "
        "throughput stays at 50.0 texts/s, as far as the servers agree, after 66.7 with 2 requests in flight."
    ) in sentences
    rising = " ".join(details(swept(10, 15, 25), "reviews"))
    assert "throughput rises from 50.0 to 80.0 texts/s (+60%)." in rising
    level = " ".join(details(swept(10, 20, 39.9), "reviews"))
    assert "throughput stays at 50.0 texts/s, as far as the servers agree" in level
    assert "in flight, at" not in " ".join(details(full_report(), "reviews"))


def test_latency_is_drawn_against_throughput() -> None:
    figure = throughput_figure(swept(10, 15, 40), 128) or ""
    assert figure.count("in flight:") >= 6
    assert 'aria-label="this model, 4 requests in flight: 50.0 texts/s, 80.0 ms, p99 120.0 ms"' in figure
    assert throughput_figure(full_report(), 128) is None


def test_an_open_loop_stands_beside_the_closed_one() -> None:
    report = report_of(
        [
            measurement(),
            measurement(p50=12, concurrency=None, request_rate=20),
            measurement(p50=31, concurrency=None, request_rate=40),
        ]
    )
    assert report.loads() == [(1, None), (None, 20), (None, 40)]
    sentences = " ".join(details(report, "reviews"))
    assert (
        "arrive at a rate (poisson), whatever is in flight, p50 latency is 12.0 ms at 20/s and 31.0"
        in sentences
    )
    row = list(csv.DictReader(io.StringIO(to_csv(report))))[2]
    assert (row["Concurrency"], row["request_rate"], row["peak_memory_bytes"]) == ("", "40", "")
    assert "open loop, 40 requests a second" in (throughput_figure(report, 128) or "")
    assert "arriving, 1/s" in to_html(report)


def test_every_concurrency_has_its_rows() -> None:
    report = swept(10, 15, 40)
    rows = list(csv.DictReader(io.StringIO(to_csv(report))))
    assert [(row["variant"], row["length"], row["Concurrency"]) for row in rows[:4]] == [
        ("model", "64", "1"),
        ("model", "64", "2"),
        ("model", "64", "4"),
        ("model", "128", "1"),
    ]
    assert [saving.concurrency for saving in report.savings] == [1, 2, 4, 1, 2, 4]
    assert {split.concurrency for split in report.splits} == {1, 2, 4}
    assert [m.concurrency for m in report.series("reviews", "model")] == [1, 1]
    text = " ".join(Page(to_html(report)).text)
    assert "1, 2, 4 requests in flight" in text


def test_growth_is_of_one_request_at_a_time() -> None:
    alone = [measurement("padded_eager", length, peak=100 * length**2) for length in (64, 128, 256)]
    crowd = [m.model_copy(update={"concurrency": 4}) for m in alone]
    assert list(growth([*alone, *crowd], "reviews", 12)) == list(growth(alone, "reviews", 12))
    assert not list(growth(crowd, "reviews", 12))


def test_the_reading_says_what_costs_more() -> None:
    report = report_of([measurement("model", p50=13), measurement("padded_fused", p50=10)])
    assert "takes 30% more p50 latency at 128 tokens" in headline(report, "reviews")


def test_doubts_name_the_point_that_was_sent_late_most() -> None:
    late = [
        measurement(concurrency=None, request_rate=rate).model_copy(update={"late_share": share})
        for rate, share in ((10.0, 0.02), (40.0, 0.9))
    ]
    (told,) = (doubt for doubt in read_doubts(report_of(late)) if "sent late" in doubt)
    assert "up to 90% of the requests" in told
    assert "40 requests" in told


def test_visits_to_a_running_server_are_no_fresh_servers() -> None:
    report = full_report()
    remote = report.environment.model_copy(update={"remote": "host:8001"})
    visited = report.model_copy(update={"environment": remote})
    told = " ".join(read_doubts(visited))
    assert "3 visits to one running server, host:8001" in told
    for words in ("fresh server", "All figures come from one machine", "shared the servers' cores"):
        assert words not in told
        assert words not in to_html(visited)
    assert "3 fresh servers" in " ".join(read_doubts(report))


def test_a_part_of_a_report_has_the_servers_that_it_has() -> None:
    """Not those that its settings ask for."""
    one = report_of([measurement(jitter=(0.0,)), measurement("padded_fused")], partial="it was interrupted")
    assert "is the mean of 1 to 3 fresh servers of its variant; intervals are 95 %" in " ".join(
        read_doubts(one)
    )
    first = report_of([measurement(jitter=(0.0,))], partial="it ended after 1 of 3 rounds")
    first = first.model_copy(update={"settings": first.settings.model_copy(update={"rounds": 3})})
    told = " ".join(read_doubts(first))
    assert "is the mean of 1 fresh server of its variant; one server has no interval" in told
    assert "1 fresh server each" in to_html(first)


def test_a_name_that_is_no_utf_8_can_be_written() -> None:
    inputs = full_report().inputs[0].model_copy(update={"source": "donn\udce9es.txt"})
    told = Inputs.model_validate(inputs.model_dump())
    assert told.source == "donn?es.txt"
    assert "donn?es.txt" in told.model_dump_json()


def test_doubts_name_what_was_unstable() -> None:
    shaky = report_of([measurement("padded_fused", spread=0.4), measurement()])
    assert any("padded dense, fused at 128" in doubt for doubt in read_doubts(shaky))
    crowded = report_of([measurement("padded_fused", concurrency=4, spread=0.4), measurement()])
    assert any("padded dense, fused at 128, 4 requests in flight" in doubt for doubt in read_doubts(crowded))
    assert not any("not stable" in doubt for doubt in read_doubts(full_report()))
