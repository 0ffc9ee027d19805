"""The report's schema and files, what it computes from measurements, and its page."""

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest
from sample_report import AAA, SSAF, full_report, measurement, report_of, with_axes

from sparse_serve.profiling.reading import TITLES, attention_title, read_doubts, read_model
from sparse_serve.profiling.report import (
    VARIANTS,
    Absent,
    Report,
    Variant,
    generate_schema,
    report_schema,
    to_csv,
    write_text_reports,
)
from sparse_serve.profiling.report_page import axes_figure, throughput_figure, to_html, write_page
from sparse_serve.profiling.savings import growth, savings, splits

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
    assert len(rows) == len(report.measurements) == 24
    first, source = rows[0], report.measurements[0]
    assert float(first["Inferences/Second"]) == pytest.approx(source.texts_per_second, rel=1e-3)
    assert int(first["p99 latency"]) == round(1000 * source.latency_ms.p99)
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
    write_text_reports(report, tmp_path)
    write_page(report, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.csv", "report.html", "report.json"]


def test_savings_are_shares_of_the_baseline() -> None:
    found = list(
        savings(
            [
                measurement("model", p50=6, peak=2 * MIB),
                measurement("padded_fused", p50=8, peak=4 * MIB),
                measurement("padded_eager", p50=5, peak=0),
                measurement("packed_dense", length=256),
            ]
        )
    )
    assert [saving.baseline for saving in found] == ["padded_eager", "padded_fused"]
    assert [saving.latency for saving in found] == pytest.approx([-0.2, 0.25])
    assert [saving.memory for saving in found] == [None, pytest.approx(0.5)]


def test_splits_add_up_to_the_whole_saving() -> None:
    report = full_report()
    for split in report.splits:
        ours, eager = (
            next(m for m in report.series("reviews", variant) if m.length == split.length)
            for variant in ("model", "padded_eager")
        )
        whole = (
            eager.latency_ms.p50 - ours.latency_ms.p50
            if split.quantity == "latency_ms"
            else eager.memory_bytes.peak_above_idle - ours.memory_bytes.peak_above_idle
        )
        steps = (split.fusion, split.padding_removal, split.sparsity)
        assert sum(step for step in steps if step is not None) == pytest.approx(whole)
    assert len(report.splits) == 8


def test_a_split_has_gaps_where_variants_are_absent() -> None:
    latency = next(
        split
        for split in splits([measurement("model", p50=6), measurement("packed_dense", p50=7)])
        if split.quantity == "latency_ms"
    )
    assert (latency.fusion, latency.padding_removal, latency.sparsity) == (None, None, 1.0)
    assert not list(splits([measurement("model")]))


def test_growth_is_the_quadratic_part() -> None:
    lengths = (32, 64, 128, 256)
    peaks = {length: round(3 * MIB + 9000 * length + 110 * length**2) for length in lengths}
    peaks[32] += 4 * MIB  # the shortest has another cause, and is left out
    measured = [measurement("padded_eager", length, peak=peaks[length]) for length in lengths]
    (found,) = growth(measured, "reviews", 12)
    assert found.lengths == (64, 128, 256)
    assert found.measured == pytest.approx(110, rel=1e-3)
    assert found.theory == 2 * 12 * 4
    assert found.ratio == pytest.approx(110 / 96, rel=1e-3)
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
        self._inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "data")]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._inside):
            self.text.append(data)


def test_the_page_is_self_contained_and_names_every_variant() -> None:
    page = Page(to_html(full_report()))
    assert page.loads == []
    text = " ".join(page.text)
    for title in TITLES.values():
        assert title in text
    assert [name for name in page.ids if name.startswith("figure")] == [f"figure-{n}" for n in range(1, 6)]
    assert "How memory was measured." in text


def test_names_cannot_break_out_of_the_page() -> None:
    name = "</script><script>alert(1)</script>"
    html = to_html(report_of([measurement(model=name), measurement("packed_dense", model=name)]))
    assert "<script>alert(1)" not in html
    assert "</script><script>" not in html
    assert name in " ".join(Page(html).text)


@pytest.mark.parametrize("variants", [[variant] for variant in VARIANTS] + [["model", "text"]])
def test_the_page_stands_missing_variants_and_a_single_length(variants: list[Variant]) -> None:
    absent = Absent(model="reviews", variant="padded_eager", reason="it was not exported")
    page = Page(to_html(report_of([measurement(variant, peak=0) for variant in variants], [absent])))
    assert "it was not exported" in " ".join(page.text)


def test_several_models_are_told_apart() -> None:
    html = to_html(report_of([measurement(model="one"), measurement(model="two")]))
    assert re.search(r"one: this model", html)
    assert re.search(r"two: this model", html)


def test_the_reading_says_what_is_saved() -> None:
    sentences = " ".join(read_model(full_report(), "reviews"))
    assert "lower at 64 tokens (7.2 ms against 8.0 ms of packed dense, -10%)" in sentences
    assert "saves no time" not in sentences
    assert "says 96: a ratio of 1.00" in sentences


