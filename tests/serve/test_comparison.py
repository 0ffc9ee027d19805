"""`report diff`: what changed beyond the noise, and the exit status that a team's CI goes by."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sample_report import JITTER, MIB, full_report, measurement, report_of, servers

from command_line import outcome
from sparse_serve.cli import app
from sparse_serve.environment import Gpu
from sparse_serve.report.comparison import compare
from sparse_serve.report.document import Report
from sparse_serve.report.measured import Measurement, Quality, Variant


def judged(before: Report, after: Report, tolerance: float = 0.0) -> dict[str, str]:
    found = compare(before, after, ("model", "text"), tolerance, 0.005)
    return {each.figure: each.verdict for each in found.differences}


def quality(accuracy: float, rows: int = 9, metric: str = "accuracy") -> Quality:
    return Quality(
        model="reviews", variant="model", file="x", rows=rows, metric=metric, metrics={metric: accuracy}
    )


def test_a_report_has_not_changed_from_itself() -> None:
    assert set(judged(full_report(), full_report()).values()) == {"noise"}


def test_what_is_slower_and_larger_beyond_the_servers_is_worse() -> None:
    before = report_of([measurement(p50=10, peak=10 * MIB)])
    after = report_of([measurement(p50=11, peak=8 * MIB)])
    assert judged(before, after) == {
        "p50 latency, ms": "worse",
        "p99 latency, ms": "worse",
        "texts/s": "worse",
        "peak above idle, bytes": "better",
        "peak in total, bytes": "better",
        "accuracy": "noise",
    }
    assert judged(before, after, tolerance=0.2)["p50 latency, ms"] == "noise"


def test_what_the_noise_of_either_covers_is_noise() -> None:
    def noisy(p50: float) -> list[Measurement]:
        return [measurement(p50=p50), measurement("control", p50=p50, jitter=(0.08, -0.1, 0.0))]

    quiet = [measurement(p50=10)]
    assert judged(report_of(noisy(10)), report_of([measurement(p50=10.6)]))["p50 latency, ms"] == "noise"
    assert judged(report_of(quiet), report_of(noisy(10.6)))["p50 latency, ms"] == "noise"
    assert judged(report_of(quiet), report_of([measurement(p50=10.6)]))["p50 latency, ms"] == "worse"


def test_what_is_gone_is_a_regression_and_what_is_new_is_none() -> None:
    both = report_of([measurement(length=64), measurement(length=128)], quality=())
    one = report_of([measurement(length=64)], quality=())
    assert judged(both, one)["all"] == "gone"
    assert judged(one, both)["all"] == "new"
    assert not compare(one, both, ("model",), 0, 0).regressions


def test_quality_that_is_lost_is_a_regression() -> None:
    reports = [report_of([measurement()], quality=[quality(accuracy)]) for accuracy in (0.9, 0.897, 0.88)]
    assert judged(reports[0], reports[1])["accuracy"] == "noise"
    assert judged(reports[0], reports[2])["accuracy"] == "worse"
    assert judged(reports[2], reports[0])["accuracy"] == "better"


def test_quality_that_is_no_longer_there_is_a_regression() -> None:
    with_it, without = (report_of([measurement()], quality=each) for each in ([quality(0.9)], []))
    assert judged(with_it, without)["accuracy"] == "gone"
    assert judged(without, with_it)["accuracy"] == "new"
    assert not compare(without, with_it, ("model",), 0, 0).regressions
    assert judged(with_it, report_of([measurement()], quality=[quality(0.9, metric="f1")])) == {
        **judged(without, without),
        "accuracy": "gone",
        "f1": "new",
    }


def test_other_texts_machines_and_servers_are_cautions() -> None:
    """What makes a figure another one, though it has the same name."""
    before = full_report()
    environment, (inputs, *others) = before.environment, before.inputs
    gpu = Gpu(name="H200", memory_bytes=1, driver="580", cuda="13")
    changes: list[tuple[dict[str, Any], str]] = [
        (
            {"environment": environment.model_copy(update={"gpus": (gpu,)})},
            "on different GPUs: ",
        ),
        ({"environment": environment.model_copy(update={"kernel": "7.0"})}, "under different kernels"),
        ({"environment": environment.model_copy(update={"remote": "a:1"})}, "of different servers"),
        (
            {"inputs": (inputs.model_copy(update={"row_lengths": (3,), "source": "day.tsv"}), *others)},
            f"was asked other texts of up to {inputs.length} tokens",
        ),
    ]
    for change, message in changes:
        (caution,) = compare(before, before.model_copy(update=change), ("model",), 0, 0).cautions
        assert message in caution
    assert compare(before, before, ("model",), 0, 0).cautions == ()


def test_markup_in_a_report_is_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    path.write_text(full_report().to_json().replace('"reviews"', '"[/b]\\u001b[31m"'), encoding="utf-8")
    status, output, errors = outcome(capsys, app, "report", "show", str(path))
    assert (status, "[/b]" in output + errors) == (0, True)
    assert outcome(capsys, app, "report", "diff", str(path), str(path))[0] == 0


def test_quality_is_compared_on_other_rows_too_with_a_caution() -> None:
    before, after = (report_of([measurement()], quality=[quality(*each)]) for each in ((0.9, 9), (0.7, 10)))
    assert judged(before, after)["accuracy"] == "worse"
    cautions = compare(before, after, ("model",), 0, 0).cautions
    assert cautions == ("quality was measured on 9 rows of x and on 10 of x",)
    assert compare(before, before, ("model",), 0, 0).cautions == ()


def test_a_rise_from_0_is_worse() -> None:
    nothing, something = (report_of([measurement(peak=peak)]) for peak in (0, 8 * MIB))
    assert judged(nothing, something)["peak above idle, bytes"] == "worse"
    assert judged(nothing, nothing)["peak above idle, bytes"] == "noise"
    assert judged(something, nothing)["peak above idle, bytes"] == "better"
    one = report_of([measurement(peak=8 * MIB, jitter=(0.0,))])
    assert judged(nothing, one)["peak above idle, bytes"] == "noise"


def test_memory_that_is_no_longer_there_is_a_regression() -> None:
    bare = report_of([measurement().model_copy(update={"memory_bytes": None})])
    found = judged(report_of([measurement()]), bare)
    assert (found["peak above idle, bytes"], found["peak in total, bytes"]) == ("gone", "gone")


def slowest(p99: float, *, jitter: Sequence[float] = JITTER, variant: Variant = "model") -> Measurement:
    """A measurement with this p99 in ms."""
    found = measurement(variant)
    latency = found.latency_ms.model_copy(update={"p99": servers(p99, jitter)})
    return found.model_copy(update={"latency_ms": latency})


def test_p99_is_compared_where_both_have_it_by_its_own_noise() -> None:
    before, after = (report_of([slowest(p99)]) for p99 in (20, 23))
    assert judged(before, after)["p99 latency, ms"] == "worse"
    assert judged(before, after)["p50 latency, ms"] == "noise"
    noisy = report_of([slowest(20), slowest(20, jitter=(0.2, -0.2, 0.0), variant="control")])
    assert judged(noisy, after)["p99 latency, ms"] == "noise"
    few = before.measurements[0].latency_ms.model_copy(update={"p99": None})
    assert "p99 latency, ms" not in judged(
        before, report_of([measurement().model_copy(update={"latency_ms": few})])
    )


def test_a_loss_that_one_row_would_be_is_said() -> None:
    def cautions(before: float, after: float, rows: int) -> tuple[str, ...]:
        one, other = (report_of([measurement()], quality=[quality(each, rows)]) for each in (before, after))
        return compare(one, other, ("model",), 0, 0.005).cautions

    (caution,) = cautions(0.9, 0.89, 100)
    assert caution == "quality was measured on 100 rows, of which one is 0.0100: --max-loss 0.005 allows none"
    assert not cautions(0.9, 0.9, 100)
    assert not cautions(0.9, 0.89, 1000)


def test_as_much_as_may_be_lost_is_no_loss() -> None:
    def verdicts(rows: int) -> set[str]:
        one, other = (
            report_of([measurement()], quality=[quality((rows - wrong) / rows, rows)]) for wrong in (20, 21)
        )
        return {each.verdict for each in compare(one, other, ("model",), 0, 1 / rows).differences}

    assert all(verdicts(rows) == {"noise"} for rows in (40, 100, 200, 300, 1000))


def test_a_correlation_that_rises_from_below_0_has_risen() -> None:
    one, other = (report_of([measurement()], quality=[quality(r, metric="pearson")]) for r in (-0.2, 0.1))
    (found,) = (
        each for each in compare(one, other, ("model",), 0, 0).differences if each.figure == "pearson"
    )
    assert found.verdict == "better"
    assert found.change == pytest.approx(1.5)


def test_what_makes_reports_hard_to_compare_is_said() -> None:
    report = full_report()
    cpu = report.environment.cpu.model_copy(update={"cores": 16})
    other = report.model_copy(
        update={
            "environment": report.environment.model_copy(update={"cpu": cpu}),
            "partial": "it was interrupted",
        }
    )
    cautions = " ".join(compare(report, other, ("model",), 0, 0).cautions)
    assert "the second report is a part: it was interrupted" in cautions
    assert "different machines: A processor, 2 cores, and A processor, 16 cores" in cautions


def test_the_command_ends_with_3_on_a_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    for path, p50 in zip(paths, (10.0, 12.0), strict=True):
        path.write_text(report_of([measurement(p50=p50)]).to_json(), encoding="utf-8")
    a, b = paths
    status, output, errors = outcome(capsys, app, "report", "diff", a, b)
    assert status == 3
    assert "reviews, this model, 128 tokens × 1, 1 request in flight" in output
    assert "3 of 6 figures changed beyond noise, 3 for the worse" in output
    assert errors.startswith(
        f"error: {b} is worse than {a}, beyond the noise of both or --max-loss, in reviews, this model"
    )
    assert errors.count("\n") == 1
    status, output, errors = outcome(capsys, app, "report", "diff", b, a, "--json")
    assert (status, errors) == (0, "")
    told = json.loads(output)
    verdicts = {each["figure"]: each["verdict"] for each in told["differences"]}
    assert verdicts["p50 latency, ms"] == "better"
    assert (told["cautions"], told["worse"]) == ([], 0)
    assert outcome(capsys, app, "report", "diff", a, b, "--tolerance", "25")[0] == 0
    assert outcome(capsys, app, "report", "diff", a, tmp_path / "c.json")[0] == 1
    assert outcome(capsys, app, "report", "diff", a, b, "--variants", "best")[0] == 2
    status, output, errors = outcome(capsys, app, "report", "diff", a, b, "--variants", "portable")
    assert (status, output) == (2, "")
    assert errors == (
        "error: neither report has portable; they have model: name one of these in --variants\n"
    )


def test_a_report_is_shown_and_drawn_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    path.write_text(report_of([measurement(), measurement("packed_dense", p50=12)]).to_json())
    status, output, _ = outcome(capsys, app, "report", "show", path)
    assert status == 0
    assert "saves 17% of the p50 latency" in output
    status, output, _ = outcome(capsys, app, "report", "show", path, "--json")
    assert (status, output) == (0, path.read_text())
    assert outcome(capsys, app, "report", "show", path, "--output-dir", tmp_path / "new")[0] == 0
    assert (tmp_path / "new" / "report.html").is_file()


def test_a_report_is_not_drawn_where_profile_writes_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    path.write_text(report_of([measurement()]).to_json())
    monkeypatch.setenv("SPARSE_SERVE_OUTPUT_DIR", str(tmp_path / "report"))
    assert outcome(capsys, app, "report", "show", path)[0] == 0
    assert not (tmp_path / "report").exists()