def test_the_reading_says_when_nothing_is_saved() -> None:
    report = report_of(
        [
            measurement("model", p50=10.0, peak=10 * MIB, spread=0.05),
            measurement("packed_dense", p50=10.2, peak=10 * MIB),
            measurement("padded_fused", p50=20.0, peak=20 * MIB),
        ]
    )
    sentences = " ".join(read_model(report, "reviews"))
    assert (
        "no difference beyond noise at 128 tokens (10.0 ms against 10.2 ms of packed dense, -2%, "
        "within the noise of 5%: the greater of the two spreads)"
    ) in sentences
    assert "(10.0 MiB against 10.0 MiB of packed dense, -0%, within the noise of 5%: 3 % or half" in sentences
    assert "saves no time against fused dense attention" in sentences
    assert "saves no memory against packed dense attention" in sentences


def test_other_sentences_say_what_is_noise_too() -> None:
    near = [measurement("model", p50=10.0), measurement("padded_eager", p50=10.1, peak=4 * MIB)]
    sentences = " ".join(read_model(report_of([*near, measurement("text", p50=15.0)]), "reviews"))
    assert (
        "1.0 MiB against 4.0 MiB (peak above idle) and 10.0 ms against 10.1 ms (p50, within the" in sentences
    )
    assert "takes 15.0 ms where the graph alone takes 10.0 ms." in sentences
    assert any("is called noise where" in doubt for doubt in read_doubts(report_of(near)))


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
    assert "rows on" not in " ".join(Page(to_html(full_report())).text)


def test_rows_and_columns_are_drawn_by_layer() -> None:
    figure = axes_figure(aaa_report(), "reviews")
    assert figure is not None
    lines = [(trace.name, list(trace.x), list(trace.y), list(trace.text)) for trace in figure.data]
    assert lines[0] == ("128 tokens", [1, 2], [100 / 128, 200 / 128], ["1.0", "2.0"])
    assert lines[3] == ("2048 tokens", [1, 2], [200 / 2048, 300 / 2048], ["2.0", "3.0"])
    assert axes_figure(full_report(), "reviews") is None


def test_the_reading_of_an_axis_model() -> None:
    sentences = " ".join(read_model(aaa_report(), "reviews"))
    assert (
        "At 2048 tokens, by layer, 0.05% to 0.10% of a text's tokens have their row on, and read every key: "
        "1.0 to 2.0 of them. 0.10% to 0.15% have their column on, and are read by every query: 2.0 to 3.0."
    ) in sentences
    assert (
        "Of the p50 latency of padded dense, fused, the packed kernel and sparsity save 50% and 1% (noise) "
        "at 128 tokens and 25% and 50% at 2048 tokens."
    ) in sentences
    assert "their row on" not in " ".join(read_model(full_report(), "reviews"))


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
    sentences = " ".join(read_model(swept(10, 15, 40), "reviews"))
    assert (
        "From 1 to 4 requests in flight, at 128 tokens, p50 latency goes from 20.0 ms to 80.0 ms; "
        "throughput rises from 50.0 to 66.7 texts/s (+33%)."
    ) in sentences
    assert "in p50 latency, 1 request in flight: lower at 64 tokens (10.0 ms against 11.0 ms" in sentences
    level = " ".join(read_model(swept(10, 20, 39.5, spread=0.04), "reviews"))
    assert "throughput stays at 50.0 texts/s, within the noise of 4%" in level
    assert "in flight, at" not in " ".join(read_model(full_report(), "reviews"))


def test_latency_is_drawn_against_throughput_at_one_length_at_a_time() -> None:
    report = swept(10, 15, 40)
    figure = throughput_figure(report)
    assert [len(trace.x) for trace in figure.data] == [3] * 4
    assert [trace.visible for trace in figure.data] == [False, False, True, True]
    for trace in figure.data:
        assert trace.text[-1].startswith("4 in flight")
    model = report.sweep("reviews", "model", 128)
    assert list(figure.data[2].y) == [m.latency_ms.p50 for m in model]
    (menu,) = figure.layout.updatemenus
    assert [button.label for button in menu.buttons] == ["64 tokens", "128 tokens"]
    assert list(menu.buttons[0].args[1]) == [True, True, False, False]


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
    sentences = " ".join(read_model(report, "reviews"))
    assert "higher at 128 tokens (13.0 ms against 10.0 ms of padded dense, fused, +30%)" in sentences


def test_doubts_name_what_was_unstable() -> None:
    shaky = report_of([measurement("padded_fused", spread=0.4), measurement()])
    assert any("padded dense, fused at 128" in doubt for doubt in read_doubts(shaky))
    crowded = report_of([measurement("padded_fused", concurrency=4, spread=0.4), measurement()])
    assert any("padded dense, fused at 128 × 4 in flight" in doubt for doubt in read_doubts(crowded))
    assert not any("not stable" in doubt for doubt in read_doubts(full_report()))
